/* SPDX-License-Identifier: Apache-2.0 */
/* Sum of bf16 contributions in rank order, and the sum of squares of the result. For n elements and
 * n_src contributions:
 *
 *   s = fp32(src[0]); s = s + fp32(src[1]); ...   each sum is rounded to fp32
 *   dst = bf16(s)                                 rounded to nearest even
 *
 * Without a source, dst is zero. With one source, dst has the bits of the source, and a NaN is made
 * quiet. With two or more, every NaN is stored as CST_REDUCE_NAN, for the reason that
 * kernels/math/update.h gives.
 *
 * The sum of squares is taken over x = dst as fp32, in double, in 16 lanes. i is counted from the
 * start of the tile. The lanes are added in a tree at the end:
 *
 *   lane[i mod 16] = fma(x, x, lane[i mod 16])
 *   l[j] += l[j + 8]; l[j] += l[j + 4]; l[j] += l[j + 2]; l[j] += l[j + 1]
 *
 * The square of a bf16 never overflows a double. The sum is therefore finite exactly when every
 * gradient is. A NaN sum is the positive quiet NaN without payload. */
#ifndef CST_REDUCE_H
#define CST_REDUCE_H

#include <stddef.h>
#include <stdint.h>

#define CST_REDUCE_NAN 0x7fc0u /* Bit pattern of a NaN that is the result of an addition. */

/* Sum the sources into @dst and return the sum of squares. @dst may be one of the sources. @n is at
 * most CST_TILE_ELEMS. Rows may begin at any whole element. */
typedef double (*cst_reduce_fn)(size_t n, uint32_t n_src, const uint16_t *const *src,
                                uint16_t *dst);

/* The variants of cst_reduce_fn for each instruction set. */
double cst_reduce_ref(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);
double cst_reduce_avx2(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);
double cst_reduce_avx512(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);
double cst_reduce_neon(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);

#endif
