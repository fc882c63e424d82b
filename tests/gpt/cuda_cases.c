/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpt/cuda_cases.h"

#include "client/gpt/rng.h"
#include "kernels/math/cast.h"

#include <stdlib.h>
#include <string.h>

#define ROWS 67 /* not a multiple of a strip */
#define WIDTH 144
#define CONTEXT 67

static const struct gpt_attention_shape any_shape = {1, CONTEXT, 1, 16};

/* -- layer norm ------------------------------------------------------------------------------- */

/* The residual addition is exact, and the norm is that of the sum. Without a branch nothing is
 * added, and sum is not written. */
static void case_norm(struct cuda_case *c)
{
    const size_t n = ROWS * WIDTH;
    struct gpt_layers layers = cuda_host_layers(4 * WIDTH, &any_shape);
    float *x = cuda_numbers(n, 1, 1), *y = cuda_must(malloc(n * sizeof *y)), mean[ROWS], rstd[ROWS];
    uint16_t *branch = cuda_numbers16(n, 2, 1, 0), *w = cuda_numbers16(WIDTH, 3, 0.2f, 1),
             *b = cuda_numbers16(WIDTH, 4, 0.2f, 0);

    for (int with = 0; with < 2; with++) {
        CUdeviceptr dx = cuda_there(c, x, n * 4), dbranch = cuda_there(c, branch, n * 2);
        CUdeviceptr dw = cuda_there(c, w, WIDTH * 2), db = cuda_there(c, b, WIDTH * 2);
        CUdeviceptr sum = cuda_there(c, NULL, n * 4), dy = cuda_there(c, NULL, n * 2);
        CUdeviceptr m = cuda_there(c, NULL, ROWS * 4), r = cuda_there(c, NULL, ROWS * 4);
        struct cst_err err = {0};

        cuda_done(c,
                  gpt_cuda_norm(&c->gpu->kernels, ROWS, WIDTH, dx, with != 0 ? dbranch : 0, dw, db,
                                sum, dy, m, r, &err),
                  &err);
        for (size_t i = 0; with != 0 && i < n; i++) {
            x[i] += cst_bf16_to_fp32(branch[i]);
        }
        gpt_layernorm(&layers, ROWS, WIDTH, x, w, b, y, mean, rstd);
        cuda_expect(c, "mean", m, mean, ROWS, CUDA_NEAR_FP32);
        cuda_expect(c, "rstd", r, rstd, ROWS, CUDA_NEAR_FP32);
        cuda_expect16(c, "y", dy, y, n, CUDA_NEAR_BF16);
        if (with != 0) {
            cuda_expect(c, "sum", sum, x, n, 0);
        } else {
            gpt_gpu_free(c->gpu, sum);
        }
        gpt_gpu_free(c->gpu, dx);
        gpt_gpu_free(c->gpu, dbranch);
        gpt_gpu_free(c->gpu, dw);
        gpt_gpu_free(c->gpu, db);
    }
    gpt_layers_close(&layers);
    free(x);
    free(y);
    free(branch);
    free(w);
    free(b);
}

/* dx, dw and db are overwritten or added to, as requested. The operand is dx rounded to bf16. */
static void case_norm_backward(struct cuda_case *c)
{
    const size_t n = ROWS * WIDTH;
    struct gpt_layers layers = cuda_host_layers(4 * WIDTH, &any_shape);
    float *x = cuda_numbers(n, 5, 1), *y = cuda_must(malloc(n * sizeof *y)), mean[ROWS], rstd[ROWS];
    float *dx = cuda_numbers(n, 6, 0.1f), dw[WIDTH], db[WIDTH];
    uint16_t *dy = cuda_numbers16(n, 7, 0.1f, 0), *w = cuda_numbers16(WIDTH, 8, 0.2f, 1),
             *old = cuda_numbers16(WIDTH, 9, 1, 0);
    float *wide_dy = cuda_wide(dy, n), *got;

    gpt_layernorm(&layers, ROWS, WIDTH, x, w, old, y, mean, rstd);
    for (int first = 0; first < 2; first++) {
        const struct gpt_cuda_norm_back back_ = {
            .rows = ROWS,
            .width = WIDTH,
            .dy = cuda_there(c, dy, n * 2),
            .x = cuda_there(c, x, n * 4),
            .w = cuda_there(c, w, WIDTH * 2),
            .mean = cuda_there(c, mean, sizeof mean),
            .rstd = cuda_there(c, rstd, sizeof rstd),
            .first = first != 0,
            .dx = cuda_there(c, first != 0 ? NULL : dx, n * 4),
            .operand = cuda_there(c, NULL, n * 2),
            .parts = cuda_there(c, NULL, gpt_cuda_parts_bytes(ROWS, WIDTH)),
            .dw = {cuda_there(c, NULL, WIDTH * 2), false},
            .db = {cuda_there(c, old, WIDTH * 2), true},
        };
        struct cst_err err = {0};

        cuda_done(c, gpt_cuda_norm_backward(&c->gpu->kernels, &back_, &err), &err);
        if (first != 0) {
            memset(dx, 0, n * sizeof *dx);
        }
        gpt_layernorm_backward(&layers, ROWS, WIDTH, wide_dy, x, w, mean, rstd, dx, dw, db);
        for (size_t i = 0; i < WIDTH; i++) {
            db[i] += cst_bf16_to_fp32(old[i]);
        }
        got = cuda_back(c, back_.dx, n);
        (void)cuda_case_near(c, "dx", got, dx, n, CUDA_NEAR_FP32);
        cuda_expect16(c, "dx as operand", back_.operand, got, n, CUDA_NEAR_BF16);
        cuda_expect16(c, "dw", back_.dw.at, dw, WIDTH, CUDA_NEAR_BF16);
        cuda_expect16(c, "db", back_.db.at, db, WIDTH, CUDA_NEAR_BF16);
        free(got);
        gpt_gpu_free(c->gpu, back_.dy);
        gpt_gpu_free(c->gpu, back_.x);
        gpt_gpu_free(c->gpu, back_.w);
        gpt_gpu_free(c->gpu, back_.mean);
        gpt_gpu_free(c->gpu, back_.rstd);
        gpt_gpu_free(c->gpu, back_.parts);
    }
    gpt_layers_close(&layers);
    free(x);
    free(y);
    free(dx);
    free(dy);
    free(w);
    free(old);
    free(wide_dy);
}

