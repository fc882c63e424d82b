/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/layers.h"

#include "client/gpt/memory.h"
#include "client/gpt/parallel.h"
#include "cistern/status.h"
#include "proto/isa.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern const struct gpt_simd gpt_simd_plain;
#ifdef HAVE_X86_SIMD
extern const struct gpt_simd gpt_simd_avx2, gpt_simd_avx512;
#endif
#ifdef HAVE_NEON
extern const struct gpt_simd gpt_simd_neon;
#endif

const struct gpt_simd *gpt_simd_get(const char *isa)
{
    const struct gpt_simd *rows[3] = {&gpt_simd_plain};
    size_t n = 1;

#ifdef HAVE_X86_SIMD
    __builtin_cpu_init();
    if (cst_isa_limit() >= CST_ISA_AVX2 && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma")) {
        rows[n++] = &gpt_simd_avx2;
        if (cst_isa_limit() >= CST_ISA_AVX512 && __builtin_cpu_supports("avx512f") &&
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq")) {
            rows[n++] = &gpt_simd_avx512;
        }
    }
#endif
#ifdef HAVE_NEON
    if (cst_isa_limit() >= CST_ISA_NEON) {
        rows[n++] = &gpt_simd_neon;
    }
#endif
    while (n-- > 0) {
        if (isa == NULL || strcmp(rows[n]->isa, isa) == 0) {
            return rows[n];
        }
    }
    return NULL;
}

/* Return the number of floats of scratch per thread that the attention functions need: those of the
 * arrays of attention_impl.c, whose KEYS is 64 and QUERIES is 32. The backward pass has two
 * transposed matrices and two blocks of scores. The forward pass has one of each, and a block of
 * outputs. */
static size_t attention_scratch(const struct gpt_attention_shape *shape)
{
    const size_t columns = (shape->context + 63) / 64 * 64;

    return 2 * shape->head_dim * columns + 2 * 32 * 64 + 32 * shape->head_dim;
}

int gpt_layers_init(struct gpt_layers *layers, const struct gpt_simd *simd, bool bf16,
                    unsigned n_threads, size_t max_width, const struct gpt_attention_shape *shape)
{
    const size_t scratch = (attention_scratch(shape) + 63) & ~(size_t)63;
    float *stripes = gpt_memory_get(2 * GPT_STRIPES * max_width * sizeof(float));
    float *attention = gpt_memory_get(n_threads * scratch * sizeof(float));

    if (stripes == NULL || attention == NULL) {
        gpt_memory_put(stripes);
        gpt_memory_put(attention);
        return CST_ENOMEM;
    }
    *layers = (struct gpt_layers){
        .simd = simd,
        .bf16 = bf16,
        .n_threads = n_threads,
        .stripes = stripes,
        .max_width = max_width,
        .scratch = attention,
        .scratch_elems = scratch,
    };
    return 0;
}

void gpt_layers_close(struct gpt_layers *layers)
{
    gpt_memory_put(layers->stripes);
    gpt_memory_put(layers->scratch);
    *layers = (struct gpt_layers){0};
}

/* Arguments of one call. Each body below uses the fields that its function needs. */
struct work {
    const struct gpt_layers *layers;         /* context of the rank */
    size_t rows, width, context;             /* shape of the arrays; positions of a sequence */
    const float *x, *dy, *mean, *rstd;       /* fp32 inputs */
    const uint16_t *w, *b;                   /* bf16 inputs */
    const uint32_t *tokens;                  /* input: one per row */
    float *y, *kept_mean, *kept_rstd;        /* fp32 outputs */
    void *operand;                           /* output; in the attention's backward pass an input */
    const struct gpt_attention_shape *shape; /* sizes of the attention */
    float *dwte, *dwpe;                      /* fp32 outputs of the embedding's backward pass */
    float scale;                             /* factor on the loss's gradient */
    bool accumulate;                         /* argument of put */
};

