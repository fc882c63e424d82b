/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/local.h"

#include "offload/base/clip.h"
#include "proto/optimizers.h"

#include <string.h>

struct pass {
    struct gpt_local *local;
    struct cst_tile_hyper hyper; /* hyper-parameters of an update */
    bool delayed;                /* delayed update: it writes the spare weights */
};

/* Compute the tiles of parts [from, to) of a pass, which has a part for each thread. */
static void tile_share(const struct gpt_local *local, uint64_t n_tiles, size_t from, size_t to,
                       uint64_t *first, uint64_t *count)
{
    *first = n_tiles * from / local->n_threads;
    *count = n_tiles * to / local->n_threads - *first;
}

static struct cst_tile_work tile_work(const struct pass *pass, uint32_t chunk, uint64_t mark)
{
    return (struct cst_tile_work){
        .kernels = pass->local->kernels,
        .table = pass->local->table,
        .chunk = chunk,
        .mark = mark,
        .accumulate = pass->local->n_accumulated > 0,
        .rows = pass->local->chunks[chunk].rows,
    };
}

/* Collect the gradients of @chunk, those of the group's ranks in their order. Returns their
 * number. */
static uint32_t sources(const struct gpt_local *local, uint32_t chunk,
                        const void *src[CST_TILE_MAX_SRC])
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < local->world; r++) {
        if (local->ranks[r].grads[chunk] != NULL) {
            src[n++] = local->ranks[r].grads[chunk];
        }
    }
    return n;
}

static void reduce_share(void *arg, unsigned thread, size_t from, size_t to)
{
    const struct pass *pass = arg;
    const struct gpt_local *local = pass->local;
    const void *src[CST_TILE_MAX_SRC];
    uint64_t first, count;

    (void)thread;
    for (uint32_t c = 0; c < local->n_chunks; c++) {
        const struct gpt_local_chunk *chunk = &local->chunks[c];

        if (chunk->has_states) {
            const struct cst_tile_work work = tile_work(pass, c, chunk->n_reduced);
            const uint32_t n_src = sources(local, c, src);

            tile_share(local, chunk->n_tiles, from, to, &first, &count);
            (void)cst_tile_reduce_range(&work, n_src, src, first, count, NULL);
        }
    }
}

static void update_share(void *arg, unsigned thread, size_t from, size_t to)
{
    const struct pass *pass = arg;
    const struct gpt_local *local = pass->local;
    uint64_t first, count;

    (void)thread;
    for (uint32_t c = 0; c < local->n_chunks; c++) {
        if (local->chunks[c].has_states) {
            struct cst_tile_work work = tile_work(pass, c, local->adam_step);

            work.rows.weight_in = work.rows.weight;
            if (pass->delayed) {
                work.rows.weight = local->chunks[c].spare;
            }
            tile_share(local, local->chunks[c].n_tiles, from, to, &first, &count);
            (void)cst_tile_update_range(&work, &pass->hyper, first, count, NULL);
        }
    }
}

static bool same_params(const struct cst_hyper_params *a, const struct cst_hyper_params *b)
{
    /* The ranks' losses may differ. */
    const double x[] = {a->lr,           a->beta1,     a->beta2,     a->eps,
                        a->weight_decay, a->clip_norm, a->grad_scale};
    const double y[] = {b->lr,           b->beta1,     b->beta2,     b->eps,
                        b->weight_decay, b->clip_norm, b->grad_scale};

    return memcmp(x, y, sizeof x) == 0;
}

static double or_default(double value, double fallback)
{
    return value == 0 ? fallback : value;
}

/* A gradient that no operator wrote counts as zero. */
static void clear_unwritten(struct gpt_local *local)
{
    for (uint32_t r = 0; r < local->world; r++) {
        struct gpt_local_rank *rank = &local->ranks[r];

        for (uint32_t t = 0; t < local->model->n_tensors; t++) {
            uint16_t *grads = rank->grads[local->places[t].chunk];

            if (!rank->written[t] && grads != NULL) {
                memset(grads + local->places[t].start, 0,
                       local->model->tensors[t].n_elems * sizeof(uint16_t));
            }
            rank->written[t] = false;
        }
    }
}

