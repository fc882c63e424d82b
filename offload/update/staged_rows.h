/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes of states in a tier whose engine only copies (staged_rows.c). Called by
 * core/states. */
#ifndef CST_STAGED_ROWS_H
#define CST_STAGED_ROWS_H

#include "offload/base/command.h"
#include "offload/base/flight.h"

struct cst_core;

/* Elements of a chunk's rows that are converted in a buffer of host memory. */
struct cst_staged_rows {
    uint32_t chunk;
    uint64_t first, n_elems;
    uint32_t reservation, buffer; /* Where. */
    uint64_t ticket;              /* The last command that uses the buffer; 0: none. */
};

/* True if the states of chunk @c are converted in host memory: they are in a tier whose engine does
 * not compute, and chunks are updated in buffers of host memory. */
bool cst_staged_rows_serve(const struct cst_core *core, uint32_t c);

/* Take the next buffer of the tier for elements of chunk @c, for which cst_staged_rows_serve is
 * true. */
struct cst_staged_rows cst_staged_rows_take(struct cst_core *core, uint32_t c, uint64_t first,
                                            uint64_t n_elems);

/* Issue the COPYs that bring the elements of @row to the buffer, with all of the blocks that they
 * share. */
void cst_staged_rows_bring(struct cst_core *core, struct cst_staged_rows *rows, enum cst_row row);

/* @command uses the buffer after the commands before. */
void cst_staged_rows_use(struct cst_core *core, struct cst_staged_rows *rows,
                         struct cst_command *command);

/* The place of @row in the buffer, from element @elem on, which is 0 if the row has MX8. */
struct cst_place cst_staged_rows_place(const struct cst_core *core,
                                       const struct cst_staged_rows *rows, enum cst_row row,
                                       uint64_t elem);

/* The command that was used last has written the elements of @row: issue the COPYs that bring them
 * to the tier, of which the last one is @flight, or a part of a WRITE if that is NULL. Returns the
 * last one. */
struct cst_command *cst_staged_rows_store(struct cst_core *core, struct cst_staged_rows *rows,
                                          enum cst_row row, struct cst_flight *flight);

#endif
