/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/train_model.h"
#include "tests/lib/adamw.h"

#include "kernels/math/kernels.h"
#include "offload/core/clip.h"
#include "proto/grad_limit.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

const struct train_tensor train_tensors[TRAIN_N_TENSORS] = {
    {"wte", 3200, 0, 1.0f, 1.0f},       {"w1", 5000, 3200, 1.0f, 1.0f},
    {"b1", 77, 8200, 0.5f, 0.0f},       {"w2", 6000, 8277, 1.0f, 1.0f},
    {"b2", 1, 14277, 2.0f, 0.0f},       {"expert", 300, 14278, 1.0f, 1.0f},
    {"unused", 100, 14578, 1.0f, 1.0f}, {"w3", 8000, 14678, 1.0f, 0.25f},
};

const struct train_operator train_operators[TRAIN_N_OPERATORS] = {
    {"embed", {0}, 1},     {"layer1", {1, 2}, 2}, {"idle", {5}, 1},
    {"layer2", {3, 4}, 2}, {"layer3", {7, 2}, 2}, {"head", {0}, 1},
};

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

int train_declare(struct cst_job *job)
{
    int rc = 0;

    for (int i = 0; rc >= 0 && i < TRAIN_N_TENSORS; i++) {
        int64_t shape = (int64_t)train_tensors[i].n_elems;

        rc = cst_tensor_scaled(job, train_tensors[i].name, CST_BF16, 1, &shape, CST_GROUP_ALL,
                               train_tensors[i].lr_scale, train_tensors[i].decay_scale);
    }
    for (int i = 0; rc >= 0 && i < TRAIN_N_OPERATORS; i++) {
        rc = cst_operator(job, train_operators[i].name, train_operators[i].tensors,
                          train_operators[i].n_tensors);
    }
    return rc < 0 ? rc : CST_OK;
}

double train_forward(int op, const struct cst_io *io)
{
    double sum = 0;

    for (uint32_t k = 0; k < train_operators[op].n_tensors; k++) {
        const uint16_t *weight = io[k].weight;

        for (uint64_t i = 0; i < io[k].n_elems; i++) {
            sum += (double)cst_bf16_to_fp32(weight[i]) * (double)(i % 7);
        }
    }
    return sum;
}

bool train_idle(int op, uint32_t rank, uint64_t moment)
{
    return op == 2 && (rank + moment + (moment >> 8)) % 2 == 0;
}

void train_backward(int op, uint32_t rank, uint64_t moment, struct train_bad bad,
                    const struct cst_io *io)
{
    for (uint32_t k = 0; k < train_operators[op].n_tensors; k++) {
        uint64_t key = (uint64_t)op << 56 | (uint64_t)k << 48 | (uint64_t)rank << 40 | moment << 24;
        const uint16_t *weight = io[k].weight;
        uint16_t *grad = io[k].grad;

        for (uint64_t i = 0; i < io[k].n_elems; i++) {
            float g = noise(key + i) * 0.1f + cst_bf16_to_fp32(weight[i]) * 0.25f;

            grad[i] = cst_fp32_to_bf16(io[k].accumulate ? cst_bf16_to_fp32(grad[i]) + g : g);
        }
        if (moment == bad.step && rank == 0 && op == 3 && k == 0) {
            grad[4097] = bad.value; /* an element of the second tile */
        }
    }
}

/* -- the reference ---------------------------------------------------------------------------- */

struct reference {
    struct train_run *run;
    const struct cst_kernels *kernels;
    uint32_t world;
    uint32_t micro_batches;
    struct train_bad bad;
    uint64_t adam_step; /* number of updates applied */
    uint64_t n_skipped;
    struct train_overlap overlap;
    uint16_t *used;    /* TRAIN_N_ELEMS weights that the step reads */
    uint16_t *grads;   /* TRAIN_N_ELEMS per rank */
    uint16_t *reduced; /* TRAIN_N_ELEMS summed gradients */
    float *sums;       /* TRAIN_N_ELEMS fp32 sums, used with several micro-batches */
    struct cst_table_tile tiles[64];
    uint64_t n_tiles;
};

