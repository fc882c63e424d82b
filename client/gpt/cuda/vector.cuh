// SPDX-License-Identifier: Apache-2.0
/* Loads and stores of eight elements, 16 bytes at a time, and sums over the lanes of a warp or the
 * threads of a block, in an order that depends only on the shape. */
#ifndef GPT_CUDA_VECTOR_CUH
#define GPT_CUDA_VECTOR_CUH

#include "kernels/cuda/mma.cuh"

namespace gpt
{

struct vec8 {
    float v[8];
};

static __device__ __forceinline__ vec8 unpack(const uint4 &u)
{
    return {{cst_bf16_first(u.x), cst_bf16_second(u.x), cst_bf16_first(u.y), cst_bf16_second(u.y),
             cst_bf16_first(u.z), cst_bf16_second(u.z), cst_bf16_first(u.w), cst_bf16_second(u.w)}};
}

static __device__ __forceinline__ uint4 pack(const vec8 &x)
{
    return make_uint4(cst_bf16_pair_fast(x.v[0], x.v[1]), cst_bf16_pair_fast(x.v[2], x.v[3]),
                      cst_bf16_pair_fast(x.v[4], x.v[5]), cst_bf16_pair_fast(x.v[6], x.v[7]));
}

/* Load data that are read once. */
static __device__ __forceinline__ vec8 load8(const uint16_t *p)
{
    return unpack(__ldcs(reinterpret_cast<const uint4 *>(p)));
}

static __device__ __forceinline__ vec8 load8(const float *p)
{
    float4 a = __ldcs(reinterpret_cast<const float4 *>(p));
    float4 b = __ldcs(reinterpret_cast<const float4 *>(p) + 1);

    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

/* Load data that all blocks read: weights and biases. */
static __device__ __forceinline__ vec8 load8_shared(const uint16_t *p)
{
    return unpack(__ldg(reinterpret_cast<const uint4 *>(p)));
}

static __device__ __forceinline__ void store8(uint16_t *p, const vec8 &x)
{
    *reinterpret_cast<uint4 *>(p) = pack(x);
}

static __device__ __forceinline__ void store8(float *p, const vec8 &x)
{
    float4 *q = reinterpret_cast<float4 *>(p);

    q[0] = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
    q[1] = make_float4(x.v[4], x.v[5], x.v[6], x.v[7]);
}

/* A thread's share of a row: four elements from column 4 x threadIdx.x on, and four elements from
 * column 4 x (threadIdx.x + blockDim.x) on. A warp then accesses contiguous memory, with 16 bytes
 * of fp32 or 8 bytes of bf16 per thread. Elements beyond the row read as 0. */
struct share {
    uint32_t first, second;     /* first columns */
    bool has_first, has_second; /* the columns are in the row */
};

static __device__ __forceinline__ share my_share(uint32_t width)
{
    uint32_t first = 4 * threadIdx.x;
    uint32_t second = first + 4 * blockDim.x;

    return {first, second, first < width, second < width};
}

static __device__ __forceinline__ vec8 load_row(const float *row, const share &s)
{
    float4 a = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 b = a;

    if (s.has_first) {
        a = __ldcs(reinterpret_cast<const float4 *>(row + s.first));
    }
    if (s.has_second) {
        b = __ldcs(reinterpret_cast<const float4 *>(row + s.second));
    }
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

static __device__ __forceinline__ vec8 load_row(const uint16_t *row, const share &s)
{
    uint2 a = make_uint2(0, 0);
    uint2 b = a;

    if (s.has_first) {
        a = __ldcs(reinterpret_cast<const uint2 *>(row + s.first));
    }
    if (s.has_second) {
        b = __ldcs(reinterpret_cast<const uint2 *>(row + s.second));
    }
    return unpack(make_uint4(a.x, a.y, b.x, b.y));
}

/* Load a row that all blocks read. */
static __device__ __forceinline__ vec8 load_row_shared(const uint16_t *row, const share &s)
{
    uint2 a = make_uint2(0, 0);
    uint2 b = a;

    if (s.has_first) {
        a = __ldg(reinterpret_cast<const uint2 *>(row + s.first));
    }
    if (s.has_second) {
        b = __ldg(reinterpret_cast<const uint2 *>(row + s.second));
    }
    return unpack(make_uint4(a.x, a.y, b.x, b.y));
}

static __device__ __forceinline__ void store_row(float *row, const share &s, const vec8 &x)
{
    if (s.has_first) {
        *reinterpret_cast<float4 *>(row + s.first) = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
    }
    if (s.has_second) {
        *reinterpret_cast<float4 *>(row + s.second) = make_float4(x.v[4], x.v[5], x.v[6], x.v[7]);
    }
}

static __device__ __forceinline__ void store_row(uint16_t *row, const share &s, const vec8 &x)
{
    uint4 u = pack(x);

    if (s.has_first) {
        *reinterpret_cast<uint2 *>(row + s.first) = make_uint2(u.x, u.y);
    }
    if (s.has_second) {
        *reinterpret_cast<uint2 *>(row + s.second) = make_uint2(u.z, u.w);
    }
}

static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int bits = 16; bits != 0; bits /= 2) {
        x += __shfl_xor_sync(~0u, x, bits);
    }
    return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int bits = 16; bits != 0; bits /= 2) {
        float y = __shfl_xor_sync(~0u, x, bits);

        x = x > y ? x : y;
    }
    return x;
}

/* Sums of a and b over a block of whole warps; every thread gets the result. @room: 32 pairs in
 * shared memory. Two consecutive calls need different ones. */
static __device__ __forceinline__ float2 block_sum(float a, float b, float2 *room)
{
    uint32_t lane = threadIdx.x % 32;
    float2 mine;

    a = warp_sum(a);
    b = warp_sum(b);
    if (lane == 0) {
        room[threadIdx.x / 32] = make_float2(a, b);
    }
    __syncthreads();
    mine = lane < blockDim.x / 32 ? room[lane] : make_float2(0.0f, 0.0f);
    return make_float2(warp_sum(mine.x), warp_sum(mine.y));
}

/* *p := x; with @accumulate *p := *p + x, added in fp32. */
static __device__ __forceinline__ void put(uint16_t *p, float x, uint32_t accumulate)
{
    *p = cst_bf16_down(accumulate != 0 ? cst_bf16_up(*p) + x : x);
}

} // namespace gpt

#endif
