/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/train_model.h"

#include "kernels/math/cast.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

/* -- the small model --------------------------------------------------------------------------- */

#define EVERY_RANK TRAIN_ALL_RANKS, CST_PATTERN_SHARD

const struct train_model train_small = {
    .tensors = {{"wte", 3200, 0, 1.0f, 1.0f, EVERY_RANK},
                {"w1", 5000, 3200, 1.0f, 1.0f, EVERY_RANK},
                {"b1", 77, 8200, 0.5f, 0.0f, EVERY_RANK},
                {"w2", 6000, 8277, 1.0f, 1.0f, EVERY_RANK},
                {"b2", 1, 14277, 2.0f, 0.0f, EVERY_RANK},
                {"expert", 300, 14278, 1.0f, 1.0f, EVERY_RANK},
                {"unused", 100, 14578, 1.0f, 1.0f, EVERY_RANK},
                {"w3", 8000, 14678, 1.0f, 0.25f, EVERY_RANK}},
    .operators = {{"embed", {0}, 1, TRAIN_ALL_RANKS, 0, false},
                  {"layer1", {1, 2}, 2, TRAIN_ALL_RANKS, 0, false},
                  {"idle", {5}, 1, TRAIN_ALL_RANKS, 2, false},
                  {"layer2", {3, 4}, 2, TRAIN_ALL_RANKS, 0, false},
                  {"layer3", {7, 2}, 2, TRAIN_ALL_RANKS, 0, false},
                  {"head", {0}, 1, TRAIN_ALL_RANKS, 0, false}},
    .n_tensors = 8,
    .n_operators = 6,
};

/* -- the mixture ------------------------------------------------------------------------------- */

static int add_tensor(struct train_model *model, const char *name, uint64_t n_elems, uint64_t ranks,
                      enum cst_pattern_kind pattern)
{
    struct train_tensor *t = &model->tensors[model->n_tensors];
    const struct train_tensor *last = t - 1;

    *t = (struct train_tensor){.n_elems = n_elems,
                               .start = model->n_tensors > 0 ? last->start + last->n_elems : 0,
                               .lr_scale = 1.0f,
                               .decay_scale = 1.0f,
                               .ranks = ranks,
                               .pattern = pattern};
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    ck_assert_uint_le(t->start + n_elems, TRAIN_MAX_ELEMS);
    return model->n_tensors++;
}

static void add_operator(struct train_model *model, const char *name, int first, int second)
{
    struct train_operator *op = &model->operators[model->n_operators++];

    *op = (struct train_operator){.tensors = {first, second}, .n_tensors = second >= 0 ? 2 : 1};
    (void)snprintf(op->name, sizeof op->name, "%s", name);
    op->ranks = model->tensors[first].ranks;
    op->ranks &= second >= 0 ? model->tensors[second].ranks : TRAIN_ALL_RANKS;
    op->idle_forward = model->tensors[first].pattern == CST_PATTERN_EXPERT;
    op->idle_every = op->idle_forward ? 3 : 0;
}

