/* Sum of bf16 contributions in rank order, with the sum of squares of the result. Shapes: n elements, n_src contributions.
 *
 *   s = fp32(src[0]); s = s + fp32(src[1]); ...      (each sum rounded to fp32; one src: its own bits, NaN quieted)
 *   dst = bf16(s)                                    (nearest even; no src: zero)
 *
 * Sum of squares over x = dst as fp32, in double, 16 lanes: lane[i mod 16] = fma(x, x, lane), i counted from the tile's
 * start; then lanes are added in a tree: l[j] += l[j + 8], l[j] += l[j + 4], += l[j + 2], += l[j + 1]. A bf16 square never
 * overflows a double, so the sum is finite exactly when every gradient is. */
#ifndef CST_REDUCE_H
#define CST_REDUCE_H

#include <stddef.h>
#include <stdint.h>

/* Returns the sum of squares. dst may be one of the sources. n at most CST_TILE_ELEMS. Any alignment of whole elements. */
typedef double (*cst_reduce_fn)(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);

double cst_reduce_ref(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);
double cst_reduce_avx2(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);
double cst_reduce_avx512(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);

#endif
