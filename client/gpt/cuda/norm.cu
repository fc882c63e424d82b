// SPDX-License-Identifier: Apache-2.0
/* Layer norm with the preceding residual addition, and its backward pass. A block of whole warps
 * computes a row. Each thread keeps eight elements in registers, so that every row is read once. */
#include "client/gpt/cuda/args.h"
#include "client/gpt/cuda/vector.cuh"

using namespace gpt;

/* sum := x + branch if there is a branch; y := (sum - mean) rstd w + b. It moves 12 bytes per
 * element with a branch, and 6 without. */
extern "C" __global__ void __launch_bounds__(GPT_CUDA_MAX_WIDTH / 8, 1)
    gpt_norm_kernel(uint32_t width, const float *x, const uint16_t *branch, const uint16_t *w,
                    const uint16_t *b, float *sum, uint16_t *y, float *mean, float *rstd)
{
    __shared__ float2 room[2][32];
    const uint64_t at = static_cast<uint64_t>(blockIdx.x) * width;
    const share mine = my_share(width);
    vec8 row = load_row(x + at, mine);
    vec8 scale;
    vec8 shift;
    float total = 0.0f;
    float squares = 0.0f;
    float m;
    float r;

    if (branch != nullptr) {
        vec8 add = load_row(branch + at, mine);

#pragma unroll
        for (int e = 0; e < 8; e++) {
            row.v[e] += add.v[e];
        }
        store_row(sum + at, mine, row);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        total += row.v[e];
    }
    m = block_sum(total, 0.0f, room[0]).x / static_cast<float>(width);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        float d = (e < 4 ? mine.has_first : mine.has_second) ? row.v[e] - m : 0.0f;

        squares += d * d;
    }
    r = rsqrtf(block_sum(squares, 0.0f, room[1]).x / static_cast<float>(width) + 1e-5f);
    scale = load_row_shared(w, mine);
    shift = load_row_shared(b, mine);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        row.v[e] = (row.v[e] - m) * r * scale.v[e] + shift.v[e];
    }
    store_row(y + at, mine, row);
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = m;
        rstd[blockIdx.x] = r;
    }
}
CST_KERNEL(gpt_norm_kernel);

/* dx := [dx +] gradient, operand := bf16(dx). The sums of a strip of strip_rows rows for dw and db
 * are written to parts[strip][2][width]. It moves 16 bytes per element, or 12 where dx is not read.
 * Elements beyond the row have gradient 0 and scale 0. */
extern "C" __global__ void __launch_bounds__(GPT_CUDA_MAX_WIDTH / 8, 1)
    gpt_norm_backward_kernel(uint32_t rows, uint32_t strip_rows, uint32_t width, const uint16_t *dy,
                             const float *x, const uint16_t *w, const float *mean,
                             const float *rstd, uint32_t accumulate, float *dx, uint16_t *operand,
                             float *parts)
{
    __shared__ float2 room[2][32];
    const uint32_t first = blockIdx.x * strip_rows;
    const uint32_t end = min(first + strip_rows, rows);
    const share mine = my_share(width);
    vec8 dw = {};
    vec8 db = {};

    for (uint32_t i = first; i < end; i++) {
        const uint64_t at = static_cast<uint64_t>(i) * width;
        const float m = mean[i];
        const float r = rstd[i];
        /* w is in a near cache, and too large to keep in registers. */
        const vec8 scale = load_row_shared(w, mine);
        vec8 gain = load_row(dy + at, mine);
        vec8 hat = load_row(x + at, mine);
        vec8 out = {};
        float sum = 0.0f;
        float along = 0.0f;
        float2 sums;

        if (accumulate != 0) {
            out = load_row(dx + at, mine);
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            hat.v[e] = (hat.v[e] - m) * r;
            dw.v[e] += gain.v[e] * hat.v[e];
            db.v[e] += gain.v[e];
            gain.v[e] *= scale.v[e];
            sum += gain.v[e];
            along += gain.v[e] * hat.v[e];
        }
        sums = block_sum(sum, along, room[i % 2]);
        sum = sums.x / static_cast<float>(width);
        along = sums.y / static_cast<float>(width);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            out.v[e] += (gain.v[e] - sum - hat.v[e] * along) * r;
        }
        store_row(dx + at, mine, out);
        store_row(operand + at, mine, out);
    }
    parts += static_cast<uint64_t>(blockIdx.x) * 2 * width;
    store_row(parts, mine, dw);
    store_row(parts + width, mine, db);
}
CST_KERNEL(gpt_norm_backward_kernel);
