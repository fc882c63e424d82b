/* SPDX-License-Identifier: Apache-2.0 */
/* The stores of all ranks of one process on one set of states. They use the daemon's arithmetic
 * (kernels/math/tile.h, offload/base/clip.h), without a daemon, pools or copies. */
#include "client/gpt/local.h"

#include "kernels/math/moments.h"
#include "kernels/math/split.h"
#include "proto/optimizers.h"

#include <stdlib.h>
#include <string.h>

static struct gpt_local_rank *self(struct gpt_store *store)
{
    return (struct gpt_local_rank *)(void *)store;
}

/* Barrier: wait for all ranks. The last rank to arrive runs @fn. CST_ECANCELLED: a rank failed. The
 * status is not CST_EPEERDIED, because that would mean that a sync can help. */
static int meet(struct gpt_local *local, void (*fn)(struct gpt_local *), struct cst_err *err)
{
    uint64_t meeting;
    bool broken;

    pthread_mutex_lock(&local->lock);
    meeting = local->meetings;
    if (!local->broken && ++local->n_here == local->world) {
        fn(local);
        local->n_here = 0;
        local->meetings++;
        pthread_cond_broadcast(&local->met);
    }
    while (local->meetings == meeting && !local->broken) {
        pthread_cond_wait(&local->met, &local->lock);
    }
    /* If the barrier has completed, a later failure does not matter here. */
    broken = local->meetings == meeting;
    pthread_mutex_unlock(&local->lock);
    return broken ? cst_err_set(err, CST_ECANCELLED, "another rank of this process failed") : 0;
}

void gpt_local_break(struct gpt_local *local)
{
    pthread_mutex_lock(&local->lock);
    local->broken = true;
    pthread_cond_broadcast(&local->met);
    pthread_mutex_unlock(&local->lock);
}

static bool local_initialised(const struct gpt_store *store)
{
    struct gpt_local *local = ((const struct gpt_local_rank *)(const void *)store)->local;
    bool initialised;

    pthread_mutex_lock(&local->lock);
    initialised = local->initialised;
    pthread_mutex_unlock(&local->lock);
    return initialised;
}

static uint64_t local_steps(const struct gpt_store *store)
{
    struct gpt_local *local = ((const struct gpt_local_rank *)(const void *)store)->local;
    uint64_t step;

    pthread_mutex_lock(&local->lock);
    step = local->step;
    pthread_mutex_unlock(&local->lock);
    return step;
}

static int local_sync(struct gpt_store *store, uint64_t *step, struct cst_err *err)
{
    struct gpt_local *local = self(store)->local;
    int rc = meet(local, gpt_local_sync_all, err);

    if (rc == 0) {
        *step = local->step; /* Only barriers change the step, so no lock is needed. */
    }
    return rc;
}

static int local_op_begin(struct gpt_store *store, uint32_t op, enum cst_direction direction,
                          struct cst_io *io, uint32_t n_io, struct cst_err *err)
{
    struct gpt_local_rank *rank = self(store);
    const struct gpt_operator *o = &rank->local->model->operators[op];

    if (n_io != o->n_tensors) {
        return cst_err_set(err, CST_EINVAL, "operator '%s' has %u tensors, not %u", o->name,
                           o->n_tensors, n_io);
    }
    for (uint32_t i = 0; i < n_io; i++) {
        const uint32_t tensor = (uint32_t)o->tensors[i];
        const struct gpt_local_place *place = &rank->local->places[tensor];
        const struct gpt_local_chunk *chunk = &rank->local->chunks[place->chunk];

        if (!gpt_local_in_group(chunk->group, rank->rank)) {
            return cst_err_set(err, CST_EINVAL, "operator '%s' is not of rank %u", o->name,
                               rank->rank);
        }
        io[i] = (struct cst_io){
            .weight = chunk->rows.weight + place->start,
            .n_elems = rank->local->model->tensors[tensor].n_elems,
        };
        if (direction == CST_BACKWARD && chunk->has_states) {
            io[i].grad = rank->grads[place->chunk] + place->start;
            io[i].accumulate = rank->written[tensor];
            rank->written[tensor] = true;
        }
    }
    return 0;
}

static int local_op_end(struct gpt_store *store, uint32_t op, struct cst_err *err)
{
    (void)store;
    (void)op;
    (void)err;
    return 0;
}

static int local_accumulate(struct gpt_store *store, struct cst_err *err)
{
    struct gpt_local *local = self(store)->local;

    /* Only barriers change n_accumulated, so no lock is needed. */
    if (local->n_accumulated + 1 >= local->config.micro_batches) {
        return cst_err_set(err, CST_EINVAL, "micro-batch %u of %u ends with the step",
                           local->n_accumulated + 1, local->config.micro_batches);
    }
    return meet(local, gpt_local_accumulate_all, err);
}

