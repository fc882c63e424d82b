/* SPDX-License-Identifier: Apache-2.0 */
/* The factor by which the update multiplies gradients, from their norm. Used by the core and by the
 * reference worker's local store, so that both get the same bits. Pure. */
#ifndef CST_CLIP_H
#define CST_CLIP_H

#include "proto/grad_limit.h"

#include <math.h>
#include <stdbool.h>

struct cst_clip {
    double grad_norm; /* L2 norm of grad_scale x gradient; NaN or infinite if a gradient is. */
    float clip;   /* min(1, clip_norm / (grad_norm + 1e-6)), as torch.nn.utils.clip_grad_norm_. */
    float factor; /* grad_scale x clip: the factor for UPDATE. */
    /* False: skip the step, because a gradient is NaN, infinite or scaled too large
     * (proto/grad_limit.h). */
    bool finite;
};

/* Compute the clip factor. @sum_squares: of the reduced bf16 gradients. @clip_norm 0: no
 * clipping. */
static inline struct cst_clip cst_clip_factor(double sum_squares, double grad_scale,
                                              double clip_norm)
{
    struct cst_clip c = {.clip = 1.0f};

    c.grad_norm = fabs(grad_scale) * sqrt(sum_squares);
    if (isfinite(c.grad_norm) && clip_norm > 0 && clip_norm < c.grad_norm + 1e-6) {
        c.clip = (float)(clip_norm / (c.grad_norm + 1e-6));
    }
    c.factor = (float)(grad_scale * (double)c.clip);
    c.finite = cst_grad_limit_holds(sum_squares, c.factor);
    return c;
}

#endif
