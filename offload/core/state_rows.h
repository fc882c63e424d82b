/* SPDX-License-Identifier: Apache-2.0 */
/* What states.c and states_write.c ask of the rows of states. Pure. */
#ifndef CST_STATE_ROWS_H
#define CST_STATE_ROWS_H

#include "offload/base/command.h"
#include "offload/base/event.h"

struct cst_core;

/* True if the row has another format in the arena than in a staging segment, where moments are
 * fp32. */
bool cst_state_is_coded(const struct cst_core *core, enum cst_row row);

/* The type of the tensors of chunk @c; whether it has @row, and split master weights. */
enum cst_dtype cst_state_dtype(const struct cst_core *core, uint32_t c);
bool cst_state_has_row(const struct cst_core *core, uint32_t c, int row);
bool cst_state_is_split(const struct cst_core *core, uint32_t c);

/* Let @command encode, decode or clear the elements [@first, @first + @n_elems) of a moments row of
 * chunk @c. Returns the place where the row begins. */
struct cst_place cst_state_code(const struct cst_core *core, uint32_t c, enum cst_row row,
                                uint64_t first, uint64_t n_elems, struct cst_command *command);

/* The place of the elements [@first, ...) of a moments row of chunk @c that is not fp32, as
 * cst_table_moment_bytes lays it out, or of their exponents. */
struct cst_place cst_state_raw_place(const struct cst_core *core, uint32_t c, enum cst_row row,
                                     bool exponents, uint64_t first);

/* True if elements of @row of chunk @c, which are not @raw, have another format in a staging
 * segment, and are converted in a buffer of host memory. */
bool cst_state_is_staged(const struct cst_core *core, uint32_t c, enum cst_row row, bool raw);

/* Check that row and range of a READ or WRITE exist, and that the job's states are intact. */
int cst_state_check_io(const struct cst_core *core, const struct cst_event *event,
                       struct cst_err *err);

#endif
