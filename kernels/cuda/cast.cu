// SPDX-License-Identifier: Apache-2.0
/* kernels/math/cast.h on a GPU: 6 bytes per element. A block converts CST_CUDA_CAST_ELEMS elements,
 * and a thread four at a time: 16 bytes of fp32 and 8 of bf16. The accesses of a warp are
 * contiguous on both sides. */
#include "kernels/cuda/args.h"
#include "kernels/cuda/bf16.cuh"

namespace
{

__device__ __forceinline__ void cast_quad(const float *src, uint16_t *dst)
{
    float4 f = __ldcs(reinterpret_cast<const float4 *>(src));

    __stcs(reinterpret_cast<uint2 *>(dst),
           make_uint2(cst_bf16_pair(cst_bf16_down(f.x), cst_bf16_down(f.y)),
                      cst_bf16_pair(cst_bf16_down(f.z), cst_bf16_down(f.w))));
}

__device__ __forceinline__ void upcast_quad(const uint16_t *src, float *dst)
{
    uint2 h = __ldcs(reinterpret_cast<const uint2 *>(src));

    __stcs(reinterpret_cast<float4 *>(dst), make_float4(cst_bf16_first(h.x), cst_bf16_second(h.x),
                                                        cst_bf16_first(h.y), cst_bf16_second(h.y)));
}

/* Convert the block's part of @n elements: @quad converts four elements, @one converts one. @fp32
 * and @bf16 are the two rows. Fours need rows that are aligned together from some element on; the
 * elements before and after them are converted one by one. */
template <class Quad, class One>
__device__ __forceinline__ void convert(uint64_t n, const float *fp32, const uint16_t *bf16,
                                        Quad quad, One one)
{
    const uint64_t start = static_cast<uint64_t>(blockIdx.x) * CST_CUDA_CAST_ELEMS;
    const uint64_t end = n - start < CST_CUDA_CAST_ELEMS ? n : start + CST_CUDA_CAST_ELEMS;
    uint64_t head = start + (-(reinterpret_cast<uintptr_t>(fp32) / 4) & 3u);
    uint64_t tail = start;

    head = head < end ? head : end;
    if (cst_aligned(fp32 + head, 16) && cst_aligned(bf16 + head, 8)) {
        tail = head + (end - head) / 4 * 4;
#pragma unroll 4
        for (uint64_t i = head + 4 * threadIdx.x; i < tail; i += 4 * CST_CUDA_CAST_THREADS) {
            quad(i);
        }
        if (start + threadIdx.x < head) {
            one(start + threadIdx.x);
        }
    }
    for (uint64_t i = tail + threadIdx.x; i < end; i += CST_CUDA_CAST_THREADS) {
        one(i);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(CST_CUDA_CAST_THREADS)
    cst_cast_kernel(uint64_t n, const float *src, uint16_t *dst)
{
    convert(
        n, src, dst, [=](uint64_t i) { cast_quad(src + i, dst + i); },
        [=](uint64_t i) { dst[i] = cst_bf16_down(src[i]); });
}
CST_KERNEL(cst_cast_kernel);

extern "C" __global__ void __launch_bounds__(CST_CUDA_CAST_THREADS)
    cst_upcast_kernel(uint64_t n, const uint16_t *src, float *dst)
{
    convert(
        n, dst, src, [=](uint64_t i) { upcast_quad(src + i, dst + i); },
        [=](uint64_t i) { dst[i] = cst_bf16_up(src[i]); });
}
CST_KERNEL(cst_upcast_kernel);
