// SPDX-License-Identifier: Apache-2.0
/* The attention kernels, with one instance per width of a head. attention.h says what they
 * compute. */
#include "client/gpt/cuda/attention_backward.cuh"
#include "client/gpt/cuda/attention_forward.cuh"

#define FORWARD(dim, tiles, warps, columns, blocks, parts)                                         \
    extern "C" __global__ void __launch_bounds__(32 * warps, blocks) gpt_attention_forward_##dim(  \
        struct gpt_attention_sizes sizes, const uint16_t *qkv, uint16_t *out, float *lse)          \
    {                                                                                              \
        attention::forward<dim, tiles, warps, columns>(sizes, qkv, out, lse);                      \
    }                                                                                              \
    CST_KERNEL(gpt_attention_forward_##dim);
GPT_ATTENTION_FORWARD(FORWARD)

#define BACKWARD(what, dim, tiles, warps, columns, blocks, parts)                                  \
    extern "C" __global__ void __launch_bounds__(32 * warps, blocks) gpt_attention_##what##_##dim( \
        struct gpt_attention_sizes sizes, const uint16_t *qkv, const uint16_t *dout,               \
        const float *scratch, uint64_t n_rows, uint16_t *dqkv)                                     \
    {                                                                                              \
        attention::what<dim, tiles, warps, columns, parts>(sizes, qkv, dout, scratch, n_rows,      \
                                                           dqkv);                                  \
    }                                                                                              \
    CST_KERNEL(gpt_attention_##what##_##dim);
#define DQ(...) BACKWARD(dq, __VA_ARGS__)
#define DKV(...) BACKWARD(dkv, __VA_ARGS__)
GPT_ATTENTION_DQ(DQ)
GPT_ATTENTION_DKV(DKV)

extern "C" __global__ void __launch_bounds__(GPT_ATTENTION_PREPARE *GPT_ATTENTION_PREPARE_LANES)
    gpt_attention_prepare(struct gpt_attention_sizes sizes, const uint16_t *out,
                          const uint16_t *dout, const float *lse, float *scratch, uint64_t n_rows)
{
    attention::prepare(sizes, out, dout, lse, scratch, n_rows);
}
CST_KERNEL(gpt_attention_prepare);

#undef FORWARD
#undef BACKWARD
#undef DQ
#undef DKV