/* -- other kernels ---------------------------------------------------------------------------- */

/* The gradient of a bias is right for more rows than a strip and fewer columns than a block, and
 * for more columns than a block. */
static void case_bias_grad(struct cuda_case *c)
{
    static const size_t shapes[][2] = {{300, 48}, {5, 528}};

    for (size_t s = 0; s < 2; s++) {
        const size_t rows = shapes[s][0], width = shapes[s][1];
        uint16_t *dy = cuda_numbers16(rows * width, 10, 1, 0.1f),
                 *old = cuda_numbers16(width, 11, 1, 0);
        float *want = cuda_wide(old, width);
        CUdeviceptr d = cuda_there(c, dy, rows * width * 2);
        CUdeviceptr parts = cuda_there(c, NULL, gpt_cuda_parts_bytes(rows, width));
        CUdeviceptr out = cuda_there(c, old, width * 2);
        struct cst_err err = {0};

        cuda_done(c,
                  gpt_cuda_bias_grad(&c->gpu->kernels, rows, width, d, parts,
                                     (struct gpt_cuda_grad){out, true}, &err),
                  &err);
        for (size_t i = 0; i < rows * width; i++) {
            want[i % width] += cst_bf16_to_fp32(dy[i]);
        }
        cuda_expect16(c, "sums", out, want, width, CUDA_NEAR_BF16);
        gpt_gpu_free(c->gpu, d);
        gpt_gpu_free(c->gpu, parts);
        free(dy);
        free(old);
        free(want);
    }
}

/* GELU and its gradient are those of the host. */
static void case_gelu(struct cuda_case *c)
{
    const size_t n = ROWS * WIDTH;
    struct gpt_layers layers = cuda_host_layers(4 * WIDTH, &any_shape);
    uint16_t *pre = cuda_numbers16(n, 12, 2, 0), *dy = cuda_numbers16(n, 13, 1, 0),
             zero[WIDTH] = {0};
    float *x = cuda_wide(pre, n), *g = cuda_wide(dy, n), *y = cuda_must(malloc(n * sizeof *y)),
          sums[WIDTH];
    CUdeviceptr p = cuda_there(c, pre, n * 2), act = cuda_there(c, NULL, n * 2),
                d = cuda_there(c, dy, n * 2);
    struct cst_err err = {0};

    cuda_done(c, gpt_cuda_gelu(&c->gpu->kernels, n, p, act, &err), &err);
    cuda_done(c, gpt_cuda_gelu_backward(&c->gpu->kernels, n, p, d, &err), &err);
    gpt_gelu(&layers, ROWS, WIDTH, x, zero, y);
    cuda_expect16(c, "act", act, y, n, CUDA_NEAR_BF16);
    gpt_gelu_backward(&layers, ROWS, WIDTH, x, g, y, sums);
    cuda_expect16(c, "dpre", d, y, n, CUDA_NEAR_BF16);
    gpt_gpu_free(c->gpu, p);
    gpt_layers_close(&layers);
    free(pre);
    free(dy);
    free(x);
    free(g);
    free(y);
}

static uint8_t *bytes(size_t n, uint64_t seed)
{
    uint8_t *x = cuda_must(malloc(n));

    for (size_t i = 0; i < n; i++) {
        x[i] = (uint8_t)(i % 7 == 0 ? 'e' : gpt_rng_u64(seed, 3, i));
    }
    return x;
}

/* The tokens @bytes as the host has them. */
static uint32_t *words(const uint8_t *bytes, size_t n)
{
    uint32_t *x = cuda_must(malloc(n * sizeof *x));

    for (size_t i = 0; i < n; i++) {
        x[i] = bytes[i];
    }
    return x;
}

