/* SPDX-License-Identifier: Apache-2.0 */
/* What an optimizer is: one row for each, which the layout, the kernels, checkpoints and command
 * lines ask. Also the names of the enums of cistern/optimizer.h. No state; any thread. The list of
 * optimizers is valid in C and in CUDA. */
#ifndef CST_OPTIMIZERS_H
#define CST_OPTIMIZERS_H

#include "cistern/optimizer.h"

#include <stdbool.h>
#include <stdint.h>

/* Tests define these two macros to try optimizers that do not exist.
 *
 * The optimizers: X(name in enum cst_optimizer, name for people and prefix of the formulas in
 * kernels/math/formulas.h, fields of struct cst_optimizer_row that are not 0). */
#ifndef CST_OPTIMIZERS
#define CST_OPTIMIZERS(X)                                                                          \
    X(ADAMW, adamw, .n_moments = 2, .nans_spread = true)                                           \
    X(ADAM, adam, .n_moments = 2, .nans_spread = true)                                             \
    X(LION, lion, .n_moments = 1, .beta2 = 0.99)                                                   \
    X(SGD, sgd, .n_moments = 1, .beta1_may_be_0 = true)                                            \
    X(MUON, muon, .n_moments = 1, .of_matrices = true, .others = CST_OPTIMIZER_ADAMW)
#endif

/* Most moments of an optimizer. Each has a row in a chunk, so that another number is another
 * format of the job table (proto/table.h). */
#ifndef CST_MAX_MOMENTS
#define CST_MAX_MOMENTS 2
#endif

/* Bit i: moment number i of every optimizer that has it is at least 0. With mx8, it has the code
 * without a sign (kernels/math/mx8.h). */
#define CST_MOMENTS_UNSIGNED 0x2u

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

/* Names of the moments by number, as states and tensors of checkpoints have them: "exp_avg", ... */
extern const char *const cst_moment_names[CST_MAX_MOMENTS];

#ifndef __cplusplus

/* What is special about an optimizer. */
struct cst_optimizer_row {
    unsigned n_moments; /* Moments of an element, 1 to CST_MAX_MOMENTS. */
    /* The optimizer updates only matrices, in directions that are computed from whole matrices
     * before (kernels/math/muon.h). Chunks of these matrices have a scratch (proto/muon.h). False:
     * an element's update depends on nothing but the element. */
    bool of_matrices;
    enum cst_optimizer others; /* of_matrices: the optimizer of the job's other tensors. */
    bool nans_spread;          /* A NaN in a new moment makes the new weight a NaN, too. */
    bool beta1_may_be_0;       /* A negative beta1 in hyper-parameters means 0: no momentum. */
    double beta2;              /* Default of beta2; 0: CST_OPTIMIZER_BETA2. */
};

static const struct cst_optimizer_row cst_optimizer_rows[CST_OPTIMIZER_COUNT] = {
#define CST_OPTIMIZER_ROW(name, prefix, ...) [CST_OPTIMIZER_##name] = {__VA_ARGS__},
    CST_OPTIMIZERS(CST_OPTIMIZER_ROW)
#undef CST_OPTIMIZER_ROW
};

/* Return the number of moments of the elements that @optimizer updates. */
static inline unsigned cst_optimizer_n_moments(enum cst_optimizer optimizer)
{
    return cst_optimizer_rows[optimizer].n_moments;
}

/* Return whether @optimizer updates matrices as a whole (struct cst_optimizer_row). */
static inline bool cst_optimizer_of_matrices(enum cst_optimizer optimizer)
{
    return cst_optimizer_rows[optimizer].of_matrices;
}

/* Return the optimizer that updates a tensor in a job of @optimizer. @matrix: the tensor is one of
 * the matrices that an optimizer of matrices updates. */
static inline enum cst_optimizer cst_optimizer_of(enum cst_optimizer optimizer, bool matrix)
{
    return cst_optimizer_of_matrices(optimizer) && !matrix ? cst_optimizer_rows[optimizer].others
                                                           : optimizer;
}

/* Default betas, which replace a 0 in hyper-parameters. */
#define CST_OPTIMIZER_BETA1 0.9
#define CST_OPTIMIZER_BETA2 0.999

static inline double cst_optimizer_beta2(enum cst_optimizer optimizer)
{
    double beta2 = cst_optimizer_rows[optimizer].beta2;

    return beta2 != 0 ? beta2 : CST_OPTIMIZER_BETA2;
}

#endif

#endif