static void fill_io(const struct reference *ref, int op, uint16_t *grads, const bool *written,
                    struct cst_io *io)
{
    for (uint32_t k = 0; k < train_operators[op].n_tensors; k++) {
        int t = train_operators[op].tensors[k];

        io[k] = (struct cst_io){
            .weight = ref->used + train_tensors[t].start,
            .grad = grads + train_tensors[t].start,
            .accumulate = written[t],
            .n_elems = train_tensors[t].n_elems,
        };
    }
}

/* Compute one rank's forward and backward. Returns its loss. */
static double compute(struct reference *ref, uint32_t rank, uint64_t moment)
{
    uint16_t *grads = ref->grads + (size_t)rank * TRAIN_N_ELEMS;
    bool written[TRAIN_N_TENSORS] = {false};
    struct cst_io io[TRAIN_MAX_IO];
    double loss = 0;

    memset(grads, 0, TRAIN_N_ELEMS * sizeof *grads);
    for (int op = 0; op < TRAIN_N_OPERATORS; op++) {
        fill_io(ref, op, grads, written, io);
        loss += train_forward(op, io);
    }
    for (int op = TRAIN_N_OPERATORS; op-- > 0;) {
        if (train_idle(op, rank, moment)) {
            continue;
        }
        fill_io(ref, op, grads, written, io);
        train_backward(op, rank, moment, ref->bad, io);
        for (uint32_t k = 0; k < train_operators[op].n_tensors; k++) {
            written[train_operators[op].tensors[k]] = true;
        }
    }
    return loss;
}

static void reduce(struct reference *ref, uint32_t micro)
{
    ref->n_tiles = 0;
    for (int t = 0; t < TRAIN_N_TENSORS; t++) {
        for (uint64_t at = 0; at < train_tensors[t].n_elems; at += CST_TILE_ELEMS) {
            uint64_t left = train_tensors[t].n_elems - at, start = train_tensors[t].start + at;
            size_t n = left < CST_TILE_ELEMS ? left : CST_TILE_ELEMS;
            const uint16_t *src[4];

            for (uint32_t r = 0; r < ref->world; r++) {
                src[r] = ref->grads + (size_t)r * TRAIN_N_ELEMS + start;
            }
            ref->tiles[ref->n_tiles++].sum_squares =
                ref->micro_batches > 1
                    ? ref->kernels->accumulate(n, ref->world, src, micro > 0, ref->sums + start)
                    : ref->kernels->reduce(n, ref->world, src, ref->reduced + start);
        }
    }
}

/* Update the elements [@at, @at + @n), which belong to one tensor. */
static void update_tile(struct reference *ref, const struct cst_update_scalars *hyper, uint64_t at,
                        uint64_t n)
{
    struct train_states *s = &ref->run->states;
    bool sums = ref->micro_batches > 1;

    adamw_update(ref->kernels->update, hyper, n, sums ? NULL : ref->reduced + at,
                 sums ? ref->sums + at : NULL, s->master + at, s->exp_avg + at, s->exp_avg_sq + at,
                 s->weight + at);
}

/* @guard: tiles with values beyond proto/grad_limit.h do not change. */
static void update(struct reference *ref, const struct cst_hyper_params *p, float factor,
                   bool guard)
{
    const struct cst_table_tile *tile = ref->tiles;

    ref->adam_step++;
    for (int t = 0; t < TRAIN_N_TENSORS; t++) {
        const struct train_tensor *tensor = &train_tensors[t];
        struct cst_update_scalars hyper;

        cst_update_prepare(&hyper, (double)p->lr * (double)tensor->lr_scale, (double)0.9f,
                           (double)0.999f, (double)1e-8f,
                           (double)p->weight_decay * (double)tensor->decay_scale, factor,
                           ref->adam_step);
        for (uint64_t at = 0; at < tensor->n_elems; at += CST_TILE_ELEMS, tile++) {
            uint64_t left = tensor->n_elems - at;

            if (!guard || cst_grad_limit_holds(tile->sum_squares, factor)) {
                update_tile(ref, &hyper, tensor->start + at,
                            left < CST_TILE_ELEMS ? left : CST_TILE_ELEMS);
            }
        }
    }
}

