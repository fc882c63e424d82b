/* SPDX-License-Identifier: Apache-2.0 */
/* Sum of bf16 contributions in rank order, with the sum of squares of the result. Shapes: n
 * elements, n_src contributions.
 *
 *   s = fp32(src[0]); s = s + fp32(src[1]); ...   (each sum rounded to fp32)
 *   dst = bf16(s)                                 (nearest even)
 *
 * No src: zero. One src: its own bits, NaN quieted. Two or more: a NaN is stored as CST_REDUCE_NAN,
 * as in kernels/update.h and for the same reason.
 *
 * Sum of squares over x = dst as fp32, in double, 16 lanes: lane[i mod 16] = fma(x, x, lane), i
 * counted from the tile's start; then lanes are added in a tree: l[j] += l[j + 8],
 * l[j] += l[j + 4], l[j] += l[j + 2], l[j] += l[j + 1]. A bf16 square never overflows a double, so
 * the sum is finite exactly when every gradient is. A NaN sum is the positive quiet NaN without
 * payload. */
#ifndef CST_REDUCE_H
#define CST_REDUCE_H

#include <stddef.h>
#include <stdint.h>

#define CST_REDUCE_NAN 0x7fc0u /* bits of a NaN that came out of an addition */

/* Returns the sum of squares. dst may be one of the sources. n at most CST_TILE_ELEMS. Any
 * alignment of whole elements. */
typedef double (*cst_reduce_fn)(size_t n, uint32_t n_src, const uint16_t *const *src,
                                uint16_t *dst);

double cst_reduce_ref(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);
double cst_reduce_avx2(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);
double cst_reduce_avx512(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);

#endif
