// SPDX-License-Identifier: Apache-2.0
/* Kernels of a mixture of experts between the products: the choice of experts, gathering of the
 * experts' rows, and combination of their results. One thread or one block computes each output
 * element, with sums in an order that depends only on the shape. A choice is an index in the rows x
 * top_k arrays. */
#include "client/gpt/cuda/args.h"
#include "client/gpt/cuda/vector.cuh"

using namespace gpt;

namespace
{

/* Select the better of two candidates: the one with the larger z; of equal ones the smaller expert.
 * Both lanes that compare get the same result for all values of z, NaN included. */
__device__ __forceinline__ void better(float &z, uint32_t &expert, float other_z, uint32_t other)
{
    const bool take = expert == GPT_CUDA_NO_ROW || (other != GPT_CUDA_NO_ROW && other_z > z) ||
                      (other != GPT_CUDA_NO_ROW && !(z > other_z) && other < expert);

    z = take ? other_z : z;
    expert = take ? other : expert;
}

} // namespace

/* A warp computes a row. probs holds logits and is overwritten with their softmax. chosen: the
 * experts with the top_k largest logits, selected one after the other. gates: softmax of the chosen
 * logits, or with top_k 1 the probability. Lane l has the experts l, l + 32, ..., and @taken has
 * one bit for each of them. */
extern "C" __global__ void __launch_bounds__(32 * GPT_CUDA_CHOOSE_ROWS)
    gpt_choose_kernel(uint32_t rows, uint32_t experts, uint32_t top_k, float *probs,
                      uint32_t *chosen, float *gates)
{
    const uint32_t row = blockIdx.x * GPT_CUDA_CHOOSE_ROWS + threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t taken = 0;
    float most = 0.0f;
    float sum = 0.0f;
    float all = 0.0f;

    if (row >= rows) {
        return; /* All lanes of a warp have this row. */
    }
    probs += static_cast<uint64_t>(row) * experts;
    chosen += static_cast<uint64_t>(row) * top_k;
    gates += static_cast<uint64_t>(row) * top_k;
    for (uint32_t j = 0; j < top_k; j++) {
        uint32_t best = GPT_CUDA_NO_ROW;
        float z = 0.0f;

        for (uint32_t e = lane; e < experts; e += 32) {
            if ((taken >> (e / 32) & 1) == 0 && (best == GPT_CUDA_NO_ROW || probs[e] > z)) {
                best = e;
                z = probs[e];
            }
        }
#pragma unroll
        for (int bits = 16; bits != 0; bits /= 2) {
            const float other_z = __shfl_xor_sync(~0u, z, bits);
            const uint32_t other = __shfl_xor_sync(~0u, best, bits);

            better(z, best, other_z, other);
        }
        most = j == 0 ? z : most;
        sum += expf(z - most);
        taken |= best % 32 == lane ? 1u << best / 32 : 0;
        if (lane == 0) {
            chosen[j] = best;
            gates[j] = expf(z - most);
        }
    }
    for (uint32_t e = lane; e < experts; e += 32) {
        all += expf(probs[e] - most);
    }
    all = warp_sum(all);
    for (uint32_t j = 0; lane == 0 && j < top_k; j++) {
        gates[j] /= top_k > 1 ? sum : all;
    }
    for (uint32_t e = lane; e < experts; e += 32) {
        probs[e] = expf(probs[e] - most) / all;
    }
}
CST_KERNEL(gpt_choose_kernel);

/* out[i] := the row of x that made choice from[i]. Padding rows become zeros, and rows that come
 * from another rank are left unchanged. n: rows of out. */
extern "C" __global__ void __launch_bounds__(GPT_CUDA_THREADS)
    gpt_gather_kernel(uint32_t n, uint32_t width, uint32_t top_k, const uint32_t *from,
                      const uint16_t *x, uint16_t *out)
{
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * GPT_CUDA_THREADS + threadIdx.x;
    const uint32_t row = static_cast<uint32_t>(i / (width / 8));
    const uint32_t column = static_cast<uint32_t>(i % (width / 8)) * 8;
    uint32_t choice;

    if (row >= n) {
        return;
    }
    choice = from[row];
    if (choice == GPT_CUDA_NO_ROW) {
        store8(out + 8 * i, vec8{});
    } else if (choice != GPT_CUDA_OTHERS_ROW) {
        *reinterpret_cast<uint4 *>(out + 8 * i) = *reinterpret_cast<const uint4 *>(
            x + static_cast<uint64_t>(choice / top_k) * width + column);
    }
}
CST_KERNEL(gpt_gather_kernel);