/* Losses and their gradients are those of the host. Some logits are large: softmax must not
 * overflow. */
static void case_loss(struct cuda_case *c)
{
    const size_t n = ROWS * GPT_CUDA_VOCAB;
    struct gpt_layers layers = cuda_host_layers(4 * WIDTH, &any_shape);
    float *logits = cuda_numbers(n, 14, 40), losses[ROWS],
          *dlogits = cuda_must(malloc(n * sizeof *dlogits));
    uint8_t *targets = bytes(ROWS, 15);
    uint32_t *host_targets = words(targets, ROWS);
    CUdeviceptr l = cuda_there(c, logits, n * 4), t = cuda_there(c, targets, ROWS);
    CUdeviceptr out = cuda_there(c, NULL, ROWS * 4), d = cuda_there(c, NULL, n * 2);
    struct cst_err err = {0};

    cuda_done(c, gpt_cuda_loss(&c->gpu->kernels, ROWS, l, t, 1.0f / ROWS, out, d, &err), &err);
    (void)gpt_cross_entropy(&layers, ROWS, GPT_CUDA_VOCAB, logits, host_targets, losses, dlogits);
    cuda_expect(c, "loss", out, losses, ROWS, CUDA_NEAR_FP32);
    cuda_expect16(c, "dlogits", d, dlogits, n, CUDA_NEAR_BF16);
    gpt_gpu_free(c->gpu, l);
    gpt_gpu_free(c->gpu, t);
    gpt_layers_close(&layers);
    free(logits);
    free(dlogits);
    free(targets);
    free(host_targets);
}

/* The embedding of two sequences is exact, since the sum of two bf16 numbers is exact in fp32. The
 * gradients are overwritten or added to, as requested. */
static void case_embed(struct cuda_case *c)
{
    const size_t rows = 2 * CONTEXT, n = rows * WIDTH, vocab = (size_t)GPT_CUDA_VOCAB * WIDTH;
    const size_t positions = (size_t)CONTEXT * WIDTH;
    struct gpt_layers layers = cuda_host_layers(4 * WIDTH, &any_shape);
    uint8_t *tokens = bytes(rows, 16);
    uint32_t *host_tokens = words(tokens, rows);
    uint16_t *wte = cuda_numbers16(vocab, 17, 1, 0), *wpe = cuda_numbers16(positions, 18, 1, 0);
    float *x = cuda_must(malloc(n * sizeof *x)), *dx = cuda_numbers(n, 19, 1),
          *old = cuda_wide(wte, vocab);
    float *dwte = cuda_must(malloc(vocab * sizeof *dwte)), *dwpe = cuda_must(malloc(positions * 4));
    CUdeviceptr t = cuda_there(c, tokens, rows), e = cuda_there(c, wte, vocab * 2);
    CUdeviceptr p = cuda_there(c, wpe, positions * 2), y = cuda_there(c, NULL, n * 4),
                d = cuda_there(c, dx, n * 4);
    struct cst_err err = {0};

    cuda_done(c, gpt_cuda_embed(&c->gpu->kernels, rows, WIDTH, CONTEXT, t, e, p, y, &err), &err);
    gpt_embed(&layers, rows, WIDTH, CONTEXT, host_tokens, wte, wpe, x);
    cuda_expect(c, "x", y, x, n, 0);
    cuda_done(c,
              gpt_cuda_embed_backward(&c->gpu->kernels, rows, WIDTH, CONTEXT, t, d,
                                      (struct gpt_cuda_grad){e, true},
                                      (struct gpt_cuda_grad){p, false}, &err),
              &err);
    gpt_embed_backward(&layers, rows, WIDTH, CONTEXT, GPT_CUDA_VOCAB, host_tokens, dx, dwte, dwpe);
    for (size_t i = 0; i < vocab; i++) {
        dwte[i] += old[i];
    }
    cuda_expect16(c, "dwte", e, dwte, vocab, CUDA_NEAR_BF16);
    cuda_expect16(c, "dwpe", p, dwpe, positions, CUDA_NEAR_BF16);
    gpt_gpu_free(c->gpu, t);
    gpt_gpu_free(c->gpu, d);
    gpt_layers_close(&layers);
    free(tokens);
    free(host_tokens);
    free(wte);
    free(wpe);
    free(x);
    free(dx);
    free(old);
    free(dwte);
    free(dwpe);
}

const struct cuda_case_row *cuda_cases_all(unsigned *n)
{
    static const struct cuda_case_row rows[] = {
        {"norm", case_norm},
        {"norm_backward", case_norm_backward},
        {"bias", case_bias_grad},
        {"gelu", case_gelu},
        {"loss", case_loss},
        {"embed", case_embed},
        {"product", cuda_case_product},
        {"epilogues", cuda_case_epilogues},
        {"attention", cuda_case_attention},
        {"choose", cuda_case_choose},
        {"rows", cuda_case_rows},
    };

    *n = sizeof rows / sizeof rows[0];
    return rows;
}
