/* SPDX-License-Identifier: Apache-2.0 */
/* How a job's states are kept and updated. Installed; numbers are the wire's. Formulas:
 * kernels/update.h. */
#ifndef CST_PROTO_OPTIMIZER_H
#define CST_PROTO_OPTIMIZER_H

enum cst_optimizer {
    CST_OPTIMIZER_ADAMW = 0, /* decoupled weight decay; two moments */
    CST_OPTIMIZER_ADAM = 1,  /* decay added to the gradient; two moments */
    CST_OPTIMIZER_LION = 2,  /* sign of an interpolation, decoupled decay; one moment (exp_avg) */
    CST_OPTIMIZER_SGD = 3,   /* momentum beta1, decay added to the gradient; one moment (exp_avg) */
    CST_OPTIMIZER_COUNT
};

/* Format of the rows exp_avg and exp_avg_sq. Master weights are always fp32. */
enum cst_moments {
    CST_MOMENTS_FP32 = 0, /* 4 bytes */
    CST_MOMENTS_BF16 = 1, /* 2 bytes */
    CST_MOMENTS_MX8 =
        2, /* 33/32 bytes: 8-bit floats, 32 of them with one power of two (kernels/mx8.h) */
    CST_MOMENTS_COUNT
};

/* How moments that are not fp32 are rounded. */
enum cst_rounding {
    CST_ROUNDING_STOCHASTIC = 0, /* up with the probability that keeps the mean; random numbers by
                                    counter, the same on every device */
    CST_ROUNDING_NEAREST = 1, /* even. exp_avg_sq then stands still where a step changes it by less
                                 than half of its last bit */
    CST_ROUNDING_COUNT
};

/* When chunks are updated. */
enum cst_overlap {
    CST_OVERLAP_COMMIT = 0, /* when the step is committed, under the next forward */
    CST_OVERLAP_EARLY =
        1, /* as soon as its gradient is complete, under the backward, if the step's
            * hyper-parameters were told in advance (cst_prepare_step) and do not clip; else as
            * COMMIT. A second weight row: 2 bytes per parameter more */
    CST_OVERLAP_DELAYED =
        2, /* under the next step, which still uses the weights before it (one-step delayed update).
            * Not the same training: see the README before using it. A second weight row too */
    CST_OVERLAP_COUNT
};

#endif
