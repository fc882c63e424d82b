/* SPDX-License-Identifier: Apache-2.0 */
/* This file is compiled once for each instruction set, which the predefined macros determine. */
#include "tests/bench/pass.h"

#include "proto/table.h"

#include <math.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define ISA "avx512"
#define EXPORT(name) name##_avx512
#define VEC_BYTES 64
#define STREAM(at, x) _mm512_stream_si512((__m512i *)(void *)(at), (__m512i)(x))
#elif defined(__AVX2__)
#define ISA "avx2"
#define EXPORT(name) name##_avx2
#define VEC_BYTES 32
#define STREAM(at, x) _mm256_stream_si256((__m256i *)(void *)(at), (__m256i)(x))
#else
#define ISA "ref"
#define EXPORT(name) name##_ref
#define VEC_BYTES 16
#ifdef __SSE2__
#define STREAM(at, x) _mm_stream_si128((__m128i *)(void *)(at), (__m128i)(x))
#endif
#endif

/* Only a typedef can name a vector type. */
typedef uint32_t vec __attribute__((vector_size(VEC_BYTES), may_alias));

#define VEC_FP32 (VEC_BYTES / sizeof(float))
#define VEC_BF16 (VEC_BYTES / sizeof(uint16_t))

#define AHEAD_ELEMS 128 /* Distance of prefetches. */

static inline void flip(float *at)
{
    *(vec *)(void *)at ^= (vec){0} + 1;
}

static inline vec flipped(const uint16_t *at)
{
    return *(const vec *)(const void *)at ^ ((vec){0} + 1);
}

/* Read and write all rows in one loop. */
static void together(const struct cst_pass_rows *rows)
{
    for (size_t i = 0; i < rows->n; i += VEC_BF16) {
        for (size_t k = i; k < i + VEC_BF16; k += VEC_FP32) {
            flip(rows->master + k);
            flip(rows->exp_avg + k);
            flip(rows->exp_avg_sq + k);
        }
        *(vec *)(void *)(rows->weight + i) = flipped(rows->grad + i);
    }
}

/* Read and write the rows of a step on fp32 gradients, which writes no weights. */
static void four_rows(const struct cst_pass_rows *rows)
{
    for (size_t i = 0; i < rows->n; i += VEC_FP32) {
        const vec g = *(const vec *)(const void *)(rows->wide + i);

        *(vec *)(void *)(rows->master + i) ^= g;
        *(vec *)(void *)(rows->exp_avg + i) ^= g;
        *(vec *)(void *)(rows->exp_avg_sq + i) ^= g;
    }
}

static void flip_stretch(float *at, size_t n)
{
    for (size_t i = 0; i < n; i += VEC_FP32) {
        flip(at + i);
    }
}

/* Read and write row after row within a tile, so that fewer streams are active at a time. */
static void apart(const struct cst_pass_rows *rows)
{
    for (size_t at = 0; at < rows->n; at += CST_TILE_ELEMS) {
        size_t n = rows->n - at < CST_TILE_ELEMS ? rows->n - at : CST_TILE_ELEMS;

        flip_stretch(rows->master + at, n);
        flip_stretch(rows->exp_avg + at, n);
        flip_stretch(rows->exp_avg_sq + at, n);
        for (size_t i = at; i < at + n; i += VEC_BF16) {
            *(vec *)(void *)(rows->weight + i) = flipped(rows->grad + i);
        }
    }
}

#ifdef STREAM
static void together_stream(const struct cst_pass_rows *rows)
{
    for (size_t i = 0; i < rows->n; i += VEC_BF16) {
        for (size_t k = i; k < i + VEC_BF16; k += VEC_FP32) {
            flip(rows->master + k);
            flip(rows->exp_avg + k);
            flip(rows->exp_avg_sq + k);
        }
        STREAM(rows->weight + i, flipped(rows->grad + i));
    }
    _mm_sfence();
}

