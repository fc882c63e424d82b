/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction into an fp32 gradient, for jobs with micro-batches: bf16 contributions are summed into
 * the row (the first of a step) or added to what is there (those that follow). Shapes: n elements,
 * n_src contributions.
 *
 *   x = accumulate ? dst + fp32(src[0]) : fp32(src[0])
 *   x = x + fp32(src[1]); ...                     (each sum rounded to fp32; no src: dst, or 0)
 *   dst = x, a NaN as CST_ACCUMULATE_NAN          (as in kernels/update.h and for the same reason)
 *
 * The row comes first, so that it does not matter which sources are added by one call and which by
 * the next: where a pool is short of blocks the first ranks' contributions go in before the last
 * ones have come (offload/staging.c), and the bits are the same.
 *
 * The first sum of a step may be made elsewhere, by a GPU: the second function stores x = sum.
 *
 * Sum of squares over x = dst as in kernels/reduce.h: in double, 16 lanes, lane[i mod 16] = fma(x,
 * x, lane), then the tree. The square of an fp32 is exact in a double and neither overflows nor
 * vanishes (2^-298 to 2^256), so the sum is finite exactly when every gradient is. */
#ifndef CST_ACCUMULATE_H
#define CST_ACCUMULATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_ACCUMULATE_NAN 0x7fc00000u /* bits of the only NaN in fp32 gradients */

/* Returns the sum of squares. @dst and the sources do not overlap. n at most CST_TILE_ELEMS. Any
 * alignment of whole elements. Without @accumulate @dst is only written. */
typedef double (*cst_accumulate_fn)(size_t n, uint32_t n_src, const uint16_t *const *src,
                                    bool accumulate, float *dst);

/* The same where the contributions were summed already: x = sum[i]. */
typedef double (*cst_accumulate_sum_fn)(size_t n, const float *sum, float *dst);

double cst_accumulate_ref(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                          float *dst);
double cst_accumulate_avx2(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                           float *dst);
double cst_accumulate_avx512(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                             float *dst);

double cst_accumulate_sum_ref(size_t n, const float *sum, float *dst);
double cst_accumulate_sum_avx2(size_t n, const float *sum, float *dst);
double cst_accumulate_sum_avx512(size_t n, const float *sum, float *dst);

#endif
