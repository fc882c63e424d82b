/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/model.h"

#include "client/gpt/parallel.h"
#include "client/gpt/pipeline.h"
#include "client/gpt/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Append a tensor and return its number. @columns 0: a vector. */
static int add_tensor(struct gpt_model *m, const char *prefix, const char *name, uint32_t rows,
                      uint32_t columns, float mean, float deviation)
{
    struct gpt_tensor *t = &m->tensors[m->n_tensors];

    *t = (struct gpt_tensor){
        .shape = {rows, columns},
        .n_dims = columns == 0 ? 1 : 2,
        .n_elems = (uint64_t)rows * (columns == 0 ? 1 : columns),
        .decay_scale = columns == 0 ? 0.0f : 1.0f,
        .mean = mean,
        .deviation = deviation,
    };
    (void)snprintf(t->name, sizeof t->name, "%s%s", prefix, name);
    m->n_params += t->n_elems;
    return (int)m->n_tensors++;
}

static struct gpt_operator *add_operator(struct gpt_model *m, const char *prefix, const char *name,
                                         enum gpt_op_kind kind, uint32_t layer)
{
    struct gpt_operator *op = &m->operators[m->n_operators++];

    *op = (struct gpt_operator){.kind = kind, .layer = layer};
    (void)snprintf(op->name, sizeof op->name, "%s%s", prefix, name);
    return op;
}

static void use(struct gpt_operator *op, int tensor)
{
    op->tensors[op->n_tensors++] = tensor;
}

static float residual_deviation(const struct gpt_model *m)
{
    return (float)(0.02 / sqrt(2.0 * m->layers));
}

static void add_mlp(struct gpt_model *m, const char *prefix, uint32_t layer)
{
    const uint32_t d = m->width;
    struct gpt_operator *op = add_operator(m, prefix, "fc", GPT_OP_FC, layer);

    use(op, add_tensor(m, prefix, "ln2.w", d, 0, 1, 0));
    use(op, add_tensor(m, prefix, "ln2.b", d, 0, 0, 0));
    use(op, add_tensor(m, prefix, "fc.w", d, 4 * d, 0, 0.02f));
    use(op, add_tensor(m, prefix, "fc.b", 4 * d, 0, 0, 0));
    op = add_operator(m, prefix, "fcproj", GPT_OP_FCPROJ, layer);
    use(op, add_tensor(m, prefix, "fcproj.w", 4 * d, d, 0, residual_deviation(m)));
    use(op, add_tensor(m, prefix, "fcproj.b", d, 0, 0, 0));
}

/* Add expert @e of a block. With several ranks one rank alone holds it. */
static void add_expert(struct gpt_model *m, const char *block, uint32_t layer, uint32_t e)
{
    const uint32_t d = m->width;
    struct gpt_operator *op;
    char prefix[32];

    (void)snprintf(prefix, sizeof prefix, "%se%u", block, e);
    op = add_operator(m, prefix, "", GPT_OP_EXPERT, layer);
    op->expert = e;
    (void)snprintf(prefix, sizeof prefix, "%se%u.", block, e);
    use(op, add_tensor(m, prefix, "fc.w", d, 4 * d, 0, 0.02f));
    use(op, add_tensor(m, prefix, "fc.b", 4 * d, 0, 0, 0));
    use(op, add_tensor(m, prefix, "fcproj.w", 4 * d, d, 0, residual_deviation(m)));
    use(op, add_tensor(m, prefix, "fcproj.b", d, 0, 0, 0));
    for (uint32_t i = 0; i < op->n_tensors; i++) {
        struct gpt_tensor *t = &m->tensors[op->tensors[i]];

        t->pattern = CST_PATTERN_EXPERT;
        t->group = m->world == 1 ? 0 : 1 + gpt_model_expert_rank(e, m->world);
    }
}

static void add_mixture(struct gpt_model *m, const char *prefix, uint32_t layer)
{
    const uint32_t d = m->width;
    struct gpt_operator *op = add_operator(m, prefix, "router", GPT_OP_ROUTER, layer);

    use(op, add_tensor(m, prefix, "ln2.w", d, 0, 1, 0));
    use(op, add_tensor(m, prefix, "ln2.b", d, 0, 0, 0));
    use(op, add_tensor(m, prefix, "router.w", d, m->experts, 0, 0.02f));
    for (uint32_t e = 0; e < m->experts; e++) {
        add_expert(m, prefix, layer, e);
    }
}

