// SPDX-License-Identifier: Apache-2.0
/* The residual stream and its gradient where a stage ends: what gpt_norm_kernel and
 * gpt_norm_backward_kernel do inside of a stage, without a norm. n is a multiple of 8. */
#include "client/gpt/cuda/args.h"
#include "client/gpt/cuda/vector.cuh"

using namespace gpt;

/* sum := x + branch. It moves 10 bytes per element. */
extern "C" __global__ void __launch_bounds__(GPT_CUDA_THREADS)
    gpt_residual_kernel(uint64_t n, const float *x, const uint16_t *branch, float *sum)
{
    uint64_t at = 8 * (static_cast<uint64_t>(blockIdx.x) * GPT_CUDA_THREADS + threadIdx.x);

    if (at < n) {
        vec8 total = load8(x + at);
        vec8 add = load8(branch + at);

#pragma unroll
        for (int e = 0; e < 8; e++) {
            total.v[e] += add.v[e];
        }
        store8(sum + at, total);
    }
}
CST_KERNEL(gpt_residual_kernel);

/* y := x rounded to bf16. It moves 6 bytes per element. */
extern "C" __global__ void __launch_bounds__(GPT_CUDA_THREADS)
    gpt_round_kernel(uint64_t n, const float *x, uint16_t *y)
{
    uint64_t at = 8 * (static_cast<uint64_t>(blockIdx.x) * GPT_CUDA_THREADS + threadIdx.x);

    if (at < n) {
        store8(y + at, load8(x + at));
    }
}
CST_KERNEL(gpt_round_kernel);
