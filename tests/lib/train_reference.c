/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/train_reference.h"
#include "tests/lib/adamw.h"

#include "kernels/math/kernels.h"
#include "offload/base/clip.h"
#include "offload/layout/layout.h"
#include "proto/grad_limit.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct reference {
    const struct train_task *task;
    struct train_model model;
    struct train_run *run;
    const struct cst_kernels *kernels;
    uint64_t adam_step; /* number of updates applied */
    uint64_t n_skipped;
    uint16_t *used;  /* TRAIN_MAX_ELEMS weights that the step reads */
    uint16_t *grads; /* TRAIN_MAX_ELEMS per rank, of one micro-batch */
    float *sums;     /* TRAIN_MAX_ELEMS fp32 sums, used with several micro-batches */
    struct cst_table_tile tiles[64];
    uint64_t n_tiles;
};

static void fill_io(const struct reference *ref, int op, uint16_t *grads, const bool *written,
                    struct cst_io *io)
{
    for (uint32_t k = 0; k < ref->model.operators[op].n_tensors; k++) {
        int t = ref->model.operators[op].tensors[k];
        const struct train_tensor *tensor = &ref->model.tensors[t];

        io[k] = (struct cst_io){
            .weight = ref->used + tensor->start,
            .grad = train_is_trained(tensor) ? grads + tensor->start : NULL,
            .accumulate = written[t],
            .n_elems = tensor->n_elems,
        };
    }
}

/* Compute one rank's forward and backward of a micro-batch. Returns its loss. */
static double compute(struct reference *ref, uint32_t rank, uint64_t moment)
{
    uint16_t *grads = ref->grads + (size_t)rank * TRAIN_MAX_ELEMS;
    bool written[TRAIN_MAX_TENSORS] = {false};
    const int n = ref->model.n_operators;
    struct cst_io io[TRAIN_MAX_IO];
    double loss = 0;

    for (int at = 0; at < 2 * n; at++) {
        const int number = at < n ? at : 2 * n - 1 - at;
        const struct train_operator *op = &ref->model.operators[number];

        if (!train_runs(op, at >= n, rank, moment)) {
            continue;
        }
        fill_io(ref, number, grads, written, io);
        if (at < n) {
            loss += train_forward(op->n_tensors, io);
            continue;
        }
        train_backward(&ref->model, number, rank, moment, ref->task->bad, io);
        for (uint32_t k = 0; k < op->n_tensors; k++) {
            written[op->tensors[k]] = true;
        }
    }
    return loss;
}

static bool sums_in_fp32(const struct reference *ref)
{
    return cst_layout_grad_elem_bytes(ref->task->world, ref->task->micro_batches) == 4;
}

/* Sum the gradients of one tile of @tensor, from element @at on, over the tensor's ranks. Returns
 * the sum of the squares. */
static double reduce_tile(struct reference *ref, const struct train_tensor *tensor, uint64_t at,
                          uint32_t micro)
{
    const uint64_t left = tensor->n_elems - at, start = tensor->start + at;
    const size_t n = left < CST_TILE_ELEMS ? left : CST_TILE_ELEMS;
    const uint16_t *src[TRAIN_MAX_WORLD];
    uint32_t n_src = 0;

    for (uint32_t r = 0; r < ref->task->world; r++) {
        if (train_has(tensor->ranks, r)) {
            src[n_src++] = ref->grads + (size_t)r * TRAIN_MAX_ELEMS + start;
        }
    }
    return sums_in_fp32(ref) ? ref->kernels->accumulate(n, n_src, src, micro > 0, ref->sums + start)
                             : ref->kernels->reduce(n, n_src, src, ref->run->states.grad + start);
}

static void reduce(struct reference *ref, uint32_t micro)
{
    ref->n_tiles = 0;
    for (int t = 0; t < ref->model.n_tensors; t++) {
        const struct train_tensor *tensor = &ref->model.tensors[t];

        for (uint64_t at = 0; train_is_trained(tensor) && at < tensor->n_elems;
             at += CST_TILE_ELEMS) {
            ref->tiles[ref->n_tiles++].sum_squares = reduce_tile(ref, tensor, at, micro);
        }
    }
}

/* Update the elements [@at, @at + @n), which belong to one tensor. */
static void update_tile(struct reference *ref, const struct cst_update_scalars *hyper, uint64_t at,
                        uint64_t n)
{
    struct train_states *s = &ref->run->states;
    bool sums = sums_in_fp32(ref);

    adamw_update(ref->kernels->update, hyper, n, sums ? NULL : s->grad + at,
                 sums ? ref->sums + at : NULL, s->master + at, s->exp_avg + at, s->exp_avg_sq + at,
                 s->weight + at);
}