static void add_block(struct gpt_model *m, uint32_t layer)
{
    const uint32_t d = m->width;
    struct gpt_operator *op;
    char prefix[16];

    (void)snprintf(prefix, sizeof prefix, "h%u.", layer);
    op = add_operator(m, prefix, "qkv", GPT_OP_QKV, layer);
    use(op, add_tensor(m, prefix, "ln1.w", d, 0, 1, 0));
    use(op, add_tensor(m, prefix, "ln1.b", d, 0, 0, 0));
    use(op, add_tensor(m, prefix, "qkv.w", d, 3 * d, 0, 0.02f));
    use(op, add_tensor(m, prefix, "qkv.b", 3 * d, 0, 0, 0));
    op = add_operator(m, prefix, "proj", GPT_OP_PROJ, layer);
    use(op, add_tensor(m, prefix, "proj.w", d, d, 0, residual_deviation(m)));
    use(op, add_tensor(m, prefix, "proj.b", d, 0, 0, 0));
    if (m->experts > 0) {
        add_mixture(m, prefix, layer);
    } else {
        add_mlp(m, prefix, layer);
    }
}

/* Freeze all tensors and add an adapter to each product of the blocks. An adapter's product is zero
 * at first: lora_a is random, and lora_b is zero (Hu et al. 2021). */
static void add_adapters(struct gpt_model *m)
{
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        m->tensors[i].pattern = CST_PATTERN_FROZEN;
    }
    for (uint32_t i = 0; i < m->n_operators; i++) {
        struct gpt_operator *op = &m->operators[i];
        char prefix[40];
        uint32_t in, out;

        /* The weight of the product is the last tensor but one, before its bias. */
        if (op->kind != GPT_OP_EMBED && op->kind != GPT_OP_HEAD) {
            const struct gpt_tensor *w = &m->tensors[op->tensors[op->n_tensors - 2]];

            in = (uint32_t)w->shape[0];
            out = (uint32_t)w->shape[1];
            (void)snprintf(prefix, sizeof prefix, "%s.", op->name);
            use(op, add_tensor(m, prefix, "lora_a", in, m->lora, 0, (float)(1 / sqrt(in))));
            use(op, add_tensor(m, prefix, "lora_b", m->lora, out, 0, 0));
        }
    }
}

/* Give each tensor to the ranks whose stages use it. With one rank all tensors are of group 0. */
static void divide_among_ranks(struct gpt_model *m)
{
    const uint32_t *rank_of = m->pipeline->schedule.rank_of;

    m->ends = UINT64_C(1) << rank_of[0] | UINT64_C(1) << rank_of[m->stages - 1];
    m->n_groups = m->world > 1 ? m->world + 1 : 0;
    for (uint32_t i = 0; m->world > 1 && i < m->n_operators; i++) {
        const struct gpt_operator *op = &m->operators[i];
        const uint32_t group = 1 + rank_of[gpt_model_stage(m, op)];

        for (uint32_t k = 0; k < op->n_tensors; k++) {
            struct gpt_tensor *t = &m->tensors[op->tensors[k]];

            /* The token embedding alone has a second use. */
            t->group = t->group == 0 || t->group == group ? group : m->world + 1;
        }
    }
}

static int open_pipeline(struct gpt_model *m, const struct gpt_options *options,
                         struct cst_err *err)
{
    int rc;