static void *operand_at(const struct work *k, size_t row)
{
    return k->operand == NULL
               ? NULL
               : (char *)k->operand + row * k->width * (k->layers->bf16 ? 2 : sizeof(float));
}

static size_t stripe_row(const struct work *k, size_t stripe)
{
    return k->rows * stripe / GPT_STRIPES;
}

/* Partial sums number @which of @stripe, set to zero. */
static float *stripe_sums(const struct work *k, size_t stripe, size_t which)
{
    float *sums = k->layers->stripes + (which * GPT_STRIPES + stripe) * k->layers->max_width;

    memset(sums, 0, k->width * sizeof *sums);
    return sums;
}

/* out = sum over the stripes, in their order. */
static void add_stripes(const struct gpt_layers *layers, size_t width, size_t which, float *out)
{
    const float *sums = layers->stripes + which * GPT_STRIPES * layers->max_width;

    memcpy(out, sums, width * sizeof *out);
    for (size_t s = 1; s < GPT_STRIPES; s++) {
        sums += layers->max_width;
        for (size_t i = 0; i < width; i++) {
            out[i] += sums[i];
        }
    }
}

static void layernorm_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;

    (void)thread;
    k->layers->simd->layernorm(last - first, k->width, k->x + first * k->width, k->w, k->b,
                               operand_at(k, first), k->layers->bf16, k->kept_mean + first,
                               k->kept_rstd + first);
}

void gpt_layernorm(const struct gpt_layers *layers, size_t rows, size_t width, const float *x,
                   const uint16_t *w, const uint16_t *b, void *y, float *mean, float *rstd)
{
    struct work k = {.layers = layers, .width = width, .x = x, .w = w, .b = b, .operand = y};

    k.kept_mean = mean;
    k.kept_rstd = rstd;
    gpt_parallel(layers->n_threads, rows, layernorm_body, &k);
}

static void layernorm_backward_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;

    (void)thread;
    for (size_t s = first; s < last; s++) {
        const size_t row = stripe_row(k, s), at = row * k->width;

        k->layers->simd->layernorm_backward(stripe_row(k, s + 1) - row, k->width, k->dy + at,
                                            k->x + at, k->w, k->mean + row, k->rstd + row,
                                            k->y + at, stripe_sums(k, s, 0), stripe_sums(k, s, 1));
    }
}

void gpt_layernorm_backward(const struct gpt_layers *layers, size_t rows, size_t width,
                            const float *dy, const float *x, const uint16_t *w, const float *mean,
                            const float *rstd, float *dx, float *dw, float *db)
{
    struct work k = {.layers = layers, .rows = rows, .width = width, .dy = dy, .x = x, .w = w};

    k.mean = mean;
    k.rstd = rstd;
    k.y = dx;
    gpt_parallel(layers->n_threads, GPT_STRIPES, layernorm_backward_body, &k);
    add_stripes(layers, width, 0, dw);
    add_stripes(layers, width, 1, db);
}

static void gelu_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;

    (void)thread;
    k->layers->simd->gelu(last - first, k->width, k->y + first * k->width, k->b,
                          operand_at(k, first), k->layers->bf16);
}

void gpt_gelu(const struct gpt_layers *layers, size_t rows, size_t width, float *x,
              const uint16_t *bias, void *y)
{
    struct work k = {.layers = layers, .width = width, .y = x, .b = bias, .operand = y};

    gpt_parallel(layers->n_threads, rows, gelu_body, &k);
}

static void gelu_backward_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;

    (void)thread;
    for (size_t s = first; s < last; s++) {
        const size_t row = stripe_row(k, s), at = row * k->width;

        k->layers->simd->gelu_backward(stripe_row(k, s + 1) - row, k->width, k->x + at, k->dy + at,
                                       operand_at(k, row), k->layers->bf16, stripe_sums(k, s, 0));
    }
}

