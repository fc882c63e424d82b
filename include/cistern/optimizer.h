/* SPDX-License-Identifier: Apache-2.0 */
/* Choices of how a job's states are stored and updated. kernels/math/update.h has the formulas.
 * This header is installed. The numbers are part of the wire protocol. */
#ifndef CST_PROTO_OPTIMIZER_H
#define CST_PROTO_OPTIMIZER_H

enum cst_optimizer {
    CST_OPTIMIZER_ADAMW = 0, /* Decoupled weight decay; two moments. */
    CST_OPTIMIZER_ADAM = 1,  /* Decay is added to the gradient; two moments. */
    /* Sign of an interpolation between moment and gradient, decoupled decay; one moment
     * (exp_avg). */
    CST_OPTIMIZER_LION = 2,
    /* Momentum is beta1, decay is added to the gradient; one moment (exp_avg). */
    CST_OPTIMIZER_SGD = 3,
    /* Matrices by Muon: the orthogonalised momentum, decoupled decay; one moment (exp_avg). All
     * other tensors as CST_OPTIMIZER_ADAMW, with two moments. See enum cst_tensor_update. */
    CST_OPTIMIZER_MUON = 4,
    CST_OPTIMIZER_COUNT
};

/* How a job of CST_OPTIMIZER_MUON updates a tensor. The other optimizers ignore it. */
enum cst_tensor_update {
    /* By Muon, if the tensor is a hidden matrix: it has two dimensions, or three (a stack of
     * matrices, such as one for each expert), all its matrices have at least two rows and two
     * columns, and neither the first nor the last operator uses it. Otherwise by AdamW. */
    CST_TENSOR_UPDATE_AUTO = 0,
    CST_TENSOR_UPDATE_ADAMW = 1, /* By AdamW. */
    CST_TENSOR_UPDATE_MUON = 2,  /* By Muon. The tensor must have two or three dimensions. */
    CST_TENSOR_UPDATE_COUNT
};

/* Where the bits of the master weights, which are always fp32, are stored. */
enum cst_masters {
    /* In a row of their own: 4 bytes per element in addition to the bf16 weight. */
    CST_MASTERS_FP32 = 0,
    /* The bf16 weight is the upper half, and the lower half has a row of its own: 2 bytes per
     * element in addition to the weight. Weights are then rounded to nearest with ties away from
     * zero instead of ties to even (kernels/math/split.h). */
    CST_MASTERS_SPLIT = 1,
    CST_MASTERS_COUNT
};

/* Format of the rows exp_avg and exp_avg_sq. */
enum cst_moments {
    CST_MOMENTS_FP32 = 0, /* 4 bytes per element. */
    CST_MOMENTS_BF16 = 1, /* 2 bytes per element. */
    /* 33/32 bytes per element: 8-bit floats, with a common power of two for each block of 32
     * (kernels/math/mx8.h). */
    CST_MOMENTS_MX8 = 2,
    CST_MOMENTS_COUNT
};

/* Rounding of moments that are not fp32. */
enum cst_rounding {
    /* Up or down at random, with the probabilities that keep the mean. The random numbers come from
     * a counter and are the same on every device. */
    CST_ROUNDING_STOCHASTIC = 0,
    /* To the nearest, ties to even. A step that would change exp_avg_sq by less than half a
     * unit in the last place then does not change it. */
    CST_ROUNDING_NEAREST = 1,
    CST_ROUNDING_COUNT
};

/* The time at which chunks are updated. */
enum cst_overlap {
    /* After the commit of the step, during the next forward pass. */
    CST_OVERLAP_COMMIT = 0,
    /* As soon as the chunk's gradient is complete, during the backward pass. Conditions: the worker
     * has called cst_prepare_step, with clip_norm 0. Otherwise as CST_OVERLAP_COMMIT.
     * Needs a second weight row: 2 bytes more per bf16 parameter, 4 per fp32 parameter. */
    CST_OVERLAP_EARLY = 1,
    /* During the whole next step, which still uses the weights from before the update (one-step
     * delayed update). This changes the training: read cistern-optimizer(7) before using it. Needs
     * a second weight row: 2 bytes more per bf16 parameter, 4 per fp32 parameter. */
    CST_OVERLAP_DELAYED = 2,
    CST_OVERLAP_COUNT
};

/* What a step does with a tensor of which no rank of its group has written a gradient. */
enum cst_unused {
    /* Its gradient is zero: moments and weight decay change it. */
    CST_UNUSED_ZERO = 0,
    /* The tensor is skipped, as the optimizers of PyTorch skip parameters without a gradient: its
     * states stay as they are, and its bias corrections count the steps that it has made. Not with
     * CST_OVERLAP_EARLY, and not in a model that is cut into stages. */
    CST_UNUSED_SKIP = 1,
    CST_UNUSED_COUNT
};

#endif
