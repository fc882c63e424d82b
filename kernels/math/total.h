/* SPDX-License-Identifier: Apache-2.0 */
/* Totals of contributions in rank order, for collectives of ranks (client/comm). For n elements and
 * n_src contributions:
 *
 *   s = fp32(src[0]); s = s + fp32(src[1]); ...   each sum is rounded to fp32
 *   dst = s                                       bf16: rounded to nearest even
 *
 * Every NaN is stored as CST_TOTAL_NAN (bf16: its upper half), for the reason that
 * kernels/math/update.h gives. Unlike kernels/math/reduce.h, no sum of squares is taken. */
#ifndef CST_TOTAL_H
#define CST_TOTAL_H

#include <stddef.h>
#include <stdint.h>

#define CST_TOTAL_NAN 0x7fc00000u /* Bit pattern of every NaN in a total. */

/* Sum @n elements of @n_src sources, at least one, into @dst. @dst may be one of the sources; in
 * all other cases the rows do not overlap. Rows may begin at any whole element. */
typedef void (*cst_total_fp32_fn)(size_t n, uint32_t n_src, const float *const *src, float *dst);
typedef void (*cst_total_bf16_fn)(size_t n, uint32_t n_src, const uint16_t *const *src,
                                  uint16_t *dst);

/* The variants of an instruction set. */
struct cst_totals {
    cst_total_fp32_fn fp32;
    cst_total_bf16_fn bf16;
};

/* Return the fastest variants that this processor supports. All of them produce the same bits. Any
 * thread. */
struct cst_totals cst_totals_get(void);

void cst_total_fp32_ref(size_t n, uint32_t n_src, const float *const *src, float *dst);
void cst_total_fp32_avx2(size_t n, uint32_t n_src, const float *const *src, float *dst);
void cst_total_fp32_avx512(size_t n, uint32_t n_src, const float *const *src, float *dst);
void cst_total_fp32_neon(size_t n, uint32_t n_src, const float *const *src, float *dst);

void cst_total_bf16_ref(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);
void cst_total_bf16_avx2(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);
void cst_total_bf16_avx512(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);
void cst_total_bf16_neon(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst);

#endif