static int local_step(struct gpt_store *store, const struct cst_hyper_params *params,
                      struct cst_step_result *result, struct cst_err *err)
{
    struct gpt_local_rank *rank = self(store);
    int rc;

    rank->params = *params;
    rc = meet(rank->local, gpt_local_step_all, err);
    if (rc == 0 && rank->local->status != 0) {
        rc = cst_err_set(err, rank->local->status, "ranks gave different parameters to the step");
    }
    if (rc == 0 && result != NULL) {
        *result = rank->local->result;
    }
    return rc;
}

/* -- states --------------------------------------------------------------------------------- */

static int check_range(const struct gpt_tensor *t, uint64_t first, uint64_t n, struct cst_err *err)
{
    if (first > t->n_elems || n > t->n_elems - first) {
        return cst_err_set(err, CST_EINVAL, "elements %llu..%llu of '%s', which has %llu",
                           (unsigned long long)first, (unsigned long long)(first + n), t->name,
                           (unsigned long long)t->n_elems);
    }
    return 0;
}

/* Find the chunk of @tensor, and the element of its rows that is element @first of the tensor.
 * CST_EUNSUPPORTED: the tensor has no @state, because it is frozen, or because the optimizer has
 * one moment only. */
static int state_at(const struct gpt_local *local, uint32_t tensor, enum cst_state state,
                    uint64_t first, uint64_t n, struct gpt_local_chunk **chunk_out,
                    uint64_t *at_out, struct cst_err *err)
{
    const struct gpt_tensor *t = &local->model->tensors[tensor];
    const struct gpt_local_place *place = &local->places[tensor];
    struct gpt_local_chunk *chunk = &local->chunks[place->chunk];
    int rc = check_range(t, first, n, err);

    if (rc != 0) {
        return rc;
    }
    if (!chunk->has_states && state != CST_STATE_WEIGHT) {
        return cst_err_set(err, CST_EUNSUPPORTED, "'%s' is frozen: it has only weights", t->name);
    }
    if (!cst_table_has_row(local->config.optimizer, CST_BF16, (int)state)) {
        return cst_err_set(err, CST_EUNSUPPORTED, "'%s': %s has no moment %s", t->name,
                           cst_optimizer_names[local->config.optimizer],
                           cst_moment_names[state - CST_STATE_EXP_AVG]);
    }
    *chunk_out = chunk;
    *at_out = place->start + first;
    return 0;
}

static void read_master(const struct gpt_local_chunk *chunk, uint64_t at, uint64_t n, float *data)
{
    const struct cst_rows *rows = &chunk->rows;

    if (rows->master != NULL) {
        memcpy(data, rows->master + at, n * sizeof *data);
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        data[i] = cst_split_join(chunk->newest[at + i], rows->remainder[at + i]);
    }
}

static int local_read(struct gpt_store *store, uint32_t tensor, enum cst_state state,
                      uint64_t first, uint64_t n_elems, void *data, struct cst_err *err)
{
    const struct gpt_local *local = self(store)->local;
    const unsigned which = (unsigned)state - CST_STATE_EXP_AVG; /* If it is a moment. */
    struct gpt_local_chunk *chunk;
    uint64_t at;
    int rc = state_at(local, tensor, state, first, n_elems, &chunk, &at, err);

    if (rc != 0) {
        return rc;
    }
    switch (state) {
    case CST_STATE_WEIGHT:
        memcpy(data, chunk->newest + at, n_elems * sizeof(uint16_t));
        break;
    case CST_STATE_GRAD: /* If the sum is fp32, it is rounded to bf16. */
        if (chunk->rows.grad_f32 != NULL) {
            local->kernels->cast(n_elems, chunk->rows.grad_f32 + at, data);
        } else {
            memcpy(data, chunk->rows.grad + at, n_elems * sizeof(uint16_t));
        }
        break;
    case CST_STATE_MASTER:
        read_master(chunk, at, n_elems, data);
        break;
    case CST_STATE_EXP_AVG:
    case CST_STATE_EXP_AVG_SQ:
        cst_moments_decode(local->config.moments, which, at, n_elems, &chunk->rows.moments[which],
                           data);
        break;
    }
    return 0;
}

/* Write master weights: set the weights and clear the moments. A frozen tensor has weights only. */
static void write_master(const struct gpt_local *local, struct gpt_local_chunk *chunk, uint64_t at,
                         uint64_t n, const float *data)
{
    local->kernels->cast(n, data, chunk->rows.weight + at);
    if (!chunk->has_states) {
        return;
    }
    if (chunk->rows.master != NULL) {
        memcpy(chunk->rows.master + at, data, n * sizeof *data);
    }
    for (uint64_t i = 0; i < n && chunk->rows.remainder != NULL; i++) {
        cst_split_cut(data[i], &chunk->rows.weight[at + i], &chunk->rows.remainder[at + i]);
    }
    for (unsigned which = 0; which < CST_MAX_MOMENTS; which++) {
        if (chunk->rows.moments[which].values != NULL) {
            cst_moments_clear(local->config.moments, which, at, n, &chunk->rows.moments[which]);
        }
    }
}

