/* SPDX-License-Identifier: Apache-2.0 */
/* The weight rows of a chunk: which of two rows fetches read, and what the row holds if gradients
 * are summed there (weight_row.c). Every part of the core may call this. */
#ifndef CST_WEIGHT_ROW_H
#define CST_WEIGHT_ROW_H

#include "offload/base/command.h"
#include "offload/base/core_config.h"

struct cst_core;
struct cst_chunk;

/* Contents of a chunk's weight row, if gradients are summed there; the diagram is in weight_row.c.
 */
enum cst_weight_holds {
    CST_HOLDS_WEIGHTS,
    CST_HOLDS_GRADIENT, /* Weights are made from the master weights. */
    CST_HOLDS_STALE,    /* The same, and the master weights were written since: no gradient. */
};

/* Which updates the row that fetches read has, if a chunk has two weight rows. With one row the
 * state is always CURRENT.
 *
 *   state    the other row holds            next state
 *   CURRENT  older weights                  DELAYED: a commit issues a delayed update
 *                                           AHEAD: an update is issued before the commit
 *   DELAYED  the last committed update      CURRENT: the next commit, or a write of weights
 *   AHEAD    an update of the uncommitted   CURRENT: the commit
 *            step                           CARRIED: the attempt ends before the commit
 *   CARRIED  the same, of an earlier        CURRENT: the commit
 *            attempt
 *
 * Only policy DELAYED has DELAYED, and only EARLY has AHEAD and CARRIED. A gradient that is handed
 * in for a CARRIED chunk is dropped. */
enum cst_weight_rows { CST_ROWS_CURRENT, CST_ROWS_DELAYED, CST_ROWS_AHEAD, CST_ROWS_CARRIED };

struct cst_weight_row {
    enum cst_weight_holds holds; /* Contents of the row once all issued commands are done. */
    enum cst_weight_rows rows;
    bool second;      /* Fetches read the second weight row. */
    bool incomplete;  /* The update of the last committed step is in flight (versions.h). */
    uint64_t version; /* Incremented when a write to the weights or states is issued. */
    /* A command failed that was to change the weights or states, so their contents are unknown. */
    bool broken;
};

/* True if the chunk's update of the uncommitted step was issued. */
static inline bool cst_weight_row_is_early(const struct cst_weight_row *row)
{
    return row->rows == CST_ROWS_AHEAD || row->rows == CST_ROWS_CARRIED;
}

/* CST_EINVAL: gradients in weight rows are impossible with @config's pools. */
int cst_weight_row_admit(const struct cst_core_config *config, struct cst_err *err);

/* Weight rows of @chunk: side (the weight side): the one that fetches read; newest: the one with
 * all committed updates; target: the one that an update issued now writes. */
enum cst_row cst_weight_row_side(const struct cst_core *core, uint32_t chunk);
enum cst_row cst_weight_row_newest(const struct cst_core *core, uint32_t chunk);
enum cst_row cst_weight_row_target(const struct cst_core *core, uint32_t chunk);

/* @command, which was just issued, writes to the grad row of chunk @c. */
void cst_weight_row_begin_gradient(struct cst_core *core, uint32_t c, struct cst_command *command);

/* An update was issued: later commands see the new weights and states, and the weight row holds
 * weights again. */
void cst_weight_row_end_gradient(struct cst_chunk *chunk);

/* A write of weights or states was issued. @weights: it writes some master weights, and these
 * weights with them, or weights alone. */
void cst_weight_row_write(struct cst_chunk *chunk, bool weights);

/* The contents of the chunk's weights or states are unknown from now on. */
void cst_weight_row_break(struct cst_chunk *chunk);

/* Change the state of the chunk's rows to @state, which must follow the present one in the table
 * above. CURRENT: fetches read the row of the last update, which may still be in flight. */
void cst_weight_row_go(struct cst_core *core, uint32_t chunk, enum cst_weight_rows state);

/* Set kind, source and length of @command so that it brings the weights [@first, @first + @n_elems)
 * of weight row @row of chunk @c. */
void cst_weight_row_read(const struct cst_core *core, uint32_t c, enum cst_row row, uint64_t first,
                         uint64_t n_elems, struct cst_command *command);

/* A number that changes when a write to @row, or to what the row is made from, is issued. */
uint64_t cst_weight_row_version(const struct cst_core *core, uint32_t c, enum cst_row row);

/* CST_EUNSUPPORTED: the row holds something else, or will. CST_EBUSY: the row is being written. */
int cst_weight_row_check_read(const struct cst_core *core, uint32_t c, enum cst_row row,
                              struct cst_err *err);
int cst_weight_row_check_write(const struct cst_core *core, uint32_t c, enum cst_row row,
                               struct cst_err *err);

#endif
