// SPDX-License-Identifier: Apache-2.0
/* Sums over rows in two passes with a fixed order: the rows of each strip, then the strips. */
#include "client/gpt/cuda/args.h"
#include "client/gpt/cuda/vector.cuh"

using namespace gpt;

/* parts[strip][column] := sum of dy over a strip of GPT_CUDA_BIAS_ROWS rows. A block's x selects
 * columns, and its y the strip. The block has 32 threads of 8 columns by GPT_CUDA_BIAS_LANES; each
 * thread adds up every GPT_CUDA_BIAS_LANES-th row. */
extern "C" __global__ void __launch_bounds__(GPT_CUDA_THREADS)
    gpt_columns_kernel(uint32_t rows, uint32_t width, const uint16_t *dy, float *parts)
{
    __shared__ float room[GPT_CUDA_BIAS_LANES][GPT_CUDA_BIAS_COLUMNS];
    const uint32_t lane = threadIdx.x / 32;
    const uint32_t in_block = threadIdx.x % 32 * 8;
    const uint32_t column = blockIdx.x * GPT_CUDA_BIAS_COLUMNS + in_block;
    const uint32_t first = blockIdx.y * GPT_CUDA_BIAS_ROWS;
    const uint32_t end = min(first + GPT_CUDA_BIAS_ROWS, rows);
    const uint32_t mine = blockIdx.x * GPT_CUDA_BIAS_COLUMNS + threadIdx.x;
    vec8 sum = {};

    if (column < width) {
#pragma unroll 4
        for (uint32_t i = first + lane; i < end; i += GPT_CUDA_BIAS_LANES) {
            vec8 g = load8(dy + static_cast<uint64_t>(i) * width + column);

#pragma unroll
            for (int e = 0; e < 8; e++) {
                sum.v[e] += g.v[e];
            }
        }
    }
    store8(&room[lane][in_block], sum);
    __syncthreads();
    if (mine < width) {
        float total = 0.0f;

        for (uint32_t k = 0; k < GPT_CUDA_BIAS_LANES; k++) {
            total += room[k][threadIdx.x];
        }
        parts[static_cast<uint64_t>(blockIdx.y) * width + mine] = total;
    }
}
CST_KERNEL(gpt_columns_kernel);

/* dst[column] := bf16 of the sum of parts[0 .. n)[column]; with accumulate this sum is added.
 * Consecutive strips are gridDim.y x width elements apart. blockIdx.y selects the vector of a strip
 * and its destination. */
extern "C" __global__ void __launch_bounds__(GPT_CUDA_SUM_COLUMNS *GPT_CUDA_SUM_LANES)
    gpt_sums_kernel(uint32_t n, uint32_t width, const float *parts, uint16_t *dst_a,
                    uint32_t accumulate_a, uint16_t *dst_b, uint32_t accumulate_b)
{
    __shared__ float room[GPT_CUDA_SUM_LANES][GPT_CUDA_SUM_COLUMNS];
    const uint32_t lane = threadIdx.x / GPT_CUDA_SUM_COLUMNS;
    const uint32_t in_block = threadIdx.x % GPT_CUDA_SUM_COLUMNS;
    const uint32_t column = blockIdx.x * GPT_CUDA_SUM_COLUMNS + in_block;
    const uint32_t share = (n + GPT_CUDA_SUM_LANES - 1) / GPT_CUDA_SUM_LANES;
    const uint32_t end = min((lane + 1) * share, n);
    const uint64_t pitch = static_cast<uint64_t>(gridDim.y) * width;
    float sum = 0.0f;

    parts += static_cast<uint64_t>(blockIdx.y) * width;
    if (column < width) {
#pragma unroll 4
        for (uint32_t i = lane * share; i < end; i++) {
            sum += parts[i * pitch + column];
        }
    }
    room[lane][in_block] = sum;
    __syncthreads();
    if (lane == 0 && column < width) {
        for (uint32_t k = 1; k < GPT_CUDA_SUM_LANES; k++) {
            sum += room[k][in_block];
        }
        if (blockIdx.y == 0) {
            put(dst_a + column, sum, accumulate_a);
        } else {
            put(dst_b + column, sum, accumulate_b);
        }
    }
}
CST_KERNEL(gpt_sums_kernel);
