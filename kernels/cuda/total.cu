// SPDX-License-Identifier: Apache-2.0
/* kernels/math/total.h on a GPU. The sources can be in the memory of other GPUs. A thread sums 16
 * bytes of each source at a time, in rank order, and a block CST_CUDA_TOTAL_BYTES. Rows that are
 * not aligned to 16 bytes are summed element by element. */
#include "kernels/cuda/args.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/math/total.h"

namespace
{

const uint32_t VECTOR_BYTES = 16;

__device__ __forceinline__ float stored(float sum)
{
    return sum != sum ? __uint_as_float(CST_TOTAL_NAN) : sum;
}

/* Elements of fp32. */
struct fp32 {
    typedef float elem;
    typedef float4 vector;

    static __device__ __forceinline__ float up(float x)
    {
        return x;
    }

    static __device__ __forceinline__ float down(float sum)
    {
        return stored(sum);
    }

    static __device__ __forceinline__ void unpack(float *x, float4 v)
    {
        x[0] = v.x;
        x[1] = v.y;
        x[2] = v.z;
        x[3] = v.w;
    }

    static __device__ __forceinline__ float4 pack(const float *sum)
    {
        return make_float4(stored(sum[0]), stored(sum[1]), stored(sum[2]), stored(sum[3]));
    }
};

/* Elements of bf16. */
struct bf16 {
    typedef uint16_t elem;
    typedef uint4 vector;

    static __device__ __forceinline__ float up(uint16_t x)
    {
        return cst_bf16_up(x);
    }

    static __device__ __forceinline__ uint16_t down(float sum)
    {
        return cst_bf16_down(stored(sum));
    }

    static __device__ __forceinline__ void unpack(float *x, uint4 v)
    {
        const uint32_t pairs[] = {v.x, v.y, v.z, v.w};

#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            x[2 * k] = cst_bf16_first(pairs[k]);
            x[2 * k + 1] = cst_bf16_second(pairs[k]);
        }
    }

    static __device__ __forceinline__ uint4 pack(const float *sum)
    {
        return make_uint4(
            cst_bf16_pair(down(sum[0]), down(sum[1])), cst_bf16_pair(down(sum[2]), down(sum[3])),
            cst_bf16_pair(down(sum[4]), down(sum[5])), cst_bf16_pair(down(sum[6]), down(sum[7])));
    }
};

/* Return whether all rows are aligned to vectors. */
__device__ __forceinline__ bool are_aligned(const cst_cuda_total &total)
{
    bool all = cst_aligned(total.dst, VECTOR_BYTES);

    for (uint32_t r = 0; r < total.n_src; r++) {
        all = all && cst_aligned(total.src[r], VECTOR_BYTES);
    }
    return all;
}

template <class Type>
__device__ __forceinline__ void sum_one(const cst_cuda_total &total, uint64_t i)
{
    float sum = Type::up(static_cast<const typename Type::elem *>(total.src[0])[i]);

    for (uint32_t r = 1; r < total.n_src; r++) {
        sum = __fadd_rn(sum, Type::up(static_cast<const typename Type::elem *>(total.src[r])[i]));
    }
    static_cast<typename Type::elem *>(total.dst)[i] = Type::down(sum);
}

template <class Type>
__device__ __forceinline__ void sum_vector(const cst_cuda_total &total, uint64_t i)
{
    const uint32_t N = VECTOR_BYTES / sizeof(typename Type::elem);
    float sum[N], x[N];

    Type::unpack(sum, __ldcs(static_cast<const typename Type::vector *>(total.src[0]) + i));
    for (uint32_t r = 1; r < total.n_src; r++) {
        Type::unpack(x, __ldcs(static_cast<const typename Type::vector *>(total.src[r]) + i));
#pragma unroll
        for (uint32_t k = 0; k < N; k++) {
            sum[k] = __fadd_rn(sum[k], x[k]);
        }
    }
    static_cast<typename Type::vector *>(total.dst)[i] = Type::pack(sum);
}

/* Sum the block's part of the rows. */
template <class Type> __device__ __forceinline__ void sum_part(const cst_cuda_total &total)
{
    const uint32_t N = VECTOR_BYTES / sizeof(typename Type::elem);
    const uint64_t part = CST_CUDA_TOTAL_BYTES / sizeof(typename Type::elem);
    const uint64_t start = blockIdx.x * part;
    const uint64_t end = total.n - start < part ? total.n : start + part;
    const uint64_t tail = are_aligned(total) ? start + (end - start) / N * N : start;

    for (uint64_t i = start + N * threadIdx.x; i < tail; i += N * CST_CUDA_TOTAL_THREADS) {
        sum_vector<Type>(total, i / N);
    }
    for (uint64_t i = tail + threadIdx.x; i < end; i += CST_CUDA_TOTAL_THREADS) {
        sum_one<Type>(total, i);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(CST_CUDA_TOTAL_THREADS)
    cst_total_fp32_kernel(const cst_cuda_total total)
{
    sum_part<fp32>(total);
}
CST_KERNEL(cst_total_fp32_kernel);

extern "C" __global__ void __launch_bounds__(CST_CUDA_TOTAL_THREADS)
    cst_total_bf16_kernel(const cst_cuda_total total)
{
    sum_part<bf16>(total);
}
CST_KERNEL(cst_total_bf16_kernel);
