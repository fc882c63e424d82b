/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the kernels of a mixture of experts against the host's router and simple loops. */
#include "client/gpt/router.h"
#include "kernels/math/cast.h"
#include "tests/gpt/cuda_cases.h"

#include <stdlib.h>
#include <string.h>

#define ROWS 67
#define WIDTH 144

static const struct gpt_attention_shape any_shape = {1, 16, 1, 16};

/* A router on the host whose logits are its input, because its weight is the identity matrix. */
struct router {
    struct gpt_layers layers;
    struct gpt_router_shape shape;
    struct gpt_choice choice;
    float *z;       /* rows x experts */
    uint16_t *unit; /* experts x experts */
};

static void router_open(struct router *r, uint32_t experts, uint32_t top_k)
{
    const size_t choices = (size_t)ROWS * top_k;

    r->layers = cuda_host_layers(WIDTH, &any_shape);
    r->shape = (struct gpt_router_shape){ROWS, experts, experts, top_k};
    r->z = cuda_numbers(ROWS * experts, 40 + experts, 2);
    r->unit = cuda_must(calloc((size_t)experts * experts, sizeof *r->unit));
    for (size_t e = 0; e < experts; e++) {
        r->unit[e * experts + e] = cst_fp32_to_bf16(1);
        r->z[e] = r->z[experts + e] = 0.5f; /* Ties; the first experts are chosen. */
    }
    r->choice = (struct gpt_choice){
        .probs = cuda_must(malloc(ROWS * experts * sizeof(float))),
        .chosen = cuda_must(malloc(choices * sizeof(uint32_t))),
        .gates = cuda_must(malloc(choices * sizeof(float))),
        .counts = cuda_must(malloc(experts * sizeof(uint32_t))),
        .slots = cuda_must(malloc(choices * sizeof(uint32_t))),
        .rows = cuda_must(malloc(choices * sizeof(uint32_t))),
    };
    gpt_router_forward(&r->layers, &r->shape, r->z, r->unit, &r->choice);
}

static void router_close(struct router *r)
{
    gpt_layers_close(&r->layers);
    free(r->z);
    free(r->unit);
    free(r->choice.probs);
    free(r->choice.chosen);
    free(r->choice.gates);
    free(r->choice.counts);
    free(r->choice.slots);
    free(r->choice.rows);
}

static void expect_same(struct cuda_case *c, const char *what, CUdeviceptr p, const uint32_t *want,
                        size_t n)
{
    float *wide = cuda_must(malloc(n * sizeof *wide));
    uint32_t *got = cuda_must(malloc(n * sizeof *got));
    float *back = cuda_back(c, p, n);

    memcpy(got, back, n * sizeof *got);
    for (size_t i = 0; i < n; i++) {
        back[i] = (float)got[i];
        wide[i] = (float)want[i];
    }
    (void)cuda_case_near(c, what, back, wide, n, 0);
    free(wide);
    free(got);
    free(back);
}

/* The gradient of the logits is that of the host's router. The results of the choices are in
 * reverse order: choice i has row n - 1 - i of y. */