void gpt_gelu_backward(const struct gpt_layers *layers, size_t rows, size_t width, const float *x,
                       const float *dy, void *dx, float *sums)
{
    struct work k = {.layers = layers, .rows = rows, .width = width, .x = x, .dy = dy};

    k.operand = dx;
    gpt_parallel(layers->n_threads, GPT_STRIPES, gelu_backward_body, &k);
    add_stripes(layers, width, 0, sums);
}

static void bias_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;

    (void)thread;
    k->layers->simd->bias(last - first, k->width, k->y + first * k->width, k->b);
}

void gpt_bias(const struct gpt_layers *layers, size_t rows, size_t width, float *y,
              const uint16_t *bias)
{
    struct work k = {.layers = layers, .width = width, .y = y, .b = bias};

    gpt_parallel(layers->n_threads, rows, bias_body, &k);
}

static void residual_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;
    const size_t at = first * k->width;

    (void)thread;
    k->layers->simd->residual(last - first, k->width, k->x + at, k->dy + at, k->b, k->y + at);
}

void gpt_residual(const struct gpt_layers *layers, size_t rows, size_t width, const float *x,
                  const float *branch, const uint16_t *bias, float *y)
{
    /* The field dy holds the branch. */
    struct work k = {.layers = layers, .width = width, .x = x, .dy = branch, .b = bias, .y = y};

    gpt_parallel(layers->n_threads, rows, residual_body, &k);
}

static void operand_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;

    (void)thread;
    for (size_t s = first; s < last; s++) {
        const size_t row = stripe_row(k, s);

        k->layers->simd->operand(stripe_row(k, s + 1) - row, k->width, k->dy + row * k->width,
                                 operand_at(k, row), k->layers->bf16, stripe_sums(k, s, 0));
    }
}

void gpt_operand(const struct gpt_layers *layers, size_t rows, size_t width, const float *dy,
                 void *out, float *sums)
{
    struct work k = {.layers = layers, .rows = rows, .width = width, .dy = dy, .operand = out};

    gpt_parallel(layers->n_threads, GPT_STRIPES, operand_body, &k);
    add_stripes(layers, width, 0, sums);
}

static void cross_entropy_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;

    (void)thread;
    k->layers->simd->cross_entropy(last - first, k->width, k->x + first * k->width,
                                   k->tokens + first, k->scale, k->y + first, operand_at(k, first),
                                   k->layers->bf16);
}

double gpt_cross_entropy(const struct gpt_layers *layers, size_t rows, size_t width,
                         const float *logits, const uint32_t *targets, float *losses, void *dlogits)
{
    struct work k = {.layers = layers, .width = width, .x = logits, .tokens = targets};
    double sum = 0.0;

    k.scale = 1.0f / (float)rows;
    k.y = losses;
    k.operand = dlogits;
    gpt_parallel(layers->n_threads, rows, cross_entropy_body, &k);
    for (size_t r = 0; r < rows; r++) {
        sum += (double)losses[r];
    }
    return sum / (double)rows;
}

static void embed_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;

    (void)thread;
    k->layers->simd->embed(first, last - first, k->width, k->context, k->tokens + first, k->w, k->b,
                           k->y + first * k->width);
}

void gpt_embed(const struct gpt_layers *layers, size_t rows, size_t width, size_t context,
               const uint32_t *tokens, const uint16_t *wte, const uint16_t *wpe, float *y)
{
    struct work k = {.layers = layers, .width = width, .context = context, .tokens = tokens};

    k.w = wte;
    k.b = wpe;
    k.y = y;
    gpt_parallel(layers->n_threads, rows, embed_body, &k);
}

/* Sum columns [first, last) x GPT_SIMD_ELEMS of all rows, in row order. Threads divide the columns,
 * so that the order of sums does not depend on their number. */
