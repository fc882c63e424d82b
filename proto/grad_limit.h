/* SPDX-License-Identifier: Apache-2.0 */
/* Limit of the gradients that an update accepts. The same test is used for whole steps
 * (offload/base/clip.h) and for tiles (`guard` of UPDATE), on hosts and GPUs. It only compares; it
 * does not change gradients.
 *
 * A single gradient is no larger than the norm of a set that contains it. Hence the limit of the
 * norm also limits each scaled gradient g: |g| <= 2^63. Everything that kernels/math/update.h
 * computes from such gradients, in any number of steps, then stays finite in fp32 (< 2^128) with
 * every format of the moments:
 *
 *   g * g, v       v is a mean of squares: at most 2^126, except for roundings; with beta2 close
 *                  to 1 they can add up, to less than twice that
 *   g - m, m       m is a mean of gradients: at most 2^64; SGD's m is a sum: at most
 *                  2^63 / (1 - beta1)
 *
 * The limit is needed for the squares; optimizers without squares have the same limit. Clipping
 * brings every finite gradient below it. */
#ifndef CST_GRAD_LIMIT_H
#define CST_GRAD_LIMIT_H

#include <stdbool.h>

#define CST_GRAD_LIMIT_SQUARES 0x1p126 /* Limit of the squared norm of the scaled gradients. */

/* @sum_squares: sum of squares of the gradients as handed in; @factor: the update multiplies
 * gradients by it. False: a gradient is NaN, infinite, or may be too large when scaled. */
static inline bool cst_grad_limit_holds(double sum_squares, float factor)
{
    return sum_squares * ((double)factor * (double)factor) <= CST_GRAD_LIMIT_SQUARES;
}

#endif
