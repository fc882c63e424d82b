// SPDX-License-Identifier: Apache-2.0
/* The vectors of kernels/math/formulas.h and kernels/math/formats.h on a GPU.
 * kernels/math/vec_ref.h defines the meaning of each operation. Half a warp processes a group of 32
 * elements: the first vector of lane i is element i, the second vector is element i + 16. Pointers
 * point to the first element of the lane. */
#ifndef CST_CUDA_VEC_CUH
#define CST_CUDA_VEC_CUH

#include "kernels/cuda/bf16.cuh"

#define CST_INLINE static __device__ __forceinline__

#include "kernels/math/philox.h"
#include "kernels/math/update.h"

#define CST_VEC_LANES 16 /* Threads, with one element each. */
#define CST_VEC_GROUP 2  /* Number of vectors in a group. */
#define CST_VEC_UNROLL _Pragma("unroll")

/* One fp32 lane of a vector; each thread of the half-warp has one. */
struct cst_vec {
    float x;
};

/* One lane as 32 bits. */
struct cst_vec_bits {
    uint32_t x;
};

CST_INLINE cst_vec cst_vec_set(float x)
{
    return {x};
}

CST_INLINE cst_vec_bits cst_vec_set_bits(uint32_t x)
{
    return {x};
}

CST_INLINE cst_vec cst_vec_from_bits(cst_vec_bits b)
{
    return {__uint_as_float(b.x)};
}

CST_INLINE cst_vec_bits cst_vec_to_bits(cst_vec v)
{
    return {__float_as_uint(v.x)};
}

#include "kernels/math/vec_common.h"

/* -- arithmetic ----------------------------------------------------------------------------- */

CST_INLINE cst_vec cst_vec_add(cst_vec a, cst_vec b)
{
    return {__fadd_rn(a.x, b.x)};
}

CST_INLINE cst_vec cst_vec_sub(cst_vec a, cst_vec b)
{
    return {__fsub_rn(a.x, b.x)};
}

CST_INLINE cst_vec cst_vec_mul(cst_vec a, cst_vec b)
{
    return {__fmul_rn(a.x, b.x)};
}

CST_INLINE cst_vec cst_vec_div(cst_vec a, cst_vec b)
{
    return {__fdiv_rn(a.x, b.x)};
}

CST_INLINE cst_vec cst_vec_sqrt(cst_vec a)
{
    return {__fsqrt_rn(a.x)};
}

CST_INLINE cst_vec cst_vec_fma(cst_vec a, cst_vec b, cst_vec c)
{
    return {__fmaf_rn(a.x, b.x, c.x)};
}

CST_INLINE cst_vec cst_vec_fnma(cst_vec a, cst_vec b, cst_vec c)
{
    return {__fmaf_rn(-a.x, b.x, c.x)};
}

/* -- bits ----------------------------------------------------------------------------------- */

CST_INLINE cst_vec_bits cst_vec_and(cst_vec_bits a, cst_vec_bits b)
{
    return {a.x & b.x};
}

CST_INLINE cst_vec_bits cst_vec_or(cst_vec_bits a, cst_vec_bits b)
{
    return {a.x | b.x};
}

CST_INLINE cst_vec_bits cst_vec_xor(cst_vec_bits a, cst_vec_bits b)
{
    return {a.x ^ b.x};
}

CST_INLINE cst_vec_bits cst_vec_plus(cst_vec_bits a, cst_vec_bits b)
{
    return {a.x + b.x};
}

CST_INLINE cst_vec_bits cst_vec_minus(cst_vec_bits a, cst_vec_bits b)
{
    return {a.x - b.x};
}

CST_INLINE cst_vec_bits cst_vec_times(cst_vec_bits a, cst_vec_bits b)
{
    return {a.x * b.x};
}

CST_INLINE cst_vec_bits cst_vec_lanes()
{
    return {threadIdx.x % CST_VEC_LANES};
}

CST_INLINE cst_vec_bits cst_vec_right(cst_vec_bits a, int n)
{
    return {a.x >> n};
}

CST_INLINE cst_vec_bits cst_vec_left(cst_vec_bits a, int n)
{
    return {a.x << n};
}

CST_INLINE cst_vec cst_vec_limit(cst_vec x, cst_vec limit)
{
    return {fabsf(x.x) > limit.x ? copysignf(limit.x, x.x) : x.x};
}

/* -- choice by lane ------------------------------------------------------------------------- */

CST_INLINE cst_vec cst_vec_if_nan(cst_vec x, cst_vec a, cst_vec b)
{
    return x.x != x.x ? a : b;
}

CST_INLINE cst_vec cst_vec_if_zero(cst_vec x, cst_vec a, cst_vec b)
{
    return x.x == 0.0f ? a : b;
}

/* -- memory --------------------------------------------------------------------------------- */

/* Kind of memory that a load or store accesses. */
enum cst_vec_memory {
    CST_VEC_ROWS, /* Global memory that is read and written once in a step. */
    /* Shared memory of the block. Accesses with a cache hint are ld.global and st.global and cannot
     * address shared memory. */
    CST_VEC_SHARED
};

#define CST_MEMORY_INLINE template <cst_vec_memory MEMORY> CST_INLINE
#define CST_MEMORY(function) function<MEMORY>

template <cst_vec_memory MEMORY, class T> CST_INLINE T cst_vec_read(const T *at)
{
    return MEMORY == CST_VEC_ROWS ? __ldcs(at) : *at;
}

