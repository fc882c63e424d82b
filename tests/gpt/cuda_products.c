/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of products and attention against the host, with cuBLASLt if it is available, else with the
 * plain kernel. */
#include "tests/gpt/cuda_cases.h"

#include "kernels/math/cast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Compute c = a b [+ bias] in double. The operands are stored as @p says. */
static void reference(const struct gpt_product *p, const uint16_t *a, const uint16_t *b,
                      const uint16_t *bias, float *c)
{
    for (size_t i = 0; i < p->m; i++) {
        for (size_t j = 0; j < p->n; j++) {
            double sum = bias != NULL ? (double)cst_bf16_to_fp32(bias[j]) : 0.0;

            for (size_t d = 0; d < p->k; d++) {
                const uint16_t x = p->turn_a ? a[d * p->m + i] : a[i * p->k + d];
                const uint16_t y = p->turn_b ? b[j * p->k + d] : b[d * p->n + j];

                sum += (double)cst_bf16_to_fp32(x) * (double)cst_bf16_to_fp32(y);
            }
            c[i * p->n + j] = (float)sum;
        }
    }
}

/* One product is right, with an fp32 or bf16 result that is overwritten or added to. */
static void try_product(struct cuda_case *c, struct gpt_product p)
{
    const size_t n = p.m * p.n;
    uint16_t *a = cuda_numbers16(p.m * p.k, 1, 1, 0), *b = cuda_numbers16(p.k * p.n, 2, 1, 0.1f);
    uint16_t *old = cuda_numbers16(n, 3, 1, 0), *bias = cuda_numbers16(p.n, 4, 1, 0);
    float *want = cuda_must(malloc(n * sizeof *want)), *old32 = cuda_wide(old, n);
    const bool with_bias = p.epilogue == GPT_EPILOGUE_BIAS;
    char what[96];
    struct cst_err err = {0};

    reference(&p, a, b, with_bias ? bias : NULL, want);
    for (size_t i = 0; p.accumulate && i < n; i++) {
        want[i] += old32[i];
    }
    p.a = cuda_there(c, a, p.m * p.k * 2);
    p.b = cuda_there(c, b, p.k * p.n * 2);
    p.bias = cuda_there(c, bias, p.n * 2);
    p.c = p.fp32 ? cuda_there(c, p.accumulate ? old32 : NULL, n * 4)
                 : cuda_there(c, p.accumulate ? old : NULL, n * 2);
    cuda_done(c, gpt_gpu_product(c->gpu, &p, &err), &err);
    (void)snprintf(what, sizeof what, "%zu x %zu x %zu, turned %d %d, fp32 %d, added %d, bias %d",
                   p.m, p.n, p.k, p.turn_a, p.turn_b, p.fp32, p.accumulate, with_bias);
    if (p.fp32) {
        cuda_expect(c, what, p.c, want, n, CUDA_NEAR_FP32);
    } else {
        cuda_expect16(c, what, p.c, want, n, CUDA_NEAR_BF16);
    }
    gpt_gpu_free(c->gpu, p.a);
    gpt_gpu_free(c->gpu, p.b);
    gpt_gpu_free(c->gpu, p.bias);
    free(a);
    free(b);
    free(old);
    free(bias);
    free(want);
    free(old32);
}

/* All products of a pass are right, in sizes that no tile divides. */
void cuda_case_product(struct cuda_case *c)
{
    /* The products are: forward; logits; gradient of weights, overwritten and added to; gradient of
     * an input; and a very small one. */
    try_product(c, (struct gpt_product){.m = 67, .n = 144, .k = 48, .epilogue = GPT_EPILOGUE_BIAS});
    try_product(c, (struct gpt_product){.m = 67, .n = 256, .k = 48, .turn_b = true, .fp32 = true});
    try_product(c, (struct gpt_product){.m = 144, .n = 48, .k = 67, .turn_a = true});
    try_product(
        c, (struct gpt_product){.m = 144, .n = 48, .k = 67, .turn_a = true, .accumulate = true});
    try_product(c, (struct gpt_product){.m = 67, .n = 48, .k = 144, .turn_b = true});
    try_product(c, (struct gpt_product){.m = 1, .n = 16, .k = 16});
}

