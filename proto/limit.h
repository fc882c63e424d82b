/* SPDX-License-Identifier: Apache-2.0 */
/* How large gradients may be for an update to take them. One test for whole steps (offload/clip.h)
 * and for tiles (`guard` of UPDATE), on hosts and GPUs; it only compares, and leaves gradients
 * alone.
 *
 * No scaled gradient g is larger than the norm of those that it is among, so the norm's limit is
 * that of each: |g| <= 2^63. All that kernels/update.h computes of such gradients, step after step,
 * then stays finite in fp32 (< 2^128) in every format of the moments:
 *
 *   g * g, v         v is a mean of squares: at most 2^126 but for roundings, which with a beta2
 * next to 1 add up to less than twice that g - m, m         m is a mean of gradients: at most 2^64;
 * SGD's m a sum: at most 2^63 / (1 - beta1)
 *
 * The limit is for the squares; optimizers without any have the same one. Clipping brings g below
 * it whatever the gradients were, as long as they are finite. */
#ifndef CST_LIMIT_H
#define CST_LIMIT_H

#include <stdbool.h>

#define CST_LIMIT_SQUARES 0x1p126 /* of the scaled norm, squared */

/* @sum_squares: of gradients as handed in; @factor: what the update multiplies them with. False:
 * one is NaN, infinite, or scaled may be too large. */
static inline bool cst_limit_holds(double sum_squares, float factor)
{
    return sum_squares * ((double)factor * (double)factor) <= CST_LIMIT_SQUARES;
}

#endif