/* As gpt_gather_kernel, with gate x dx rounded to bf16 in place of x. */
extern "C" __global__ void __launch_bounds__(GPT_CUDA_THREADS)
    gpt_gather_gated_kernel(uint32_t n, uint32_t width, uint32_t top_k, const uint32_t *from,
                            const float *gates, const float *dx, uint16_t *out)
{
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * GPT_CUDA_THREADS + threadIdx.x;
    const uint32_t row = static_cast<uint32_t>(i / (width / 8));
    const uint32_t column = static_cast<uint32_t>(i % (width / 8)) * 8;
    uint32_t choice;

    if (row >= n) {
        return;
    }
    choice = from[row];
    if (choice == GPT_CUDA_NO_ROW) {
        store8(out + 8 * i, vec8{});
    } else if (choice != GPT_CUDA_OTHERS_ROW) {
        vec8 g = load8(dx + static_cast<uint64_t>(choice / top_k) * width + column);

#pragma unroll
        for (int e = 0; e < 8; e++) {
            g.v[e] *= gates[choice];
        }
        store8(out + 8 * i, g);
    }
}
CST_KERNEL(gpt_gather_gated_kernel);

/* out[row] := sum over the row's choices, in their order, of gate x y[place of the choice]. Without
 * gates all gates are 1. */
extern "C" __global__ void __launch_bounds__(GPT_CUDA_THREADS)
    gpt_combine_kernel(uint32_t rows, uint32_t width, uint32_t top_k, const uint32_t *place,
                       const float *gates, const uint16_t *y, uint16_t *out)
{
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * GPT_CUDA_THREADS + threadIdx.x;
    const uint32_t row = static_cast<uint32_t>(i / (width / 8));
    const uint32_t column = static_cast<uint32_t>(i % (width / 8)) * 8;
    vec8 sum = {};

    if (row >= rows) {
        return;
    }
    for (uint64_t j = static_cast<uint64_t>(row) * top_k; j < (row + 1ull) * top_k; j++) {
        vec8 x = load8(y + static_cast<uint64_t>(place[j]) * width + column);
        float gate = gates != nullptr ? gates[j] : 1.0f;

#pragma unroll
        for (int e = 0; e < 8; e++) {
            sum.v[e] += gate * x.v[e];
        }
    }
    store8(out + 8 * i, sum);
}
CST_KERNEL(gpt_combine_kernel);

/* dz (bf16): gradient of a row's logits. It has a contribution of the gates, whose gradients are y
 * . dx, and one of the balance loss, whose gradient by p_e is scale x shares_e. A block computes a
 * row, with the arithmetic of client/gpt/router.c. */
extern "C" __global__ void __launch_bounds__(GPT_CUDA_ROUTE_THREADS)
    gpt_choose_backward_kernel(uint32_t width, uint32_t experts, uint32_t top_k,
                               const uint32_t *place, const uint32_t *chosen, const float *gates,
                               const float *probs, const float *shares, float scale,
                               const uint16_t *y, const float *dx, uint16_t *dz)
{
    __shared__ float2 room[2][32];
    __shared__ float dgates[GPT_CUDA_MAX_EXPERTS];
    const uint64_t row = blockIdx.x;
    float mean = 0.0f;
    float of_gates = 0.0f;

    place += row * top_k;
    chosen += row * top_k;
    gates += row * top_k;
    probs += row * experts;
    for (uint32_t j = 0; j < top_k; j++) {
        const uint16_t *result = y + static_cast<uint64_t>(place[j]) * width;
        float dot = 0.0f;

        for (uint32_t i = 8 * threadIdx.x; i < width; i += 8 * GPT_CUDA_ROUTE_THREADS) {
            vec8 a = load8(result + i);
            vec8 b = load8(dx + row * width + i);

#pragma unroll
            for (int e = 0; e < 8; e++) {
                dot += a.v[e] * b.v[e];
            }
        }
        dot = block_sum(dot, 0.0f, room[j % 2]).x;
        of_gates += gates[j] * dot;
        if (threadIdx.x == 0) {
            dgates[j] = dot;
        }
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < experts; e += GPT_CUDA_ROUTE_THREADS) {
        mean += probs[e] * (scale * shares[e] + (top_k == 1 && chosen[0] == e ? dgates[0] : 0.0f));
    }
    mean = block_sum(mean, 0.0f, room[top_k % 2]).x;
    for (uint32_t e = threadIdx.x; e < experts; e += GPT_CUDA_ROUTE_THREADS) {
        const float direct = top_k == 1 && chosen[0] == e ? dgates[0] : 0.0f;
        float sum = probs[e] * (scale * shares[e] + direct - mean);

        for (uint32_t j = 0; top_k > 1 && j < top_k; j++) {
            sum += chosen[j] == e ? gates[j] * (dgates[j] - of_gates) : 0.0f;
        }
        dz[row * experts + e] = cst_bf16_down(sum);
    }
}
CST_KERNEL(gpt_choose_backward_kernel);