static void reduce_all(struct gpt_local *local)
{
    struct pass pass = {.local = local};

    clear_unwritten(local);
    for (uint32_t c = 0; c < local->n_chunks; c++) {
        local->chunks[c].n_reduced++;
    }
    gpt_parallel(local->n_threads, local->n_threads, reduce_share, &pass);
}

void gpt_local_accumulate_all(struct gpt_local *local)
{
    reduce_all(local);
    local->n_accumulated++;
}

void gpt_local_turn(struct gpt_local *local)
{
    for (uint32_t c = 0; c < local->n_chunks; c++) {
        struct gpt_local_chunk *chunk = &local->chunks[c];

        if (chunk->newest != chunk->rows.weight) {
            chunk->spare = chunk->rows.weight;
            chunk->rows.weight = chunk->newest;
        }
    }
}

static struct cst_tile_hyper tile_hyper(const struct gpt_local *local,
                                        const struct cst_hyper_params *params, float factor)
{
    const enum cst_optimizer optimizer = local->config.optimizer;
    /* A negative beta1 is SGD without momentum. */
    const bool no_momentum = cst_optimizer_rows[optimizer].beta1_may_be_0 && params->beta1 < 0;

    /* If beta2 is given, 0 is a valid beta1. Otherwise 0 means the default. */
    return (struct cst_tile_hyper){
        .lr = params->lr,
        .beta1 = no_momentum          ? 0
                 : params->beta2 == 0 ? or_default(params->beta1, CST_OPTIMIZER_BETA1)
                                      : params->beta1,
        .beta2 = or_default(params->beta2, cst_optimizer_beta2(optimizer)),
        .eps = or_default(params->eps, 1e-8),
        .weight_decay = params->weight_decay,
        .grad_scale = factor,
    };
}

/* Update all chunks at the end of step @step, counted from 0. */
static void update_all(struct gpt_local *local, const struct cst_hyper_params *params, float factor,
                       uint64_t step)
{
    struct pass pass = {
        .local = local,
        .hyper = tile_hyper(local, params, factor),
        .delayed = local->config.overlap == CST_OVERLAP_DELAYED && step >= local->config.delay_from,
    };

    local->adam_step++;
    gpt_parallel(local->n_threads, local->n_threads, update_share, &pass);
    for (uint32_t c = 0; pass.delayed && c < local->n_chunks; c++) {
        if (local->chunks[c].has_states) {
            local->chunks[c].newest = local->chunks[c].spare;
        }
    }
}

void gpt_local_sync_all(struct gpt_local *local)
{
    local->initialised = true;
    local->n_accumulated = 0;
    for (uint32_t r = 0; r < local->world; r++) {
        memset(local->ranks[r].written, 0, local->model->n_tensors * sizeof(bool));
    }
}

void gpt_local_step_all(struct gpt_local *local)
{
    const struct cst_hyper_params *params = &local->ranks[0].params;
    const double scale = or_default(params->grad_scale, 1);
    struct cst_clip clip;
    double loss = 0.0;

    local->status = 0;
    for (uint32_t r = 0; r < local->world; r++) {
        loss += local->ranks[r].params.loss;
        if (!same_params(params, &local->ranks[r].params)) {
            local->status = CST_EMISMATCH;
            return;
        }
    }
    reduce_all(local);
    local->n_accumulated = 0;
    clip = cst_clip_factor(cst_norm_sum(cst_table_tiles(local->table), local->table->n_tiles),
                           scale, params->clip_norm);
    /* The delayed update of the step before takes effect now. */
    gpt_local_turn(local);
    if (clip.finite) {
        update_all(local, params, clip.factor, local->step);
    }
    local->step++;
    local->result = (struct cst_step_result){
        .step = local->step,
        .skipped = !clip.finite,
        .grad_norm = clip.grad_norm,
        .clip = clip.clip,
        .loss = loss / local->world,
        .n_skipped = local->step - local->adam_step,
        .overflow = !clip.finite,
    };
}
