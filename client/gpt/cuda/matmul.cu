// SPDX-License-Identifier: Apache-2.0
/* A plain matrix product for machines without cuBLASLt: correct for all sizes, but slow. A block of
 * 256 threads computes 64 x 64 elements of c, and each thread 4 x 4 of them. It does not use tensor
 * cores. */
#include "client/gpt/cuda/args.h"
#include "client/gpt/cuda/vector.cuh"

using namespace gpt;

namespace
{

/* Copy rows [first, first + 64) and depth [at, at + 16) of an operand into shared memory, as fp32.
 * Elements outside of the operand are zeros. The operand is stored as rows x k; with @turned as k x
 * rows. */
__device__ __forceinline__ void bring(float (*tile)[GPT_CUDA_TILE + 1], const uint16_t *from,
                                      uint32_t rows, uint32_t k, uint32_t first, uint32_t at,
                                      bool turned)
{
    for (uint32_t i = threadIdx.x; i < GPT_CUDA_TILE * GPT_CUDA_TILE_DEPTH; i += GPT_CUDA_THREADS) {
        uint32_t row = turned ? i % GPT_CUDA_TILE : i / GPT_CUDA_TILE_DEPTH;
        uint32_t depth = turned ? i / GPT_CUDA_TILE : i % GPT_CUDA_TILE_DEPTH;
        bool inside = first + row < rows && at + depth < k;
        uint64_t place = turned ? static_cast<uint64_t>(at + depth) * rows + first + row
                                : static_cast<uint64_t>(first + row) * k + at + depth;

        tile[depth][row] = inside ? cst_bf16_up(from[place]) : 0.0f;
    }
}

__device__ __forceinline__ void finish(const gpt_cuda_product &p, uint32_t row, uint32_t column,
                                       float sum)
{
    uint64_t at = static_cast<uint64_t>(row) * p.n + column;

    if (row >= p.m || column >= p.n) {
        return;
    }
    sum *= p.scale;
    if (p.bias != nullptr) {
        sum += cst_bf16_up(p.bias[column]);
    }
    if (p.fp32 != 0) {
        float *c = static_cast<float *>(p.c);

        c[at] = p.accumulate != 0 ? c[at] + sum : sum;
    } else {
        put(static_cast<uint16_t *>(p.c) + at, sum, p.accumulate);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(GPT_CUDA_THREADS)
    gpt_matmul_kernel(const gpt_cuda_product p)
{
    __shared__ float a[GPT_CUDA_TILE_DEPTH][GPT_CUDA_TILE + 1];
    __shared__ float b[GPT_CUDA_TILE_DEPTH][GPT_CUDA_TILE + 1];
    const uint32_t first_row = blockIdx.y * GPT_CUDA_TILE;
    const uint32_t first_column = blockIdx.x * GPT_CUDA_TILE;
    const uint32_t row = threadIdx.x / 16 * 4;
    const uint32_t column = threadIdx.x % 16;
    float sum[4][4] = {};

    for (uint32_t at = 0; at < p.k; at += GPT_CUDA_TILE_DEPTH) {
        bring(a, p.a, p.m, p.k, first_row, at, p.turn_a != 0);
        bring(b, p.b, p.n, p.k, first_column, at, p.turn_b == 0);
        __syncthreads();
        for (uint32_t d = 0; d < GPT_CUDA_TILE_DEPTH; d++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
                    sum[i][j] += a[d][row + i] * b[d][column + 16 * j];
                }
            }
        }
        __syncthreads();
    }
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t j = 0; j < 4; j++) {
            finish(p, first_row + row + i, first_column + column + 16 * j, sum[i][j]);
        }
    }
}
CST_KERNEL(gpt_matmul_kernel);