/* The same with lines of all rows fetched before they are needed. */
static void ahead_stream(const struct cst_pass_rows *rows)
{
    for (size_t i = 0; i < rows->n; i += VEC_BF16) {
        for (size_t k = i; k < i + VEC_BF16; k += VEC_FP32) {
            __builtin_prefetch(rows->master + k + AHEAD_ELEMS);
            flip(rows->master + k);
            __builtin_prefetch(rows->exp_avg + k + AHEAD_ELEMS);
            flip(rows->exp_avg + k);
            __builtin_prefetch(rows->exp_avg_sq + k + AHEAD_ELEMS);
            flip(rows->exp_avg_sq + k);
        }
        __builtin_prefetch(rows->grad + i + AHEAD_ELEMS);
        STREAM(rows->weight + i, flipped(rows->grad + i));
    }
    _mm_sfence();
}

static void apart_stream(const struct cst_pass_rows *rows)
{
    for (size_t at = 0; at < rows->n; at += CST_TILE_ELEMS) {
        size_t n = rows->n - at < CST_TILE_ELEMS ? rows->n - at : CST_TILE_ELEMS;

        flip_stretch(rows->master + at, n);
        flip_stretch(rows->exp_avg + at, n);
        flip_stretch(rows->exp_avg_sq + at, n);
        for (size_t i = at; i < at + n; i += VEC_BF16) {
            STREAM(rows->weight + i, flipped(rows->grad + i));
        }
    }
    _mm_sfence();
}
#endif

const struct cst_pass EXPORT(cst_pass)[] = {
    {"one loop", ISA, together},
    {"row by row", ISA, apart},
    {"four fp32 rows", ISA, four_rows},
#ifdef STREAM
    {"one loop, weights past the cache", ISA, together_stream},
    {"row by row, weights past the cache", ISA, apart_stream},
    {"one loop, weights past the cache, prefetched", ISA, ahead_stream},
#endif
    {NULL, NULL, NULL},
};

typedef float vecf __attribute__((vector_size(VEC_BYTES), may_alias, aligned(4)));

static inline vecf all(float x)
{
    return (vecf){0} + x;
}

#if defined(__AVX512F__)
static inline vecf root(vecf x)
{
    return (vecf)_mm512_sqrt_ps((__m512)x);
}

static inline vecf muladd(vecf a, vecf b, vecf c)
{
    return (vecf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#elif defined(__AVX2__)
static inline vecf root(vecf x)
{
    return (vecf)_mm256_sqrt_ps((__m256)x);
}

static inline vecf muladd(vecf a, vecf b, vecf c)
{
    return (vecf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
#else
static inline vecf root(vecf x)
{
    for (size_t k = 0; k < VEC_FP32; k++) {
        x[k] = sqrtf(x[k]);
    }
    return x;
}

static inline vecf muladd(vecf a, vecf b, vecf c)
{
    for (size_t k = 0; k < VEC_FP32; k++) {
        c[k] = fmaf(a[k], b[k], c[k]);
    }
    return c;
}
#endif

void EXPORT(cst_pass_step)(const struct cst_update_scalars *hyper, size_t n, const float *grad,
                           float *master, float *exp_avg, float *exp_avg_sq)
{
    const struct cst_update_scalars h = *hyper;

    for (size_t i = 0; i < n; i += VEC_FP32) {
        vecf *p = (vecf *)(void *)(master + i);
        vecf *m = (vecf *)(void *)(exp_avg + i);
        vecf *v = (vecf *)(void *)(exp_avg_sq + i);
        vecf g = *(const vecf *)(const void *)(grad + i) * h.grad_scale;
        vecf new_m = muladd(all(h.one_minus_beta1), g - *m, *m);
        vecf new_v = muladd(all(h.one_minus_beta2), g * g, *v * h.beta2);
        vecf d = muladd(root(new_v), all(h.inv_sqrt_bias2), all(h.eps));

        *m = new_m;
        *v = new_v;
        *p = muladd(all(-h.step_size), new_m / d, *p * h.decay);
    }
}