/* Run all micro-batches. Returns the mean loss of the ranks, summed in the order of the ranks and
 * the daemon. */
static double collect(struct reference *ref, uint64_t step)
{
    double losses[4] = {0}, sum = 0;

    for (uint32_t m = 0; m < ref->micro_batches; m++) {
        for (uint32_t r = 0; r < ref->world; r++) {
            losses[r] += compute(ref, r, train_moment(step, m));
        }
        reduce(ref, m);
    }
    for (uint32_t r = 0; r < ref->world; r++) {
        sum += losses[r];
    }
    return sum / ref->world;
}

static void step_once(struct reference *ref, uint64_t step)
{
    struct cst_hyper_params params;
    struct cst_clip clip;
    double loss = collect(ref, step);
    bool guard;

    params = train_params(step, 0);
    guard = ref->overlap.when == CST_OVERLAP_EARLY && params.clip_norm == 0.0f;
    clip = cst_clip_factor(cst_norm_sum(ref->tiles, ref->n_tiles), params.grad_scale,
                           params.clip_norm);
    memcpy(ref->used, ref->run->states.weight, TRAIN_N_ELEMS * sizeof *ref->used);
    if (clip.finite || guard) {
        update(ref, &params, clip.factor, guard);
    } else {
        ref->n_skipped++;
    }
    if (ref->overlap.when != CST_OVERLAP_DELAYED || step < ref->overlap.delay_from) {
        memcpy(ref->used, ref->run->states.weight, TRAIN_N_ELEMS * sizeof *ref->used);
    }
    ref->run->results[step] = (struct cst_step_result){
        .step = step + 1,
        .skipped = !clip.finite && !guard,
        .grad_norm = clip.grad_norm,
        .clip = clip.clip,
        .loss = loss,
        .n_skipped = ref->n_skipped,
        .overflow = !clip.finite,
    };
}

void train_reference(struct train_run *run, uint32_t world, uint32_t micro_batches,
                     struct train_overlap overlap, uint64_t n_steps, struct train_bad bad)
{
    struct reference ref = {.run = run,
                            .kernels = cst_kernels_get(NULL),
                            .world = world,
                            .micro_batches = micro_batches,
                            .overlap = overlap,
                            .bad = bad};

    memset(run, 0, sizeof *run);
    ref.grads = calloc((size_t)world * TRAIN_N_ELEMS, sizeof *ref.grads);
    ref.used = calloc(TRAIN_N_ELEMS, sizeof *ref.used);
    ref.reduced = calloc(TRAIN_N_ELEMS, sizeof *ref.reduced);
    ref.sums = calloc(TRAIN_N_ELEMS, sizeof *ref.sums);
    ck_assert(ref.used != NULL && ref.grads != NULL && ref.reduced != NULL && ref.sums != NULL &&
              ref.kernels != NULL);
    for (uint64_t i = 0; i < TRAIN_N_ELEMS; i++) {
        run->states.master[i] = train_start(i);
        run->states.weight[i] = cst_fp32_to_bf16(run->states.master[i]);
    }
    memcpy(ref.used, run->states.weight, TRAIN_N_ELEMS * sizeof *ref.used);
    for (uint64_t s = 0; s < n_steps; s++) {
        step_once(&ref, s);
    }
    free(ref.used);
    free(ref.grads);
    free(ref.reduced);
    free(ref.sums);
}
