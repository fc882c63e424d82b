// SPDX-License-Identifier: Apache-2.0
/* Softmax, cross entropy and gradient in one pass. A warp computes a row of GPT_CUDA_VOCAB logits,
 * eight of them in each lane's registers. */
#include "client/gpt/cuda/args.h"
#include "client/gpt/cuda/vector.cuh"

using namespace gpt;

/* losses[row] := -log softmax(logits)[target]; dlogits := (softmax - onehot) x scale. */
extern "C" __global__ void __launch_bounds__(32 * GPT_CUDA_LOSS_ROWS)
    gpt_loss_kernel(uint32_t rows, const float *logits, const uint8_t *targets, float scale,
                    float *losses, uint16_t *dlogits)
{
    const uint32_t row = blockIdx.x * GPT_CUDA_LOSS_ROWS + threadIdx.x / 32;
    const uint32_t first = threadIdx.x % 32 * 8;
    uint32_t target;
    float most;
    float sum = 0.0f;
    float mine = 0.0f;
    vec8 x;

    if (row >= rows) {
        return; /* All lanes of a warp have this row. */
    }
    target = targets[row];
    x = load8(logits + static_cast<uint64_t>(row) * GPT_CUDA_VOCAB + first);
    most = x.v[0];
#pragma unroll
    for (int e = 1; e < 8; e++) {
        most = most > x.v[e] ? most : x.v[e];
    }
    most = warp_max(most);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        mine += first + e == target ? x.v[e] - most : 0.0f;
        x.v[e] = expf(x.v[e] - most);
        sum += x.v[e];
    }
    sum = warp_sum(sum);
    mine = warp_sum(mine);
    if (threadIdx.x % 32 == 0) {
        losses[row] = logf(sum) - mine;
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        x.v[e] = (x.v[e] / sum - (first + e == target ? 1.0f : 0.0f)) * scale;
    }
    store8(dlogits + static_cast<uint64_t>(row) * GPT_CUDA_VOCAB + first, x);
}
CST_KERNEL(gpt_loss_kernel);
