// SPDX-License-Identifier: Apache-2.0
/* GELU in its tanh form, for products whose library has no such epilogue. The forward kernel moves
 * 16 bytes per element of the model's width, and the backward kernel 24. n is a multiple of 8. */
#include "client/gpt/cuda/args.h"
#include "client/gpt/cuda/vector.cuh"

using namespace gpt;

namespace
{

const float ROOT = 0.7978845608f; /* sqrt(2 / pi) */
const float CUBE = 0.044715f;

} // namespace

extern "C" __global__ void __launch_bounds__(GPT_CUDA_THREADS)
    gpt_gelu_kernel(uint64_t n, const uint16_t *pre, uint16_t *act)
{
    uint64_t at = 8 * (static_cast<uint64_t>(blockIdx.x) * GPT_CUDA_THREADS + threadIdx.x);

    if (at < n) {
        vec8 x = load8(pre + at);

#pragma unroll
        for (int e = 0; e < 8; e++) {
            float t = tanhf(ROOT * (x.v[e] + CUBE * x.v[e] * x.v[e] * x.v[e]));

            x.v[e] = 0.5f * x.v[e] * (1.0f + t);
        }
        store8(act + at, x);
    }
}
CST_KERNEL(gpt_gelu_kernel);

extern "C" __global__ void __launch_bounds__(GPT_CUDA_THREADS)
    gpt_gelu_backward_kernel(uint64_t n, const uint16_t *pre, uint16_t *grad)
{
    uint64_t at = 8 * (static_cast<uint64_t>(blockIdx.x) * GPT_CUDA_THREADS + threadIdx.x);

    if (at < n) {
        vec8 x = load8(pre + at);
        vec8 g = load8(grad + at);

#pragma unroll
        for (int e = 0; e < 8; e++) {
            float v = x.v[e];
            float t = tanhf(ROOT * (v + CUBE * v * v * v));
            float inner = ROOT * (1.0f + 3.0f * CUBE * v * v);

            g.v[e] *= 0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * inner;
        }
        store8(grad + at, g);
    }
}
CST_KERNEL(gpt_gelu_backward_kernel);