    m->pipeline = calloc(1, sizeof *m->pipeline);
    if (m->pipeline == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    rc = gpt_pipeline_open(m->pipeline, options, err);
    m->stages = rc == 0 ? m->pipeline->schedule.n_stages : 0;
    return rc;
}

static int alloc(struct gpt_model *m, struct cst_err *err)
{
    const size_t tensors = 12 + 8 + 4 * (size_t)m->experts, operators = 4 + (size_t)m->experts;

    /* A dense block has 12 tensors, and 8 more with adapters. A mixture has 9, and 4 per expert.
     * Outside of the blocks are wte, wpe and two of the head. */
    m->tensors = calloc(4 + tensors * m->layers, sizeof *m->tensors);
    m->operators = calloc(2 + operators * m->layers, sizeof *m->operators);
    if (m->tensors == NULL || m->operators == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory for a model of %u layers", m->layers);
    }
    return 0;
}

int gpt_model_init(struct gpt_model *model, const struct gpt_options *options, struct cst_err *err)
{
    struct gpt_model m = {
        .layers = options->layers,
        .heads = options->heads,
        .width = options->width,
        .context = options->context,
        .vocab = options->vocab > 0 ? options->vocab : GPT_VOCAB,
        .experts = options->experts,
        .top_k = options->top_k,
        .world = options->job.world,
        .stages = options->stages,
        .borders = options->borders,
        .balance = (float)options->balance,
        .lora = options->lora,
    };
    struct gpt_operator *op;
    int wte, wpe, rc = alloc(&m, err);

    if (rc == 0 && options->parallel == GPT_PARALLEL_PIPELINE) {
        rc = open_pipeline(&m, options, err);
    }
    if (rc != 0) {
        gpt_model_close(&m);
        return rc;
    }
    m.lora_scale = m.lora > 0 ? (float)(options->lora_alpha / m.lora) : 0.0f;
    /* One group per rank that holds experts. With one rank the experts belong to all ranks. */
    m.n_groups = m.world == 1 ? 0 : m.experts < m.world ? m.experts : m.world;
    wte = add_tensor(&m, "", "wte", m.vocab, m.width, 0, 0.02f);
    wpe = add_tensor(&m, "", "wpe", m.context, m.width, 0, 0.01f);
    /* Embeddings do not decay. */
    m.tensors[wte].decay_scale = 0.0f;
    m.tensors[wpe].decay_scale = 0.0f;
    op = add_operator(&m, "", "embed", GPT_OP_EMBED, 0);
    use(op, wte);
    use(op, wpe);
    for (uint32_t i = 0; i < m.layers; i++) {
        add_block(&m, i);
    }
    op = add_operator(&m, "", "head", GPT_OP_HEAD, 0);
    use(op, add_tensor(&m, "", "lnf.w", m.width, 0, 1, 0));
    use(op, add_tensor(&m, "", "lnf.b", m.width, 0, 0, 0));
    /* The head multiplies by the token embedding (tied weights). */
    use(op, wte);
    if (m.lora > 0) {
        add_adapters(&m);
    }
    if (m.pipeline != NULL) {
        divide_among_ranks(&m);
    }
    *model = m;
    return 0;
}

uint32_t gpt_model_stage_blocks(const struct gpt_model *m)
{
    uint32_t most = 0, begin = 0;

    for (uint32_t i = 1; m->stages > 0 && i <= m->layers; i++) {
        if (i == m->layers || gpt_model_layer_stage(m, i) != gpt_model_layer_stage(m, begin)) {
            most = i - begin > most ? i - begin : most;
            begin = i;
        }
    }
    return m->stages > 0 ? most : m->layers;
}

double gpt_model_token_flops(const struct gpt_model *m)
{
    double sum = 0;

    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const struct gpt_tensor *t = &m->tensors[i];
        const double met = t->pattern == CST_PATTERN_EXPERT ? (double)m->top_k / m->experts : 1.0;

        sum += met * (t->pattern == CST_PATTERN_FROZEN ? 4.0 : 6.0) * (double)t->n_elems;
    }
    return sum;
}

void gpt_model_close(struct gpt_model *model)
{
    free(model->tensors);
    free(model->operators);
    if (model->pipeline != NULL) {
        gpt_pipeline_close(model->pipeline);
        free(model->pipeline);
    }
    *model = (struct gpt_model){0};
}

struct initial {
    const struct gpt_tensor *tensor;
    /* Seed, number of the tensor, and its first element to be computed. */
    uint64_t seed, number, first;
    float *out;
};

static void initial_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct initial *v = arg;
    const struct gpt_tensor *t = v->tensor;

    (void)thread;
    for (size_t i = first; i < last; i++) {
        v->out[i] = t->mean;
        if (t->deviation > 0.0f) {
            v->out[i] += t->deviation * gpt_rng_normal(v->seed, v->number, v->first + i);
        }
    }
}

void gpt_model_initial(const struct gpt_model *model, uint64_t seed, uint32_t tensor,
                       uint64_t first, uint64_t n, unsigned n_threads, float *out)
{
    struct initial v = {
        .tensor = &model->tensors[tensor],
        .seed = seed,
        .number = tensor,
        .first = first,
        .out = out,
    };

    gpt_parallel(n_threads, n, initial_body, &v);
}
