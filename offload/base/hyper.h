/* SPDX-License-Identifier: Apache-2.0 */
/* Hyper-parameters of a step: validity, and equality between ranks. */
#ifndef CST_HYPER_H
#define CST_HYPER_H

#include "offload/base/event.h"

struct cst_core;

/* CST_EINVAL, with the name and the value of a field that is out of range. */
int cst_hyper_check(const struct cst_hyper *hyper, struct cst_err *err);

/* CST_EMISMATCH if any bit differs: "lr is 1 in rank 0 and 2 in rank 1". @in_a and @in_b name the
 * two. */
int cst_hyper_same(const struct cst_hyper *a, const struct cst_hyper *b, const char *in_a,
                   const char *in_b, struct cst_err *err);

/* Take the factors of @event, a STEP or PREPARE that is accepted. */
void cst_hyper_take_factors(struct cst_core *core, const struct cst_event *event);

/* Take the factors of the update with the mark @mark from the job table, which must be there. */
void cst_hyper_read_factors(struct cst_core *core, uint64_t mark);

/* Write the factors to the job table, before the first update with the mark @mark. */
void cst_hyper_write_factors(const struct cst_core *core, uint64_t mark);

#endif
