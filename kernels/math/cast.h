/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion between bf16 and fp32. A bf16 value is the upper half of an fp32 value. Rounding is to
 * nearest even by integer arithmetic. Subnormals are kept. A NaN is truncated and made quiet (bits
 * | 0x0040), with its sign and upper payload. */
#ifndef CST_CAST_H
#define CST_CAST_H

#ifdef __FAST_MATH__
#error "the kernels need IEEE arithmetic, the same bits everywhere: no -ffast-math and no -Ofast"
#endif

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Convert one value. The conversion is exact. */
static inline float cst_bf16_to_fp32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round one value to nearest even. */
static inline uint16_t cst_fp32_to_bf16(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((u >> 16) | 0x0040u);
    }
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Round @n values of @src to bf16. Rows may begin at any whole element and do not overlap. */
typedef void (*cst_cast_fn)(size_t n, const float *src, uint16_t *dst);
/* Convert @n values of @src to fp32. Rows may begin at any whole element and do not overlap. */
typedef void (*cst_upcast_fn)(size_t n, const uint16_t *src, float *dst);
/* Convert @n values of @src to fp32 in @fp32 and round these to bf16 in @bf16: NaNs become quiet,
 * and other values stay. The stores bypass the cache where rows are aligned. Rows may begin at any
 * whole element and do not overlap. When the function returns, its stores are ordered before later
 * ones of the thread. */
typedef void (*cst_expand_fn)(size_t n, const uint16_t *src, float *fp32, uint16_t *bf16);

/* The variants of these functions for each instruction set. */
void cst_cast_ref(size_t n, const float *src, uint16_t *dst);
void cst_cast_avx2(size_t n, const float *src, uint16_t *dst);
void cst_cast_avx512(size_t n, const float *src, uint16_t *dst);
void cst_cast_neon(size_t n, const float *src, uint16_t *dst);
void cst_upcast_ref(size_t n, const uint16_t *src, float *dst);
void cst_upcast_avx2(size_t n, const uint16_t *src, float *dst);
void cst_upcast_avx512(size_t n, const uint16_t *src, float *dst);
void cst_upcast_neon(size_t n, const uint16_t *src, float *dst);
void cst_expand_ref(size_t n, const uint16_t *src, float *fp32, uint16_t *bf16);
void cst_expand_avx2(size_t n, const uint16_t *src, float *fp32, uint16_t *bf16);
void cst_expand_avx512(size_t n, const uint16_t *src, float *fp32, uint16_t *bf16);
void cst_expand_neon(size_t n, const uint16_t *src, float *fp32, uint16_t *bf16);

#endif