/* @guard: tiles with values beyond proto/grad_limit.h do not change. */
static void update(struct reference *ref, uint64_t step, const struct cst_hyper_params *p,
                   float factor, bool guard)
{
    const struct cst_table_tile *tile = ref->tiles;
    struct cst_param_group groups[TRAIN_PARAM_GROUPS];
    const uint32_t n_groups = train_param_groups(step, groups);

    ref->adam_step++;
    for (int t = 0; t < ref->model.n_tensors; t++) {
        const struct train_tensor *tensor = &ref->model.tensors[t];
        const uint32_t g = (uint32_t)t % (TRAIN_PARAM_GROUPS + 1);
        const struct cst_param_group none = {1, 1}, *group = g < n_groups ? &groups[g] : &none;
        struct cst_update_scalars hyper;

        if (!train_is_trained(tensor)) {
            continue;
        }

        cst_update_prepare(&hyper, p->lr * ((double)tensor->lr_scale * group->lr), 0.9, 0.999, 1e-8,
                           p->weight_decay * ((double)tensor->decay_scale * group->weight_decay),
                           factor, ref->adam_step);
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
    const uint32_t world = ref->task->world, most = ref->task->micro_batches;
    double losses[TRAIN_MAX_WORLD] = {0}, sum = 0;

    for (uint32_t m = 0; m < most; m++) {
        memset(ref->grads, 0, (size_t)world * TRAIN_MAX_ELEMS * sizeof *ref->grads);
        for (uint32_t r = 0; r < world; r++) {
            if (m < train_micro_batches(&ref->model, r, step, most)) {
                losses[r] += compute(ref, r, train_moment(step, m));
            }
        }
        reduce(ref, m);
    }
    for (uint32_t r = 0; r < world; r++) {
        sum += losses[r];
    }
    return sum / world;
}

static void step_once(struct reference *ref, uint64_t step)
{
    struct cst_hyper_params params;
    struct cst_clip clip;
    double loss = collect(ref, step);
    bool guard;

    params = train_params(step, 0);
    guard = ref->task->overlap.when == CST_OVERLAP_EARLY && params.clip_norm == 0.0f;
    clip = cst_clip_factor(cst_norm_sum(ref->tiles, ref->n_tiles), params.grad_scale,
                           params.clip_norm);
    memcpy(ref->used, ref->run->states.weight, TRAIN_MAX_ELEMS * sizeof *ref->used);
    if (clip.finite || guard) {
        update(ref, step, &params, clip.factor, guard);
    } else {
        ref->n_skipped++;
    }
    if (ref->task->overlap.when != CST_OVERLAP_DELAYED || step < ref->task->overlap.delay_from) {
        memcpy(ref->used, ref->run->states.weight, TRAIN_MAX_ELEMS * sizeof *ref->used);
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

/* Round the fp32 sums to bf16, as a worker reads them. */
static void round_grads(struct reference *ref)
{
    for (int t = 0; sums_in_fp32(ref) && t < ref->model.n_tensors; t++) {
        const struct train_tensor *tensor = &ref->model.tensors[t];

        for (uint64_t i = tensor->start;
             train_is_trained(tensor) && i < tensor->start + tensor->n_elems; i++) {
            ref->run->states.grad[i] = cst_fp32_to_bf16(ref->sums[i]);
        }
    }
}

static void start_states(struct reference *ref)
{
    struct train_states *s = &ref->run->states;

    memset(ref->run, 0, sizeof *ref->run);
    for (int t = 0; t < ref->model.n_tensors; t++) {
        const struct train_tensor *tensor = &ref->model.tensors[t];

        for (uint64_t i = tensor->start; i < tensor->start + tensor->n_elems; i++) {
            s->weight[i] = cst_fp32_to_bf16(train_start(i));
            s->master[i] = train_is_trained(tensor) ? train_start(i) : 0;
        }
    }
    memcpy(ref->used, s->weight, sizeof s->weight);
}

void train_reference(struct train_run *run, const struct train_task *task)
{
    struct reference ref = {.task = task, .run = run, .kernels = cst_kernels_get(NULL)};

    train_model_make(&ref.model, task->mixture, task->world);
    ref.grads = calloc((size_t)task->world * TRAIN_MAX_ELEMS, sizeof *ref.grads);
    ref.used = calloc(TRAIN_MAX_ELEMS, sizeof *ref.used);
    ref.sums = calloc(TRAIN_MAX_ELEMS, sizeof *ref.sums);
    ck_assert(ref.used != NULL && ref.grads != NULL && ref.sums != NULL && ref.kernels != NULL);
    start_states(&ref);
    for (uint64_t s = 0; s < task->n_steps; s++) {
        step_once(&ref, s);
    }
    round_grads(&ref);
    free(ref.used);
    free(ref.grads);
    free(ref.sums);
}
