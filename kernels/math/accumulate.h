/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction into an fp32 gradient row, for fp32 tensors and for jobs with micro-batches. The
 * contributions of a micro-batch are summed into the row (first micro-batch of a step) or added to
 * the values in the row (later micro-batches). They are bf16, or fp32 as fp32 tensors have them.
 * For n elements and n_src contributions:
 *
 *   x = accumulate ? dst + fp32(src[0]) : fp32(src[0])
 *   x = x + fp32(src[1]); ...          each sum is rounded to fp32; without src, x is dst or 0
 *   dst = x                            a NaN is stored as CST_ACCUMULATE_NAN
 *
 * Every NaN is stored with one bit pattern, for the reason that kernels/math/update.h gives.
 *
 * The value of the row is the first operand of the sum. The result therefore does not depend on how
 * the sources are divided among calls. Where a pool has too few blocks, the contributions of the
 * first ranks are added before those of the last ranks exist (offload/gradient/spill.c), with the
 * same bits.
 *
 * Another device (a GPU) may have made the first sum of a step. It is then stored in the row as one
 * fp32 contribution.
 *
 * The sum of squares is taken over x = dst as in kernels/math/reduce.h: in double, in 16 lanes,
 * lane[i mod 16] = fma(x, x, lane), followed by the tree. The square of an fp32 value is exact in a
 * double and neither overflows nor underflows (2^-298 to 2^256). The sum is therefore finite
 * exactly when every gradient is finite. */
#ifndef CST_ACCUMULATE_H
#define CST_ACCUMULATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_ACCUMULATE_NAN 0x7fc00000u /* Bit pattern of every NaN in an fp32 gradient row. */

/* Sum @n_src contributions into @dst, or add them to @dst if @accumulate is true. Without
 * @accumulate, @dst is only written. Returns the sum of squares of the result. @dst and the sources
 * do not overlap. @n is at most CST_TILE_ELEMS. Rows may begin at any whole element. */
typedef double (*cst_accumulate_fn)(size_t n, uint32_t n_src, const uint16_t *const *src,
                                    bool accumulate, float *dst);

/* The same for fp32 contributions. @dst may be one of the sources. */
typedef double (*cst_accumulate_fp32_fn)(size_t n, uint32_t n_src, const float *const *src,
                                         bool accumulate, float *dst);

/* The variants of cst_accumulate_fn for each instruction set. */
double cst_accumulate_ref(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                          float *dst);
double cst_accumulate_avx2(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                           float *dst);
double cst_accumulate_avx512(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                             float *dst);
double cst_accumulate_neon(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulate,
                           float *dst);

/* The variants of cst_accumulate_fp32_fn for each instruction set. */
double cst_accumulate_fp32_ref(size_t n, uint32_t n_src, const float *const *src, bool accumulate,
                               float *dst);
double cst_accumulate_fp32_avx2(size_t n, uint32_t n_src, const float *const *src, bool accumulate,
                                float *dst);
double cst_accumulate_fp32_avx512(size_t n, uint32_t n_src, const float *const *src,
                                  bool accumulate, float *dst);
double cst_accumulate_fp32_neon(size_t n, uint32_t n_src, const float *const *src, bool accumulate,
                                float *dst);

#endif