void train_mixture(struct train_model *model, uint32_t world)
{
    const uint64_t all = TRAIN_ALL_RANKS;
    int wte, frozen, adapter, half, w, tiny, big, expert[TRAIN_MAX_EXPERTS];
    char name[sizeof "expert.4294967295"];

    *model = (struct train_model){.uneven = true, .reads_grads = true};
    wte = add_tensor(model, "wte", 3000, all, CST_PATTERN_SHARD);
    frozen = add_tensor(model, "frozen", 5000, all, CST_PATTERN_FROZEN);
    adapter = add_tensor(model, "adapter", 500, all, CST_PATTERN_REPLICATE);
    half = add_tensor(model, "half", 4200, world > 2 ? 3 : all, CST_PATTERN_TENSOR);
    w = add_tensor(model, "w", 6000, all, CST_PATTERN_SHARD);
    tiny = add_tensor(model, "tiny", 1, all, CST_PATTERN_FROZEN);
    big = add_tensor(model, "big", 20000, all, CST_PATTERN_SHARD);
    for (uint32_t r = 0; r < world; r++) {
        (void)snprintf(name, sizeof name, "expert.%u", r);
        expert[r] = add_tensor(model, name, 700 + 13 * r, world > 1 ? UINT64_C(1) << r : all,
                               CST_PATTERN_EXPERT);
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

void train_model_make(struct train_model *model, bool mixture, uint32_t world)
{
    if (mixture) {
        train_mixture(model, world);
    } else {
        *model = train_small;
    }
}

/* -- declarations ------------------------------------------------------------------------------ */

int train_find(const struct train_model *model, const char *name)
{
    int i = 0;

    while (strcmp(model->tensors[i].name, name) != 0) {
        ck_assert_int_lt(++i, model->n_tensors);
    }
    return i;
}

bool train_is_trained(const struct train_tensor *tensor)
{
    return tensor->pattern != CST_PATTERN_FROZEN;
}

/* Declare a group for a tensor that not all ranks hold. */
static int declare_group(struct cst_job *job, uint64_t ranks, uint32_t world)
{
    uint32_t list[TRAIN_MAX_WORLD], n = 0;

    if (ranks == TRAIN_ALL_RANKS) {
        return CST_GROUP_ALL;
    }
    for (uint32_t r = 0; r < world; r++) {
        if (train_has(ranks, r)) {
            list[n++] = r;
        }
    }
    return cst_group(job, list, n);
}

static int declare_tensor(struct cst_job *job, const struct train_tensor *t, uint32_t number,
                          uint32_t world)
{
    const int64_t shape = (int64_t)t->n_elems, whole = 2 * shape, first = shape;
    bool box = t->pattern == CST_PATTERN_TENSOR;
    const struct cst_tensor_spec spec = {.name = t->name,
                                         .dtype = CST_BF16,
                                         .n_dims = 1,
                                         .shape = &shape,
                                         .group = declare_group(job, t->ranks, world),
                                         .pattern = t->pattern,
                                         .lr_scale = t->lr_scale,
                                         .decay_scale = t->decay_scale,
                                         .param_group = number % (TRAIN_PARAM_GROUPS + 1),
                                         .whole_shape = box ? &whole : NULL,
                                         .first = box ? &first : NULL};

    return spec.group < 0 ? spec.group : cst_tensor_as(job, &spec);
}

int train_declare(const struct train_model *model, struct cst_job *job, uint32_t world)
{
    int rc = 0;

    for (int i = 0; rc >= 0 && i < model->n_tensors; i++) {
        rc = declare_tensor(job, &model->tensors[i], (uint32_t)i, world);
    }
    for (int i = 0; rc >= 0 && i < model->n_operators; i++) {
        const struct train_operator *op = &model->operators[i];

        rc = cst_operator(job, op->name, op->tensors, op->n_tensors);
    }
    return rc < 0 ? rc : CST_OK;
}

/* -- numbers ----------------------------------------------------------------------------------- */

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

float train_start(uint64_t i)
{
    return noise(i ^ 0x5eed00000000u);
}

struct cst_hyper_params train_params(uint64_t step, double loss)
{
    return (struct cst_hyper_params){
        .lr = 0.01f / (float)(step + 1),
        .weight_decay = 0.1f,
        .clip_norm = step % 2 == 0 ? 1.0f : 0.0f,
        .grad_scale = 0.5f,
        .loss = loss,
    };
}

uint32_t train_param_groups(uint64_t step, struct cst_param_group out[TRAIN_PARAM_GROUPS])
{
    for (unsigned g = 0; g < TRAIN_PARAM_GROUPS; g++) {
        out[g] = (struct cst_param_group){.lr = 1.0 + 0.3 * (double)((step + g) % 3),
                                          .weight_decay = (double)((step + g) % 2)};
    }
    return step % 3 == 2 ? 0 : TRAIN_PARAM_GROUPS;
}

uint32_t train_micro_batches(const struct train_model *model, uint32_t rank, uint64_t step,
                             uint32_t most)
{
    return model->uneven && most > 1 && rank == 1 && step == 1 ? most - 1 : most;
}

bool train_runs(const struct train_operator *op, bool backward, uint32_t rank, uint64_t moment)
{
    const uint64_t step = moment & 0xff, micro = moment >> 8;
    bool idle = op->idle_every != 0 && (rank + step + micro) % op->idle_every == 0;

    return train_has(op->ranks, rank) && !(idle && (backward || op->idle_forward));
}

double train_forward(uint32_t n_tensors, const struct cst_io *io)
{
    double sum = 0;

    for (uint32_t k = 0; k < n_tensors; k++) {
        const uint16_t *weight = io[k].weight;

        for (uint64_t i = 0; i < io[k].n_elems; i++) {
            sum += (double)cst_bf16_to_fp32(weight[i]) * (double)(i % 7);
        }
    }
    return sum;
}

void train_backward(const struct train_model *model, int op, uint32_t rank, uint64_t moment,
                    struct train_bad bad, const struct cst_io *io)
{
    for (uint32_t k = 0; k < model->operators[op].n_tensors; k++) {
        uint64_t key = (uint64_t)op << 58 | (uint64_t)k << 56 | (uint64_t)rank << 48 | moment << 24;
        const uint16_t *weight = io[k].weight;
        uint16_t *grad = io[k].grad;

        for (uint64_t i = 0; grad != NULL && i < io[k].n_elems; i++) {
            float g = noise(key + i) * 0.1f + cst_bf16_to_fp32(weight[i]) * 0.25f;

            grad[i] = cst_fp32_to_bf16(io[k].accumulate ? cst_bf16_to_fp32(grad[i]) + g : g);
        }
        if (moment == bad.step && rank == 0 && op == 3 && k == 0) {
            grad[4097] = bad.value; /* an element of the second tile */
        }
    }
}
