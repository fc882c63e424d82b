/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/mix_model.h"
#include "tests/lib/adamw.h"

#include "kernels/math/kernels.h"
#include "offload/core/clip.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- the model -------------------------------------------------------------------------------- */

static int add_tensor(struct mix_model *model, const char *name, uint64_t n_elems, uint64_t ranks,
                      enum cst_pattern_kind pattern)
{
    struct mix_tensor *t = &model->tensors[model->n_tensors];
    const struct mix_tensor *last = t - 1;

    *t = (struct mix_tensor){.n_elems = n_elems,
                             .start = model->n_tensors > 0 ? last->start + last->n_elems : 0,
                             .ranks = ranks,
                             .pattern = pattern};
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    ck_assert_uint_le(t->start + n_elems, MIX_MAX_ELEMS);
    return model->n_tensors++;
}

static void add_operator(struct mix_model *model, const char *name, int first, int second)
{
    struct mix_operator *op = &model->operators[model->n_operators++];

    *op = (struct mix_operator){.tensors = {first, second}, .n_tensors = second >= 0 ? 2 : 1};
    (void)snprintf(op->name, sizeof op->name, "%s", name);
    op->ranks = model->tensors[first].ranks;
    op->ranks &= second >= 0 ? model->tensors[second].ranks : UINT64_MAX;
}

void mix_model_make(struct mix_model *model, uint32_t world)
{
    uint64_t all = (UINT64_C(1) << world) - 1, pair = all & 3;
    int wte, frozen, adapter, half, w, tiny, big, expert[MIX_MAX_WORLD];
    char name[16];

    *model = (struct mix_model){.world = world};
    wte = add_tensor(model, "wte", 3000, all, CST_PATTERN_SHARD);
    frozen = add_tensor(model, "frozen", 5000, all, CST_PATTERN_FROZEN);
    adapter = add_tensor(model, "adapter", 500, all, CST_PATTERN_REPLICATE);
    half = add_tensor(model, "half", 4200, pair, CST_PATTERN_TENSOR);
    w = add_tensor(model, "w", 6000, all, CST_PATTERN_SHARD);
    tiny = add_tensor(model, "tiny", 1, all, CST_PATTERN_FROZEN);
    big = add_tensor(model, "big", 20000, all, CST_PATTERN_SHARD);
    for (uint32_t r = 0; r < world; r++) {
        (void)snprintf(name, sizeof name, "expert.%u", r);
        expert[r] = add_tensor(model, name, 700 + 13 * r, UINT64_C(1) << r, CST_PATTERN_EXPERT);
    }
    add_operator(model, "embed", wte, -1);
    add_operator(model, "base", frozen, adapter);
    for (uint32_t r = 0; r < world; r++) {
        (void)snprintf(name, sizeof name, "mlp.%u", r);
        add_operator(model, name, expert[r], -1);
    }
    add_operator(model, "half", half, -1);
    add_operator(model, "layer", w, adapter);
    add_operator(model, "big", big, tiny);
    add_operator(model, "head", wte, frozen);
}

int mix_find(const struct mix_model *model, const char *name)
{
    int i = 0;

    while (strcmp(model->tensors[i].name, name) != 0) {
        ck_assert_int_lt(++i, model->n_tensors);
    }
    return i;
}

/* Declare a group for a tensor that not all ranks hold. */
static int declare_group(const struct mix_model *model, struct cst_job *job, uint64_t ranks)
{
    uint32_t list[MIX_MAX_WORLD], n = 0;

    if (ranks == (UINT64_C(1) << model->world) - 1) {
        return CST_GROUP_ALL;
    }
    for (uint32_t r = 0; r < model->world; r++) {
        if ((ranks >> r & 1) != 0) {
            list[n++] = r;
        }
    }
    return cst_group(job, list, n);
}

static int declare_tensor(const struct mix_model *model, struct cst_job *job,
                          const struct mix_tensor *t)
{
    const int64_t shape = (int64_t)t->n_elems, whole = 2 * shape, first = shape;
    bool box = t->pattern == CST_PATTERN_TENSOR;
    const struct cst_tensor_spec spec = {.name = t->name,
                                         .dtype = CST_BF16,
                                         .n_dims = 1,
                                         .shape = &shape,
                                         .group = declare_group(model, job, t->ranks),
                                         .pattern = t->pattern,
                                         .lr_scale = 1.0f,
                                         .decay_scale = 1.0f,
                                         .whole_shape = box ? &whole : NULL,
                                         .first = box ? &first : NULL};

    return spec.group < 0 ? spec.group : cst_tensor_as(job, &spec);
}

int mix_declare(const struct mix_model *model, struct cst_job *job)
{
    int rc = 0;

    for (int i = 0; rc >= 0 && i < model->n_tensors; i++) {
        rc = declare_tensor(model, job, &model->tensors[i]);
    }
    for (int i = 0; rc >= 0 && i < model->n_operators; i++) {
        const struct mix_operator *op = &model->operators[i];

        rc = cst_operator(job, op->name, op->tensors, op->n_tensors);
    }
    return rc < 0 ? rc : CST_OK;
}

