/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/plan/preset.h"

#include <stdio.h>
#include <string.h>

#define GPT2(n, l, h)                                                                              \
    {                                                                                              \
        .name = "gpt2-" n, .layers = l, .width = h, .feed = 4 * (h), .heads = (h) / 64,            \
        .vocab = 50257, .positions = 1024, .context = 1024, .tied = true                           \
    }
#define OPT(n, l, h, a)                                                                            \
    {                                                                                              \
        .name = "opt-" n, .layers = l, .width = h, .feed = 4 * (h), .heads = a, .vocab = 50272,    \
        .positions = 2050, .context = 2048, .tied = true                                           \
    }
#define LLAMA(n, l, h, f)                                                                          \
    {                                                                                              \
        .name = "llama-" n, .layers = l, .width = h, .feed = f, .heads = (h) / 128,                \
        .vocab = 32000, .context = 2048, .gated = true                                             \
    }

#define MEGATRON(n, l, h, a)                                                                       \
    {                                                                                              \
        .name = "megatron-" n, .layers = l, .width = h, .feed = 4 * (h), .heads = a,               \
        .vocab = 50257, .positions = 1024, .context = 1024, .tied = true                           \
    }

static const struct cst_preset presets[] = {
    GPT2("124m", 12, 768),
    GPT2("355m", 24, 1024),
    GPT2("774m", 36, 1280),
    GPT2("1.5b", 48, 1600),
    OPT("1.3b", 24, 2048, 32),
    OPT("2.7b", 32, 2560, 32),
    OPT("6.7b", 32, 4096, 32),
    OPT("13b", 40, 5120, 40),
    OPT("30b", 48, 7168, 56),
    OPT("66b", 64, 9216, 72),
    OPT("175b", 96, 12288, 96),
    LLAMA("7b", 32, 4096, 11008),
    LLAMA("13b", 40, 5120, 13824),
    LLAMA("33b", 60, 6656, 17920),
    LLAMA("65b", 80, 8192, 22016),
    MEGATRON("2.5b", 54, 1920, 20),
    MEGATRON("8.3b", 72, 3072, 32),
    {.name = "gpt-neox-20b",
     .layers = 44,
     .width = 6144,
     .feed = 4 * 6144,
     .heads = 64,
     .vocab = 50432,
     .context = 2048},
    {.name = "moe-8x124m",
     .layers = 12,
     .width = 768,
     .feed = 3072,
     .heads = 12,
     .vocab = 50257,
     .positions = 1024,
     .context = 1024,
     .tied = true,
     .n_experts = 8,
     .top_k = 2},
    {.name = "cistern-gpt",
     .layers = 4,
     .width = 128,
     .feed = 512,
     .heads = 4,
     .vocab = 256,
     .positions = 128,
     .context = 128,
     .tied = true},
};
#define N_PRESETS (sizeof presets / sizeof presets[0])

const struct cst_preset *cst_preset(uint32_t i)
{
    return i < N_PRESETS ? &presets[i] : NULL;
}

const struct cst_preset *cst_preset_find(const char *name)
{
    for (uint32_t i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            return &presets[i];
        }
    }
    return NULL;
}

/* -- declaring ------------------------------------------------------------------------------ */

/* A declaration in progress; the first error ends it. */
struct maker {
    struct cst_model *model;
    const struct cst_preset *preset;
    const struct cst_preset_options *options;
    struct cst_err *err;
    int status;
    double tokens;       /* Tokens per micro-batch and rank. */
    uint64_t context;    /* Tokens of a sequence. */
    char prefix[32];     /* "h3." for example. */
    uint32_t tensors[8]; /* Tensors of the next operator. */
    uint32_t n_tensors;
    double flops;   /* Flops of the next operator's matrices. */
    uint32_t group; /* Group of its tensors. */
    uint32_t pattern;
    double share; /* Share of the tokens that it processes. */
};

static const char *named(const struct maker *m, const char *name, char *out, size_t n)
{
    (void)snprintf(out, n, "%s%s", m->prefix, name);
    return out;
}

/* Use a tensor that is already declared. */
static void use(struct maker *m, uint32_t tensor, bool matrix)
{
    if (m->status == CST_OK) {
        m->tensors[m->n_tensors++] = tensor;
        m->flops +=
            matrix ? 2 * m->tokens * m->share * (double)m->model->tensors[tensor].n_elems : 0;
    }
}

/* Declare a tensor and use it; 0 columns: a vector. Returns its number. */
static uint32_t tensor(struct maker *m, const char *name, uint32_t rows, uint32_t columns,
                       bool matrix)
{
    char full[CST_LAYOUT_NAME_BYTES];
    uint32_t number = m->model->n_tensors;
    const struct cst_tensor_words words = {.name = named(m, name, full, sizeof full),
                                           .shape = (int64_t[]){rows, columns},
                                           .n_dims = columns == 0 ? 1 : 2,
                                           .lr_scale = 1,
                                           .decay_scale = matrix ? 1.0f : 0.0f,
                                           .group = m->group,
                                           .pattern = m->pattern};

    if (m->status == CST_OK) {
        m->status = cst_model_tensor(m->model, &words, m->err);
    }
    use(m, number, matrix);
    return number;
}

/* Declare the operator over the tensors used since the last one. @kept: bytes per token that it
 * keeps. If it @ends a branch, what it adds to the hidden state is all that goes on. */
