// SPDX-License-Identifier: Apache-2.0
/* Embeddings of bytes and positions, and their gradients. There are no atomic operations: one
 * thread computes the sum for an element of a table, in the order of the rows. */
#include "client/gpt/cuda/args.h"
#include "client/gpt/cuda/vector.cuh"

using namespace gpt;

namespace
{

const uint32_t PIECE = 4096; /* tokens in shared memory at a time */

} // namespace

extern "C" __global__ void __launch_bounds__(GPT_CUDA_THREADS)
    gpt_embed_kernel(uint32_t rows, uint32_t width, uint32_t context, const uint8_t *tokens,
                     const uint16_t *wte, const uint16_t *wpe, float *y)
{
    const uint32_t n = width / 8;
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * GPT_CUDA_THREADS + threadIdx.x;
    const uint32_t row = static_cast<uint32_t>(i / n);
    const uint32_t column = static_cast<uint32_t>(i % n) * 8;

    if (row < rows) {
        vec8 x = load8_shared(wte + static_cast<uint64_t>(tokens[row]) * width + column);
        vec8 p = load8_shared(wpe + static_cast<uint64_t>(row % context) * width + column);

#pragma unroll
        for (int e = 0; e < 8; e++) {
            x.v[e] += p.v[e];
        }
        store8(y + 8 * i, x);
    }
}
CST_KERNEL(gpt_embed_kernel);

/* dwte[v] := sum of dx over the rows whose token is v; with @accumulate this sum is added. A
 * block's x selects columns, and its y is v. */
extern "C" __global__ void __launch_bounds__(GPT_CUDA_TOKEN_THREADS)
    gpt_token_grad_kernel(uint32_t rows, uint32_t width, const uint8_t *tokens, const float *dx,
                          uint16_t *dwte, uint32_t accumulate)
{
    __shared__ uint8_t piece[PIECE];
    const uint32_t column = 4 * (blockIdx.x * GPT_CUDA_TOKEN_THREADS + threadIdx.x);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    for (uint32_t at = 0; at < rows; at += PIECE) {
        const uint32_t n = min(PIECE, rows - at);

        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n; i += GPT_CUDA_TOKEN_THREADS) {
            piece[i] = tokens[at + i];
        }
        __syncthreads();
        for (uint32_t i = 0; i < n; i++) {
            if (piece[i] == blockIdx.y && column < width) {
                float4 g = __ldg(reinterpret_cast<const float4 *>(
                    dx + static_cast<uint64_t>(at + i) * width + column));

                sum = make_float4(sum.x + g.x, sum.y + g.y, sum.z + g.z, sum.w + g.w);
            }
        }
    }
    if (column < width) {
        uint16_t *to = dwte + static_cast<uint64_t>(blockIdx.y) * width + column;

        put(to, sum.x, accumulate);
        put(to + 1, sum.y, accumulate);
        put(to + 2, sum.z, accumulate);
        put(to + 3, sum.w, accumulate);
    }
}
CST_KERNEL(gpt_token_grad_kernel);

/* dwpe[p] := sum of dx over position p of all sequences; with @accumulate this sum is added. */
extern "C" __global__ void __launch_bounds__(GPT_CUDA_THREADS)
    gpt_position_grad_kernel(uint32_t n_seqs, uint32_t width, uint32_t context, const float *dx,
                             uint16_t *dwpe, uint32_t accumulate)
{
    const uint64_t n = static_cast<uint64_t>(context) * width;
    const uint64_t at = 4 * (static_cast<uint64_t>(blockIdx.x) * GPT_CUDA_THREADS + threadIdx.x);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    if (at < n) {
#pragma unroll 4
        for (uint32_t s = 0; s < n_seqs; s++) {
            float4 g = __ldcs(reinterpret_cast<const float4 *>(dx + s * n + at));

            sum = make_float4(sum.x + g.x, sum.y + g.y, sum.z + g.z, sum.w + g.w);
        }
        put(dwpe + at, sum.x, accumulate);
        put(dwpe + at + 1, sum.y, accumulate);
        put(dwpe + at + 2, sum.z, accumulate);
        put(dwpe + at + 3, sum.w, accumulate);
    }
}
CST_KERNEL(gpt_position_grad_kernel);