static void try_backward(struct cuda_case *c, struct router *r)
{
    const uint32_t experts = r->shape.experts, top_k = r->shape.top_k;
    const size_t n = (size_t)ROWS * top_k;
    uint16_t *y = cuda_numbers16(n * WIDTH, 41, 1, 0);
    float *dx = cuda_numbers(ROWS * WIDTH, 42, 0.1f), *shares = cuda_numbers(experts, 43, 0.2f);
    float *dgates = cuda_must(calloc(n, sizeof *dgates)),
          *dz = cuda_must(malloc(ROWS * experts * 4));
    float *dw = cuda_must(malloc((size_t)experts * experts * 4)),
          *dh = cuda_must(malloc(ROWS * experts * 4));
    uint32_t *place = cuda_must(malloc(n * sizeof *place));
    struct gpt_cuda_choose_back back = {
        .rows = ROWS, .width = WIDTH, .experts = experts, .top_k = top_k};
    struct cst_err err = {0};

    for (size_t i = 0; i < n; i++) {
        place[i] = (uint32_t)(n - 1 - i);
        for (size_t k = 0; k < WIDTH; k++) {
            dgates[i] += cst_bf16_to_fp32(y[place[i] * WIDTH + k]) * dx[i / top_k * WIDTH + k];
        }
    }
    gpt_router_backward(&r->layers, &r->shape, r->z, r->unit, &r->choice, dgates, shares, 0.7f, dz,
                        dw, dh);
    back.place = cuda_there(c, place, n * 4);
    back.chosen = cuda_there(c, r->choice.chosen, n * 4);
    back.gates = cuda_there(c, r->choice.gates, n * 4);
    back.probs = cuda_there(c, r->choice.probs, ROWS * experts * 4);
    back.shares = cuda_there(c, shares, experts * 4);
    back.scale = 0.7f * (float)experts / ROWS;
    back.y = cuda_there(c, y, n * WIDTH * 2);
    back.dx = cuda_there(c, dx, ROWS * WIDTH * 4);
    back.dz = cuda_there(c, NULL, ROWS * experts * 2);
    cuda_done(c, gpt_cuda_choose_backward(&c->gpu->kernels, &back, &err), &err);
    cuda_expect16(c, "gradient of logits", back.dz, dz, ROWS * experts, CUDA_NEAR_BF16);
    gpt_gpu_free(c->gpu, back.place);
    gpt_gpu_free(c->gpu, back.chosen);
    gpt_gpu_free(c->gpu, back.gates);
    gpt_gpu_free(c->gpu, back.probs);
    gpt_gpu_free(c->gpu, back.shares);
    gpt_gpu_free(c->gpu, back.y);
    gpt_gpu_free(c->gpu, back.dx);
    free(y);
    free(dx);
    free(shares);
    free(dgates);
    free(dz);
    free(dw);
    free(dh);
    free(place);
}

/* Choices, gates and probabilities are those of the host's router, for fewer and for more experts
 * than a warp has lanes, and for one choice (whose gate is a probability), several choices, and all
 * experts. */
void cuda_case_choose(struct cuda_case *c)
{
    static const uint32_t shapes[][2] = {{6, 1}, {6, 2}, {6, 6}, {75, 4}};

    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const uint32_t experts = shapes[s][0], top_k = shapes[s][1];
        const size_t n = (size_t)ROWS * top_k;
        struct router r;
        CUdeviceptr probs, chosen = cuda_there(c, NULL, n * 4), gates = cuda_there(c, NULL, n * 4);
        struct cst_err err = {0};

        router_open(&r, experts, top_k);
        probs = cuda_there(c, r.z, ROWS * experts * 4);
        cuda_done(
            c, gpt_cuda_choose(&c->gpu->kernels, ROWS, experts, top_k, probs, chosen, gates, &err),
            &err);
        expect_same(c, "chosen", chosen, r.choice.chosen, n);
        cuda_expect(c, "gates", gates, r.choice.gates, n, CUDA_NEAR_FP32);
        cuda_expect(c, "probabilities", probs, r.choice.probs, ROWS * experts, CUDA_NEAR_FP32);
        try_backward(c, &r);
        router_close(&r);
    }
}

#define TOP_K 3
#define OUT 50 /* gathered rows */

/* Gathering copies the requested rows, with or without their gates. Padding rows become zero, and
 * rows of another rank are unchanged. */