/* -- numbers of the model --------------------------------------------------------------------- */

/* splitmix64. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A number in (-1, 1) that is never 0. */
static float noise(uint64_t x)
{
    return ((float)(mix(x) >> 41) + 0.5f) / 4194304.0f - 1.0f;
}

float mix_start(uint64_t i)
{
    return noise(i ^ 0x3213900000000u);
}

struct cst_hyper_params mix_params(uint64_t step, double loss)
{
    return (struct cst_hyper_params){.lr = 0.02f / (float)(step + 1),
                                     .weight_decay = 0.05f,
                                     .clip_norm = step % 2 == 1 ? 2.0f : 0.0f,
                                     .grad_scale = 0.25f,
                                     .loss = loss};
}

uint32_t mix_micro_batches(uint32_t rank, uint64_t step, uint32_t most)
{
    return most > 1 && rank == 1 && step == 1 ? most - 1 : most;
}

bool mix_idle(const struct mix_model *model, int op, uint32_t rank, uint64_t step, uint32_t micro)
{
    return model->tensors[model->operators[op].tensors[0]].pattern == CST_PATTERN_EXPERT &&
           (rank + step + micro) % 3 == 0;
}

double mix_forward(const struct mix_model *model, int op, const struct cst_io *io)
{
    double sum = 0;

    for (uint32_t k = 0; k < model->operators[op].n_tensors; k++) {
        const uint16_t *weight = io[k].weight;

        for (uint64_t i = 0; i < io[k].n_elems; i++) {
            sum += (double)cst_bf16_to_fp32(weight[i]) * (double)(i % 5);
        }
    }
    return sum;
}

void mix_backward(const struct mix_model *model, int op, uint32_t rank, uint64_t step,
                  uint32_t micro, const struct cst_io *io)
{
    for (uint32_t k = 0; k < model->operators[op].n_tensors; k++) {
        uint64_t key = (uint64_t)op << 58 | (uint64_t)k << 56 | (uint64_t)rank << 48 |
                       (uint64_t)micro << 40 | step << 24;
        const uint16_t *weight = io[k].weight;
        uint16_t *grad = io[k].grad;

        for (uint64_t i = 0; grad != NULL && i < io[k].n_elems; i++) {
            float g = noise(key + i) * 0.1f + cst_bf16_to_fp32(weight[i]) * 0.25f;

            grad[i] = cst_fp32_to_bf16(io[k].accumulate ? cst_bf16_to_fp32(grad[i]) + g : g);
        }
    }
}

/* -- the reference ---------------------------------------------------------------------------- */

struct reference {
    const struct mix_model *model;
    struct mix_run *run;
    const struct cst_kernels *kernels;
    uint32_t micro_batches;
    uint64_t adam_step; /* number of updates applied */
    uint16_t *grads;    /* MIX_MAX_ELEMS per rank, of one micro-batch */
    float *sums;        /* MIX_MAX_ELEMS; used with several micro-batches */
    struct cst_table_tile tiles[64];
    uint64_t n_tiles;
};

static bool is_trained(const struct mix_tensor *t)
{
    return t->pattern != CST_PATTERN_FROZEN;
}

static void fill_io(const struct reference *ref, int op, uint16_t *grads, const bool *written,
                    struct cst_io *io)
{
    for (uint32_t k = 0; k < ref->model->operators[op].n_tensors; k++) {
        int t = ref->model->operators[op].tensors[k];
        const struct mix_tensor *tensor = &ref->model->tensors[t];

        io[k] = (struct cst_io){.weight = ref->run->states.weight + tensor->start,
                                .grad = is_trained(tensor) ? grads + tensor->start : NULL,
                                .accumulate = written[t],
                                .n_elems = tensor->n_elems};
    }
}

/* Compute one rank's forward and backward of a micro-batch, and add to its loss. */
static void compute(struct reference *ref, uint32_t rank, uint64_t step, uint32_t micro,
                    double *loss)
{
    const struct mix_model *model = ref->model;
    uint16_t *grads = ref->grads + (size_t)rank * MIX_MAX_ELEMS;
    bool written[MIX_MAX_TENSORS] = {false};
    struct cst_io io[MIX_MAX_IO];

    for (int at = 0; at < 2 * model->n_operators; at++) {
        bool backward = at >= model->n_operators;
        int op = backward ? 2 * model->n_operators - 1 - at : at;

        if ((model->operators[op].ranks >> rank & 1) == 0 ||
            mix_idle(model, op, rank, step, micro)) {
            continue;
        }
        fill_io(ref, op, grads, written, io);
        if (!backward) {
            *loss += mix_forward(model, op, io);
            continue;
        }
        mix_backward(model, op, rank, step, micro, io);
        for (uint32_t k = 0; k < model->operators[op].n_tensors; k++) {
            written[model->operators[op].tensors[k]] = true;
        }
    }
}

