/* SPDX-License-Identifier: Apache-2.0 */
/* The vector type of one build of the layers' arithmetic. layers_impl.c and attention_impl.c are
 * compiled once per instruction set (plain, AVX2, AVX-512, NEON) and use vectors of that set's
 * width. Results may therefore differ between kinds of CPUs, but never between runs. All lengths
 * are multiples of GPT_SIMD_ELEMS, so that there are no partial vectors. Only *_impl.c include this
 * file. */
#ifndef GPT_SIMD_H
#define GPT_SIMD_H

#include "client/gpt/layers.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>
#define GPT_ISA(name) name##_avx512
#define GPT_ISA_NAME "avx512"
#define VL 16 /* floats in a vector */
#define TILE_COLUMNS 4
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define GPT_ISA(name) name##_avx2
#define GPT_ISA_NAME "avx2"
#define VL 8
#define TILE_COLUMNS 2
#elif defined(GPT_NEON)
#include <arm_neon.h>
#define GPT_ISA(name) name##_neon
#define GPT_ISA_NAME "neon"
#define VL 4
#define TILE_COLUMNS 4
#else
#define GPT_ISA(name) name##_plain
#define GPT_ISA_NAME "plain"
#define VL 4
#define TILE_COLUMNS 2
#endif

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define INLINE static inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
typedef uint32_t vu __attribute__((vector_size(4 * VL)));
typedef uint16_t vh __attribute__((vector_size(2 * VL)));

INLINE vf load(const float *p)
{
    vf v;

    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

INLINE vf splat(float x)
{
    return x - (vf){0};
}

/* a * b + c, rounded once where the instruction set has a fused operation. */
INLINE vf fma_(vf a, vf b, vf c)
{
#if VL == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VL == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(GPT_NEON)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

INLINE vf select_(vi mask, vf yes, vf no)
{
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

/* The maximum; the second operand where either is NaN, so that max_(limit, x) keeps a NaN in x. */
INLINE vf max_(vf a, vf b)
{
#if VL == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VL == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return select_(a > b, a, b);
#endif
}

INLINE vf min_(vf a, vf b)
{
#if VL == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif VL == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return select_(a < b, a, b);
#endif
}

INLINE float sum_lanes(vf v)
{
    float a[VL];

    store(a, v);
    UNROLL for (size_t half = VL / 2; half != 0; half /= 2)
    {
        for (size_t i = 0; i < half; i++) {
            a[i] += a[i + half];
        }
    }
    return a[0];
}

INLINE float max_lanes(vf v)
{
    float a[VL];

    store(a, v);
    UNROLL for (size_t half = VL / 2; half != 0; half /= 2)
    {
        for (size_t i = 0; i < half; i++) {
            a[i] = a[i] > a[i + half] ? a[i] : a[i + half];
        }
    }
    return a[0];
}

INLINE vf load_bf16(const uint16_t *p)
{
    vh h;

    memcpy(&h, p, sizeof h);
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

/* Round to nearest even by integer arithmetic and keep NaN, as cst_fp32_to_bf16 does. */
INLINE void store_bf16(uint16_t *p, vf v)
{
    vu u = (vu)v;
    vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    vu quiet = (u >> 16) | 0x0040u;
    vu nan = (vu)(v != v);
    vh h = __builtin_convertvector((rounded & ~nan) | (quiet & nan), vh);

    memcpy(p, &h, sizeof h);
}

/* Store element @i of an operand of a product, which is bf16 or fp32. */
INLINE void store_operand(void *p, size_t i, vf v, bool bf16)
{
    if (bf16) {
        store_bf16((uint16_t *)p + i, v);
    } else {
        store((float *)p + i, v);
    }
}

INLINE vf load_operand(const void *p, size_t i, bool bf16)
{
    return bf16 ? load_bf16((const uint16_t *)p + i) : load((const float *)p + i);
}

/* e^x within 2 units in the last place (Cephes' polynomial), for x clamped to -87..88. NaN stays
 * NaN. */
INLINE vf exp_(vf x)
{
    const vf magic = splat(12582912.0f); /* 1.5 x 2^23: adding it rounds to an integer */
    vf n, r, p;
    vi e;

    x = max_(splat(-87.0f), x);
    x = min_(splat(88.0f), x);
    p = fma_(x, splat(1.44269504f), magic);
    e = (vi)p - (vi)magic;
    n = p - magic;
    r = fma_(n, splat(-0.693359375f), x);
    r = fma_(n, splat(2.12194440e-4f), r);
    p = splat(1.9875691500e-4f);
    p = fma_(p, r, splat(1.3981999507e-3f));
    p = fma_(p, r, splat(8.3334519073e-3f));
    p = fma_(p, r, splat(4.1665795894e-2f));
    p = fma_(p, r, splat(1.6666665459e-1f));
    p = fma_(p, r, splat(5.0000001201e-1f));
    p = fma_(p, r * r, r + 1.0f);
    return p * (vf)((e + 127) << 23);
}

#endif
