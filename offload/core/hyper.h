/* SPDX-License-Identifier: Apache-2.0 */
/* Hyper-parameters of a step: validity, and equality between ranks. */
#ifndef CST_HYPER_H
#define CST_HYPER_H

#include "offload/core/core.h"

/* CST_EINVAL, with the name and the value of a field that is out of range. */
int cst_hyper_check(const struct cst_hyper *hyper, struct cst_err *err);

/* CST_EMISMATCH if any bit differs: "lr is 1 in rank 0 and 2 in rank 1". @in_a and @in_b name the
 * two. */
int cst_hyper_same(const struct cst_hyper *a, const struct cst_hyper *b, const char *in_a,
                   const char *in_b, struct cst_err *err);

#endif
