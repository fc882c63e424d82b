/* Reduction into an fp32 gradient, for jobs with micro-batches: the bf16 contributions of one
 * micro-batch are summed and that sum is stored (the first of a step) or added to the row (those
 * that follow). Shapes: n elements, n_src contributions.
 *
 *   s = fp32(src[0]); s = s + fp32(src[1]); ...   (each sum rounded to fp32; no src: 0)
 *   x = accumulate ? dst + s : s                  (rounded to fp32)
 *   dst = x, a NaN as CST_ACCUMULATE_NAN          (as in kernels/adamw.h and for the same reason)
 *
 * The contributions are summed before the row is added, so that the sum can be made elsewhere: a
 * GPU makes s, the processor adds it to the row (the second function), and the bits are the same.
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

/* The same where the contributions were summed already: s = sum[i]. */
typedef double (*cst_accumulate_sum_fn)(size_t n, const float *sum, bool accumulate, float *dst);

double cst_accumulate_ref(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                          float *dst);
double cst_accumulate_avx2(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                           float *dst);
double cst_accumulate_avx512(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                             float *dst);

double cst_accumulate_sum_ref(size_t n, const float *sum, bool accumulate, float *dst);
double cst_accumulate_sum_avx2(size_t n, const float *sum, bool accumulate, float *dst);
double cst_accumulate_sum_avx512(size_t n, const float *sum, bool accumulate, float *dst);

#endif