static void add_operator(struct maker *m, const char *name, double more_flops, double kept,
                         bool ends)
{
    const uint64_t hidden = ends ? (uint64_t)(2 * m->tokens) * m->preset->width : 0;
    char full[CST_LAYOUT_NAME_BYTES];
    const struct cst_operator_hints hints = {.flops = m->flops + more_flops,
                                             .activation_bytes =
                                                 (uint64_t)(kept * m->tokens * m->share),
                                             .expected_uses = 1,
                                             .out_bytes = hidden,
                                             .sum_bytes = hidden};

    if (m->status == CST_OK) {
        m->status = cst_model_operator(m->model, named(m, name, full, sizeof full), m->tensors,
                                       m->n_tensors, &hints, m->err);
    }
    m->n_tensors = 0;
    m->flops = 0;
}

static void norm(struct maker *m, const char *w, const char *b)
{
    (void)tensor(m, w, m->preset->width, 0, false);
    if (!m->preset->gated) {
        (void)tensor(m, b, m->preset->width, 0, false);
    }
}

static void matrix(struct maker *m, const char *w, const char *b, uint32_t rows, uint32_t columns)
{
    (void)tensor(m, w, rows, columns, true);
    if (!m->preset->gated) {
        (void)tensor(m, b, columns, 0, false);
    }
}

/* Bytes that a layer keeps per token: 10 h for q, k, v and their inputs, 3 h for the projection,
 * and 4 h and 4 f for the feed-forward network (5 f and the product's mask, where 34 h is cited) or
 * 6 f. */
static double kept(const struct maker *m, double bytes)
{
    return m->options->recompute ? 0 : bytes;
}

static void attention(struct maker *m)
{
    uint32_t h = m->preset->width;

    norm(m, "ln1.w", "ln1.b");
    matrix(m, "qkv.w", "qkv.b", h, 3 * h);
    add_operator(m, "qkv", 4 * m->tokens * (double)m->context * h,
                 m->options->recompute ? 2 * h : 10 * h, false);
    matrix(m, "proj.w", "proj.b", h, h);
    add_operator(m, "proj", 0, kept(m, 3 * h), true);
}

static void dense(struct maker *m)
{
    uint32_t h = m->preset->width, f = m->preset->feed;

    norm(m, "ln2.w", "ln2.b");
    if (m->preset->gated) {
        (void)tensor(m, "gate.w", h, f, true);
    }
    matrix(m, "fc.w", "fc.b", h, f);
    add_operator(m, "fc", 0, kept(m, 4.0 * h + (m->preset->gated ? 4.0 : 2.0) * f), false);
    matrix(m, "fcproj.w", "fcproj.b", f, h);
    add_operator(m, "fcproj", 0, kept(m, 2.0 * f + h), true);
}

static uint32_t expert_group(struct maker *m, uint32_t expert)
{
    uint32_t world = m->options->world == 0 ? 1 : m->options->world;

    return world == 1 ? 0 : 1 + expert % world;
}

static void mixture(struct maker *m)
{
    uint32_t h = m->preset->width, f = m->preset->feed, n = m->preset->n_experts;
    char layer[sizeof m->prefix];

    memcpy(layer, m->prefix, sizeof layer);
    norm(m, "ln2.w", "ln2.b");
    (void)tensor(m, "router.w", h, n, true);
    add_operator(m, "router", 0, kept(m, 4.0 * h), false);
    m->pattern = CST_PATTERN_EXPERT;
    /* An expert gets tokens of all ranks: n experts process top_k x world x tokens. */
    m->share = (double)m->preset->top_k / n * (m->options->world == 0 ? 1 : m->options->world);
    for (uint32_t e = 0; e < n; e++) {
        (void)snprintf(m->prefix, sizeof m->prefix, "%.12se%u.", layer, e);
        m->group = expert_group(m, e);
        matrix(m, "fc.w", "fc.b", h, f);
        add_operator(m, "fc", 0, kept(m, 2.0 * f), false);
        matrix(m, "fcproj.w", "fcproj.b", f, h);
        add_operator(m, "fcproj", 0, kept(m, 2.0 * f + h), e + 1 == n);
    }
    memcpy(m->prefix, layer, sizeof layer);
    m->share = 1;
    m->group = 0;
    m->pattern = CST_PATTERN_SHARD;
}

static void groups(struct maker *m)
{
    for (uint32_t rank = 0; m->preset->n_experts > 0 && m->options->world > 1 &&
                            rank < m->options->world && m->status == CST_OK;
         rank++) {
        m->status = cst_model_group(m->model, cst_set_of(rank), m->err);
    }
}

int cst_preset_declare(struct cst_model *model, const struct cst_preset *preset,
                       const struct cst_preset_options *options, struct cst_err *err)
{
    struct maker m = {.model = model, .preset = preset, .options = options, .err = err, .share = 1};
    uint32_t h = preset->width, wte;

    m.context = options->context == 0 ? preset->context : options->context;
    if (preset->positions > 0 && m.context > preset->positions) {
        return cst_err_set(err, CST_EINVAL, "%s has %u positions, fewer than %u tokens (--context)",
                           preset->name, preset->positions, options->context);
    }
    m.tokens = (double)m.context * (options->batch == 0 ? 1 : options->batch);
    groups(&m);
    wte = tensor(&m, "wte", preset->vocab, h, false);
    if (preset->positions > 0) {
        (void)tensor(&m, "wpe", preset->positions, h, false);
    }
    add_operator(&m, "embed", m.tokens * h, 0, true);
    for (uint32_t i = 0; i < preset->layers; i++) {
        (void)snprintf(m.prefix, sizeof m.prefix, "h%u.", i);
        attention(&m);
        if (preset->n_experts > 0) {
            mixture(&m);
        } else {
            dense(&m);
        }
    }
    m.prefix[0] = '\0';
    norm(&m, "lnf.w", "lnf.b");
    if (preset->tied) {
        use(&m, wte, true);
    } else {
        (void)tensor(&m, "head.w", preset->vocab, h, true);
    }
    add_operator(&m, "head", 0, 2.0 * h, false);
    return m.status;
}