static int local_write(struct gpt_store *store, uint32_t tensor, enum cst_state state,
                       uint64_t first, uint64_t n_elems, const void *data, struct cst_err *err)
{
    struct gpt_local *local = self(store)->local;
    const unsigned which = (unsigned)state - CST_STATE_EXP_AVG; /* If it is a moment. */
    /* Master weights of a frozen tensor are accepted and set its weights. */
    const bool master = state == CST_STATE_MASTER;
    struct gpt_local_chunk *chunk;
    uint64_t at;
    int rc = state_at(local, tensor, master ? CST_STATE_WEIGHT : state, first, n_elems, &chunk, &at,
                      err);

    if (rc != 0) {
        return rc;
    }
    switch (state) {
    case CST_STATE_WEIGHT:
        if (chunk->rows.remainder != NULL) {
            return cst_err_set(err, CST_EUNSUPPORTED,
                               "weights are a part of split master weights: write those");
        }
        /* The weights are written to the newest row, so end a delay first. */
        gpt_local_turn(local);
        memcpy(chunk->rows.weight + at, data, n_elems * sizeof(uint16_t));
        break;
    case CST_STATE_GRAD:
        rc = cst_err_set(err, CST_EINVAL, "gradients are read only");
        break;
    case CST_STATE_MASTER:
        gpt_local_turn(local);
        write_master(local, chunk, at, n_elems, data);
        break;
    case CST_STATE_EXP_AVG:
    case CST_STATE_EXP_AVG_SQ:
        cst_moments_encode(local->config.moments, which, at, n_elems, data,
                           &chunk->rows.moments[which]);
        break;
    }
    return rc;
}

static int local_stat(struct gpt_store *store, struct cst_rank_stat *out, struct cst_err *err)
{
    struct gpt_local *local = self(store)->local;

    (void)err;
    pthread_mutex_lock(&local->lock);
    *out = (struct cst_rank_stat){.step = local->step};
    pthread_mutex_unlock(&local->lock);
    return 0;
}

static void local_close(struct gpt_store *store, bool good)
{
    struct gpt_local_rank *rank = self(store);
    struct gpt_local *local = rank->local;

    if (!good) {
        gpt_local_break(local);
    }
    pthread_mutex_lock(&local->lock);
    rank->open = false;
    pthread_mutex_unlock(&local->lock);
}

static const struct gpt_store_ops local_ops = {
    .name = "local",
    .initialised = local_initialised,
    .steps = local_steps,
    .sync = local_sync,
    .op_begin = local_op_begin,
    .op_end = local_op_end,
    .accumulate = local_accumulate,
    .step = local_step,
    .read = local_read,
    .write = local_write,
    .stat = local_stat,
    .close = local_close,
};

int gpt_store_local_open(struct gpt_store **out, struct gpt_local *local, uint32_t rank,
                         struct cst_err *err)
{
    struct gpt_local_rank *r = &local->ranks[rank];
    int rc = 0;

    pthread_mutex_lock(&local->lock);
    if (r->open) {
        rc = cst_err_set(err, CST_EBUSY, "rank %u is taken", rank);
    } else {
        r->open = true;
        *out = &r->head;
    }
    pthread_mutex_unlock(&local->lock);
    return rc;
}

int gpt_local_open(struct gpt_local **out, const struct gpt_model *model,
                   const struct gpt_local_config *config, struct cst_err *err)
{
    struct gpt_local *local = calloc(1, sizeof *local);
    int rc;

    if (local == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    local->model = model;
    local->world = config->world;
    local->config = *config;
    local->kernels = cst_kernels_get(NULL);
    local->n_threads = config->engine_threads > 0 ? config->engine_threads : gpt_parallel_cores();
    pthread_mutex_init(&local->lock, NULL);
    pthread_cond_init(&local->met, NULL);
    rc = gpt_local_states_open(local, err);
    if (rc != 0) {
        gpt_local_close(local);
        return rc;
    }
    for (uint32_t r = 0; r < local->world; r++) {
        local->ranks[r].local = local;
        local->ranks[r].rank = r;
        local->ranks[r].head.ops = &local_ops;
        local->ranks[r].head.plan.n_params = model->n_params;
        local->ranks[r].head.plan.arena_bytes = local->bytes;
    }
    *out = local;
    return 0;
}

void gpt_local_close(struct gpt_local *local)
{
    if (local == NULL) {
        return;
    }
    gpt_local_states_close(local);
    pthread_cond_destroy(&local->met);
    pthread_mutex_destroy(&local->lock);
    free(local);
}