static void try_gather(struct cuda_case *c, bool gated)
{
    const size_t n = ROWS * WIDTH, choices = ROWS * TOP_K;
    float *dx = cuda_numbers(n, 44, 1), *gates = cuda_numbers(choices, 45, 1);
    uint16_t *x = cuda_numbers16(n, 46, 1, 0), *old = cuda_numbers16(OUT * WIDTH, 47, 1, 0);
    float *want = cuda_wide(old, OUT * WIDTH);
    uint32_t from[OUT];
    CUdeviceptr f, g = cuda_there(c, gates, choices * 4), there_x, out;
    struct cst_err err = {0};

    for (uint32_t i = 0; i < OUT; i++) {
        from[i] = i % 7 == 3   ? GPT_CUDA_NO_ROW
                  : i % 7 == 5 ? GPT_CUDA_OTHERS_ROW
                               : i * 89 % (ROWS * TOP_K);
        for (size_t k = 0; k < WIDTH && from[i] != GPT_CUDA_OTHERS_ROW; k++) {
            const size_t at = from[i] / TOP_K * (size_t)WIDTH + k;

            want[i * WIDTH + k] = from[i] == GPT_CUDA_NO_ROW ? 0
                                  : gated                    ? gates[from[i]] * dx[at]
                                                             : cst_bf16_to_fp32(x[at]);
        }
    }
    f = cuda_there(c, from, sizeof from);
    out = cuda_there(c, old, OUT * WIDTH * 2);
    there_x = gated ? cuda_there(c, dx, n * 4) : cuda_there(c, x, n * 2);
    cuda_done(
        c,
        gated ? gpt_cuda_gather_gated(&c->gpu->kernels, OUT, WIDTH, TOP_K, f, g, there_x, out, &err)
              : gpt_cuda_gather(&c->gpu->kernels, OUT, WIDTH, TOP_K, f, there_x, out, &err),
        &err);
    cuda_expect16(c, gated ? "gated rows" : "rows", out, want, OUT * WIDTH,
                  gated ? CUDA_NEAR_BF16 : 0);
    gpt_gpu_free(c->gpu, f);
    gpt_gpu_free(c->gpu, g);
    gpt_gpu_free(c->gpu, there_x);
    free(dx);
    free(gates);
    free(x);
    free(old);
    free(want);
}

/* Combining adds the results of a row's choices, with or without gates. */
static void try_combine(struct cuda_case *c, bool gated)
{
    const size_t choices = ROWS * TOP_K;
    float *gates = cuda_numbers(choices, 48, 1);
    uint16_t *y = cuda_numbers16(choices * WIDTH, 49, 1, 0);
    float *want = cuda_must(calloc(ROWS * WIDTH, sizeof *want));
    uint32_t place[ROWS * TOP_K];
    CUdeviceptr p, g = cuda_there(c, gates, choices * 4), there_y, out;
    struct cst_err err = {0};

    for (size_t i = 0; i < choices; i++) {
        place[i] = (uint32_t)(i * 89 % choices);
        for (size_t k = 0; k < WIDTH; k++) {
            want[i / TOP_K * WIDTH + k] +=
                (gated ? gates[i] : 1) * cst_bf16_to_fp32(y[place[i] * WIDTH + k]);
        }
    }
    p = cuda_there(c, place, sizeof place);
    there_y = cuda_there(c, y, choices * WIDTH * 2);
    out = cuda_there(c, NULL, ROWS * WIDTH * 2);
    cuda_done(c,
              gpt_cuda_combine(&c->gpu->kernels, ROWS, WIDTH, TOP_K, p, gated ? g : 0, there_y, out,
                               &err),
              &err);
    cuda_expect16(c, gated ? "gated sums" : "sums", out, want, ROWS * WIDTH, CUDA_NEAR_BF16);
    gpt_gpu_free(c->gpu, p);
    gpt_gpu_free(c->gpu, g);
    gpt_gpu_free(c->gpu, there_y);
    free(gates);
    free(y);
    free(want);
}

void cuda_case_rows(struct cuda_case *c)
{
    try_gather(c, false);
    try_gather(c, true);
    try_combine(c, false);
    try_combine(c, true);
}
