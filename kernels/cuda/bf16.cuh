// SPDX-License-Identifier: Apache-2.0
/* Conversion between bf16 and fp32 with the bits of kernels/math/cast.h, and pairs of bf16 for wide
 * memory accesses. */
#ifndef CST_CUDA_BF16_CUH
#define CST_CUDA_BF16_CUH

#include "kernels/cuda/cuda.cuh"

static __device__ __forceinline__ float cst_bf16_up(uint16_t h)
{
    return __uint_as_float(static_cast<uint32_t>(h) << 16);
}

/* Round to nearest even by integer arithmetic. A NaN is made quiet and keeps its sign and upper
 * payload. */
static __device__ __forceinline__ uint16_t cst_bf16_down(float f)
{
    uint32_t u = __float_as_uint(f);
    uint32_t nan = (u >> 16) | 0x0040u;
    uint32_t number = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;

    return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : number);
}

/* Returns two elements in a word, the first one in the lower half. */
static __device__ __forceinline__ uint32_t cst_bf16_pair(uint16_t first, uint16_t second)
{
    return first | static_cast<uint32_t>(second) << 16;
}

static __device__ __forceinline__ float cst_bf16_first(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

static __device__ __forceinline__ float cst_bf16_second(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

/* Returns whether @p is a multiple of @bytes, a power of two. */
static __device__ __forceinline__ bool cst_aligned(const void *p, unsigned bytes)
{
    return (reinterpret_cast<uintptr_t>(p) & (bytes - 1)) == 0;
}

#endif
