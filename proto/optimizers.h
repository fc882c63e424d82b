/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the enums of cistern/optimizer.h, for command lines, replies and error messages. No
 * state; any thread. */
#ifndef CST_OPTIMIZERS_H
#define CST_OPTIMIZERS_H

#include "cistern/optimizer.h"

#include <stdint.h>

/* Names by number; NULL after the last one. */
extern const char *const cst_optimizer_names[CST_OPTIMIZER_COUNT + 1];         /* "adamw", ... */
extern const char *const cst_tensor_update_names[CST_TENSOR_UPDATE_COUNT + 1]; /* "auto", ... */
extern const char *const cst_masters_names[CST_MASTERS_COUNT + 1];             /* "fp32", ... */
extern const char *const cst_moments_names[CST_MOMENTS_COUNT + 1];             /* "fp32", ... */
extern const char *const cst_rounding_names[CST_ROUNDING_COUNT + 1]; /* "stochastic", ... */
extern const char *const cst_overlap_names[CST_OVERLAP_COUNT + 1];   /* "commit", ... */
extern const char *const cst_unused_names[CST_UNUSED_COUNT + 1];     /* "zero", ... */

/* Return the number of @name in @names, or the length of @names if it has no such name. */
uint32_t cst_name_find(const char *const *names, const char *name);

/* Default betas, which replace a 0 in hyper-parameters. */
static inline double cst_optimizer_beta1(void)
{
    return 0.9;
}

static inline double cst_optimizer_beta2(enum cst_optimizer optimizer)
{
    return optimizer == CST_OPTIMIZER_LION ? 0.99 : 0.999;
}

#endif