template <cst_vec_memory MEMORY, class T> CST_INLINE void cst_vec_write(T *at, T x)
{
    if (MEMORY == CST_VEC_ROWS) {
        __stcs(at, x);
    } else {
        *at = x;
    }
}

CST_MEMORY_INLINE cst_vec cst_vec_load(const float *at)
{
    return {CST_MEMORY(cst_vec_read)(at)};
}

CST_MEMORY_INLINE void cst_vec_store(float *at, cst_vec v)
{
    CST_MEMORY(cst_vec_write)(at, v.x);
}

CST_MEMORY_INLINE cst_vec cst_vec_load_bf16(const uint16_t *at)
{
    return {cst_bf16_up(CST_MEMORY(cst_vec_read)(at))};
}

CST_MEMORY_INLINE cst_vec_bits cst_vec_load_int16(const int16_t *at)
{
    return {static_cast<uint32_t>(static_cast<int32_t>(CST_MEMORY(cst_vec_read)(at)))};
}

/* Multiplication by 2^112 corrects the exponent bias. The product is exact, also for subnormal
 * halves. */
CST_INLINE cst_vec cst_vec_from_half(uint32_t half)
{
    float magnitude = __fmul_rn(__uint_as_float((half & 0x7fffu) << 13), 0x1p112f);
    uint32_t special = (half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0;

    return {__uint_as_float(__float_as_uint(magnitude) | special | (half & 0x8000u) << 16)};
}

CST_MEMORY_INLINE cst_vec cst_vec_load_signed(const uint8_t *codes)
{
    uint32_t code = CST_MEMORY(cst_vec_read)(codes);

    return cst_vec_from_half((code & 0x80u) << 8 | (code & 0x7fu) << 7);
}

CST_MEMORY_INLINE cst_vec cst_vec_load_unsigned(const uint8_t *codes)
{
    return cst_vec_from_half(static_cast<uint32_t>(CST_MEMORY(cst_vec_read)(codes)) << 7);
}

/* -- groups --------------------------------------------------------------------------------- */

CST_MEMORY_INLINE void cst_vec_load_all_bf16(const uint16_t *at, int n, cst_vec *out)
{
#pragma unroll
    for (int j = 0; j < n; j++) {
        out[j] = CST_MEMORY(cst_vec_load_bf16)(at + j * CST_VEC_LANES);
    }
}

CST_MEMORY_INLINE void cst_vec_store_upper(uint16_t *at, int n, const cst_vec_bits *v, bool)
{
#pragma unroll
    for (int j = 0; j < n; j++) {
        CST_MEMORY(cst_vec_write)(at + j * CST_VEC_LANES, static_cast<uint16_t>(v[j].x >> 16));
    }
}

CST_MEMORY_INLINE void cst_vec_store_lower(uint16_t *at, int n, const cst_vec_bits *v)
{
#pragma unroll
    for (int j = 0; j < n; j++) {
        CST_MEMORY(cst_vec_write)(at + j * CST_VEC_LANES, static_cast<uint16_t>(v[j].x & 0xffffu));
    }
}

CST_MEMORY_INLINE void cst_vec_store_bf16(uint16_t *at, int n, const cst_vec *v, bool stream)
{
    cst_vec_bits upper[CST_VEC_GROUP];

#pragma unroll
    for (int j = 0; j < n; j++) {
        uint32_t bits = __float_as_uint(v[j].x);

        upper[j].x = bits + 0x7fffu + (bits >> 16 & 1u);
    }
    CST_MEMORY(cst_vec_store_upper)(at, n, upper, stream);
}

CST_INLINE cst_vec_bits cst_vec_fixed(unsigned, cst_vec x, cst_vec unit)
{
    float y = fabsf(x.x);

    return {__float_as_uint(__fadd_rn(y, y > unit.x ? y : unit.x))};
}

CST_MEMORY_INLINE void cst_vec_store_codes(unsigned which, uint8_t *at,
                                           const cst_vec_bits v[CST_VEC_GROUP], cst_vec_common unit,
                                           const cst_vec from[CST_VEC_GROUP])
{
#pragma unroll
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        uint32_t code = (v[j].x - unit.x) >> 20 & 0xffu, bits = __float_as_uint(from[j].x);

        code = which == 0 ? code | (bits >> 24 & 0x80u) : code == 0 ? (bits != 0 ? 1u : 0u) : code;
        CST_MEMORY(cst_vec_write)(at + j * CST_VEC_LANES, static_cast<uint8_t>(code));
    }
}

/* Returns the lanes of this thread's half of the warp. */
CST_INLINE unsigned cst_vec_mask()
{
    return 0xffffu << (threadIdx.x & 16u);
}

CST_INLINE void cst_vec_largest(unsigned which, unsigned n, const cst_vec v[][CST_VEC_GROUP],
                                cst_vec_common largest[])
{
#pragma unroll
    for (unsigned k = 0; k < n; k++) {
        const uint32_t mask = (which >> k & 1u) == 0 ? 0x7fffffffu : UINT32_MAX;
        uint32_t a = __float_as_uint(v[k][0].x) & mask, b = __float_as_uint(v[k][1].x) & mask;

        a = a > b ? a : b;
#pragma unroll
        for (int bits = CST_VEC_LANES / 2; bits > 0; bits /= 2) {
            uint32_t other = __shfl_xor_sync(cst_vec_mask(), a, bits);

            a = other > a ? other : a;
        }
        largest[k] = cst_vec_common_of(a);
    }
}

#endif