/* The GELU epilogues of products give the results of the host's GELU, forward and backward. */
void cuda_case_epilogues(struct cuda_case *c)
{
    const size_t m = 67, n = 144, k = 48, all = m * n;
    uint16_t *a = cuda_numbers16(m * k, 5, 1, 0), *b = cuda_numbers16(k * n, 6, 0.2f, 0);
    uint16_t *bias = cuda_numbers16(n, 7, 1, 0);
    const struct gpt_attention_shape any = {1, 16, 1, 16};
    struct gpt_layers layers = cuda_host_layers(n, &any);
    float *pre = cuda_must(malloc(all * 4)), *act = cuda_must(malloc(all * 4)), *got;
    float *grad = cuda_must(malloc(all * 4)), sums[144];
    uint16_t zero[144] = {0}, *rounded = cuda_must(malloc(all * 2));
    struct gpt_product p = {.m = m, .n = n, .k = k, .epilogue = GPT_EPILOGUE_BIAS_GELU};
    struct cst_err err = {0};

    p.a = cuda_there(c, a, m * k * 2);
    p.b = cuda_there(c, b, k * n * 2);
    p.bias = cuda_there(c, bias, n * 2);
    p.c = cuda_there(c, NULL, all * 2);
    p.pre = cuda_there(c, NULL, all * 2);
    cuda_done(c, gpt_gpu_product(c->gpu, &p, &err), &err);
    reference(&p, a, b, bias, pre);
    got = cuda_back16(c, p.pre, all);
    (void)cuda_case_near(c, "pre", got, pre, all, CUDA_NEAR_BF16);
    gpt_gelu(&layers, m, n, got, zero, act);
    /* GELU may be applied to the sums before or after their rounding, and gelu' is at most 1.13. */
    cuda_expect16(c, "act", p.c, act, all, 3 * CUDA_NEAR_BF16);
    for (size_t i = 0; i < all; i++) {
        rounded[i] = cst_fp32_to_bf16(got[i]);
    }
    p.epilogue = GPT_EPILOGUE_GELU_BACKWARD;
    p.c = cuda_there(c, NULL, all * 2);
    p.pre = cuda_there(c, rounded, all * 2);
    cuda_done(c, gpt_gpu_product(c->gpu, &p, &err), &err);
    reference(&p, a, b, NULL, pre);
    gpt_gelu_backward(&layers, m, n, got, pre, grad, sums);
    cuda_expect16(c, "gradient of pre", p.c, grad, all, 3 * CUDA_NEAR_BF16);
    gpt_gpu_free(c->gpu, p.a);
    gpt_gpu_free(c->gpu, p.b);
    gpt_gpu_free(c->gpu, p.bias);
    gpt_gpu_free(c->gpu, p.pre);
    gpt_layers_close(&layers);
    free(a);
    free(b);
    free(bias);
    free(pre);
    free(act);
    free(got);
    free(grad);
    free(rounded);
}

/* Attention and its gradient are those of the host on the same inputs. The limits allow for
 * roundings to bf16, of 2^-8 each: of the results, of the probabilities before they are multiplied
 * by v, and two more in the gradient. */
static void try_attention(struct cuda_case *c, const struct gpt_attention_shape *shape)
{
    const size_t rows = shape->n_seqs * shape->context, d = shape->n_heads * shape->head_dim;
    const size_t n_lse = rows * shape->n_heads;
    struct gpt_layers layers = cuda_host_layers(3 * d, shape);
    uint16_t *qkv = cuda_numbers16(rows * 3 * d, 8, 1, 0),
             *dout = cuda_numbers16(rows * d, 9, 1, 0);
    float *x = cuda_wide(qkv, rows * 3 * d), *g = cuda_wide(dout, rows * d);
    float *out = cuda_must(malloc(rows * d * 4)), *lse = cuda_must(malloc(n_lse * 4));
    float *dqkv = cuda_must(malloc(rows * 3 * d * 4));
    const size_t scratch_bytes = gpt_cuda_attention_scratch(shape);
    CUdeviceptr p = cuda_there(c, qkv, rows * 3 * d * 2), o = cuda_there(c, NULL, rows * d * 2);
    CUdeviceptr l = cuda_there(c, NULL, n_lse * 4), go = cuda_there(c, dout, rows * d * 2);
    CUdeviceptr gi = cuda_there(c, NULL, rows * 3 * d * 2);
    CUdeviceptr scratch = cuda_there(c, NULL, scratch_bytes + 16);
    const struct gpt_gpu *gpu = c->gpu;
    struct cst_err err = {0};

    cuda_done(c, gpt_cuda_attention(&gpu->attention, gpu->stream, shape, p, o, l, &err), &err);
    cuda_done(c,
              gpt_cuda_attention_backward(&gpu->attention, gpu->stream, shape, p, o, l, go, gi,
                                          scratch, &err),
              &err);
    gpt_attention(&layers, shape, x, out, lse);
    gpt_attention_backward(&layers, shape, x, out, lse, g, dqkv);
    cuda_expect(c, "lse", l, lse, n_lse, 1e-4);
    cuda_expect16(c, "attention", o, out, rows * d, 2 * CUDA_NEAR_BF16);
    cuda_expect16(c, "dqkv", gi, dqkv, rows * 3 * d, 4 * CUDA_NEAR_BF16);
    gpt_gpu_free(gpu, p);
    gpt_gpu_free(gpu, go);
    gpt_gpu_free(gpu, scratch);
    gpt_layers_close(&layers);
    free(qkv);
    free(dout);
    free(x);
    free(g);
    free(out);
    free(lse);
    free(dqkv);
}

/* Attention is right for the narrowest heads and for wide ones, with sequences that no tile
 * divides. */
void cuda_case_attention(struct cuda_case *c)
{
    static const struct gpt_attention_shape shapes[] = {
        {2, 67, 2, 16}, {1, 40, 3, 64}, {1, 130, 1, 128}};

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        try_attention(c, &shapes[i]);
    }
}