static void embed_backward_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;

    (void)thread;
    for (size_t r = 0; r < k->rows; r++) {
        const float *dx = k->dy + r * k->width;
        float *token = k->dwte + (size_t)k->tokens[r] * k->width;
        float *position = k->dwpe + r % k->context * k->width;

        for (size_t i = first * GPT_SIMD_ELEMS; i < last * GPT_SIMD_ELEMS; i++) {
            token[i] += dx[i];
            position[i] += dx[i];
        }
    }
}

void gpt_embed_backward(const struct gpt_layers *layers, size_t rows, size_t width, size_t context,
                        size_t vocab, const uint32_t *tokens, const float *dx, float *dwte,
                        float *dwpe)
{
    struct work k = {.layers = layers, .rows = rows, .width = width, .context = context};

    k.tokens = tokens;
    k.dy = dx;
    k.dwte = dwte;
    k.dwpe = dwpe;
    memset(dwte, 0, vocab * width * sizeof *dwte);
    memset(dwpe, 0, context * width * sizeof *dwpe);
    gpt_parallel(layers->n_threads, width / GPT_SIMD_ELEMS, embed_backward_body, &k);
}

/* Vectors [first, last) of GPT_SIMD_ELEMS elements. */
static void put_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;
    const size_t at = first * GPT_SIMD_ELEMS;

    (void)thread;
    k->layers->simd->put((last - first) * GPT_SIMD_ELEMS, k->x + at, (uint16_t *)k->operand + at,
                         k->accumulate);
}

void gpt_put(const struct gpt_layers *layers, size_t n, const float *src, uint16_t *dst,
             bool accumulate)
{
    struct work k = {.layers = layers, .x = src, .operand = dst, .accumulate = accumulate};

    gpt_parallel(layers->n_threads, n / GPT_SIMD_ELEMS, put_body, &k);
}

static void upcast_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;
    const size_t at = first * GPT_SIMD_ELEMS;

    (void)thread;
    k->layers->simd->upcast((last - first) * GPT_SIMD_ELEMS, k->w + at, k->y + at);
}

void gpt_upcast(const struct gpt_layers *layers, size_t n, const uint16_t *src, float *dst)
{
    struct work k = {.layers = layers, .w = src, .y = dst};

    gpt_parallel(layers->n_threads, n / GPT_SIMD_ELEMS, upcast_body, &k);
}

static void attention_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;
    const struct gpt_layers *layers = k->layers;

    for (size_t i = first; i < last; i++) {
        layers->simd->attention(k->shape, i / k->shape->n_heads, i % k->shape->n_heads, k->x,
                                k->operand, layers->bf16, k->y,
                                layers->scratch + thread * layers->scratch_elems);
    }
}

void gpt_attention(const struct gpt_layers *layers, const struct gpt_attention_shape *shape,
                   const float *qkv, void *out, float *lse)
{
    struct work k = {.layers = layers, .shape = shape, .x = qkv, .operand = out, .y = lse};

    gpt_parallel(layers->n_threads, shape->n_seqs * shape->n_heads, attention_body, &k);
}

static void attention_backward_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct work *k = arg;
    const struct gpt_layers *layers = k->layers;

    for (size_t i = first; i < last; i++) {
        layers->simd->attention_backward(k->shape, i / k->shape->n_heads, i % k->shape->n_heads,
                                         k->x, k->operand, layers->bf16, k->mean, k->dy, k->y,
                                         layers->scratch + thread * layers->scratch_elems);
    }
}

void gpt_attention_backward(const struct gpt_layers *layers,
                            const struct gpt_attention_shape *shape, const float *qkv,
                            const void *out, const float *lse, const float *dout, float *dqkv)
{
    /* The field mean holds lse. */
    struct work k = {
        .layers = layers, .shape = shape, .x = qkv, .dy = dout, .mean = lse, .y = dqkv};

    k.operand = (void *)(uintptr_t)out;
    gpt_parallel(layers->n_threads, shape->n_seqs * shape->n_heads, attention_backward_body, &k);
}