/* Sum the gradients of micro-batch @micro over each tensor's ranks. */
static void reduce(struct reference *ref, uint32_t micro)
{
    ref->n_tiles = 0;
    for (int t = 0; t < ref->model->n_tensors; t++) {
        const struct mix_tensor *tensor = &ref->model->tensors[t];

        for (uint64_t at = 0; is_trained(tensor) && at < tensor->n_elems; at += CST_TILE_ELEMS) {
            uint64_t left = tensor->n_elems - at, start = tensor->start + at;
            size_t n = left < CST_TILE_ELEMS ? left : CST_TILE_ELEMS;
            const uint16_t *src[MIX_MAX_WORLD];
            uint32_t n_src = 0;

            for (uint32_t r = 0; r < ref->model->world; r++) {
                if ((tensor->ranks >> r & 1) != 0) {
                    src[n_src++] = ref->grads + (size_t)r * MIX_MAX_ELEMS + start;
                }
            }
            ref->tiles[ref->n_tiles++].sum_squares =
                ref->micro_batches > 1
                    ? ref->kernels->accumulate(n, n_src, src, micro > 0, ref->sums + start)
                    : ref->kernels->reduce(n, n_src, src, ref->run->states.grad + start);
        }
    }
}

static void update(struct reference *ref, const struct cst_hyper_params *p, float factor)
{
    struct mix_states *s = &ref->run->states;

    ref->adam_step++;
    for (int t = 0; t < ref->model->n_tensors; t++) {
        uint64_t at = ref->model->tensors[t].start, n = ref->model->tensors[t].n_elems;
        struct cst_update_scalars hyper;

        if (!is_trained(&ref->model->tensors[t])) {
            continue;
        }
        cst_update_prepare(&hyper, (double)p->lr, (double)0.9f, (double)0.999f, (double)1e-8f,
                           (double)p->weight_decay, factor, ref->adam_step);
        if (ref->micro_batches > 1) {
            adamw_update(ref->kernels->update, &hyper, n, NULL, ref->sums + at, s->master + at,
                         s->exp_avg + at, s->exp_avg_sq + at, s->weight + at);
        } else {
            adamw_update(ref->kernels->update, &hyper, n, s->grad + at, NULL, s->master + at,
                         s->exp_avg + at, s->exp_avg_sq + at, s->weight + at);
        }
    }
}

/* Run all micro-batches. Returns the mean loss of the ranks. */
static double collect(struct reference *ref, uint64_t step)
{
    double losses[MIX_MAX_WORLD] = {0}, sum = 0;

    for (uint32_t m = 0; m < ref->micro_batches; m++) {
        memset(ref->grads, 0, (size_t)ref->model->world * MIX_MAX_ELEMS * sizeof *ref->grads);
        for (uint32_t r = 0; r < ref->model->world; r++) {
            if (m < mix_micro_batches(r, step, ref->micro_batches)) {
                compute(ref, r, step, m, &losses[r]);
            }
        }
        reduce(ref, m);
    }
    for (uint32_t r = 0; r < ref->model->world; r++) {
        sum += losses[r];
    }
    return sum / ref->model->world;
}

static void step_once(struct reference *ref, uint64_t step)
{
    double loss = collect(ref, step);
    struct cst_hyper_params params = mix_params(step, 0);
    struct cst_clip clip = cst_clip_factor(cst_norm_sum(ref->tiles, ref->n_tiles),
                                           params.grad_scale, params.clip_norm);

    ck_assert(clip.finite);
    update(ref, &params, clip.factor);
    ref->run->results[step] = (struct cst_step_result){
        .step = step + 1, .grad_norm = clip.grad_norm, .clip = clip.clip, .loss = loss};
}

/* Round the fp32 sums to bf16, as a worker reads them. */
static void round_grads(struct reference *ref)
{
    for (int t = 0; ref->micro_batches > 1 && t < ref->model->n_tensors; t++) {
        const struct mix_tensor *tensor = &ref->model->tensors[t];

        for (uint64_t i = tensor->start; is_trained(tensor) && i < tensor->start + tensor->n_elems;
             i++) {
            ref->run->states.grad[i] = cst_fp32_to_bf16(ref->sums[i]);
        }
    }
}

void mix_reference(const struct mix_model *model, struct mix_run *run, uint32_t micro_batches,
                   uint64_t n_steps)
{
    struct reference ref = {.model = model,
                            .run = run,
                            .kernels = cst_kernels_get(NULL),
                            .micro_batches = micro_batches};

    memset(run, 0, sizeof *run);
    ref.grads = calloc((size_t)model->world * MIX_MAX_ELEMS, sizeof *ref.grads);
    ref.sums = calloc(MIX_MAX_ELEMS, sizeof *ref.sums);
    ck_assert(ref.grads != NULL && ref.sums != NULL && ref.kernels != NULL);
    for (int t = 0; t < model->n_tensors; t++) {
        const struct mix_tensor *tensor = &model->tensors[t];

        for (uint64_t i = tensor->start; i < tensor->start + tensor->n_elems; i++) {
            run->states.weight[i] = cst_fp32_to_bf16(mix_start(i));
            run->states.master[i] = is_trained(tensor) ? mix_start(i) : 0;
        }
    }
    for (uint64_t s = 0; s < n_steps; s++) {
        step_once(&ref, s);
    }
    round_grads(&ref);
    free(ref.grads);
    free(ref.sums);
}
