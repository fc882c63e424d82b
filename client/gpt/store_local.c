/* All ranks of one process over one set of states: the daemon's arithmetic (kernels/tile.h,
 * offload/clip.h) without daemon, pools or copies. */
#include "client/gpt/local.h"

#include <stdlib.h>
#include <string.h>

static struct gpt_local_rank *self(struct gpt_store *store)
{
    return (struct gpt_local_rank *)(void *)store;
}

/* Wait for all ranks; the last to come runs @fn, alone. CST_EPEERDIED would promise that a sync can
 * help: here it cannot. */
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
        *step = local->step; /* changed in meetings alone */
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

    if (local->n_accumulated + 1 >= local->micro_batches) { /* changed in meetings alone */
        return cst_err_set(err, CST_EINVAL, "micro-batch %u of %u ends with the step",
                           local->n_accumulated + 1, local->micro_batches);
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

/* The first of elements [first, first + n) of a tensor's state and the bytes of each.
 * CST_EUNSUPPORTED: frozen tensors have no such state. */
static int state_at(const struct gpt_local *local, uint32_t tensor, enum cst_state state,
                    uint64_t first, uint64_t n, char **at_out, size_t *elem_out,
                    struct cst_err *err)
{
    const struct gpt_tensor *t = &local->model->tensors[tensor];
    const struct gpt_local_place *place = &local->places[tensor];
    const struct cst_rows *rows = &local->chunks[place->chunk].rows;
    void *const grad = rows->grad_f32 != NULL ? (void *)rows->grad_f32 : rows->grad;
    void *const row[] = {rows->weight, grad, rows->master, rows->moments[0].values,
                         rows->moments[1].values};

    if (first > t->n_elems || n > t->n_elems - first) {
        return cst_err_set(err, CST_EINVAL, "elements %llu..%llu of '%s', which has %llu",
                           (unsigned long long)first, (unsigned long long)(first + n), t->name,
                           (unsigned long long)t->n_elems);
    }
    if (row[state] == NULL) {
        return cst_err_set(err, CST_EUNSUPPORTED, "'%s' is frozen: it has weights alone", t->name);
    }
    *elem_out = state <= CST_STATE_GRAD ? sizeof(uint16_t) : sizeof(float);
    *at_out = (char *)row[state] + (place->start + first) * *elem_out;
    return 0;
}

/* The sum as bf16, where it is fp32. */
static int read_grad(const struct gpt_local *local, uint32_t tensor, uint64_t first, uint64_t n,
                     uint16_t *out, struct cst_err *err)
{
    const struct gpt_local_place *place = &local->places[tensor];
    const float *sums = local->chunks[place->chunk].rows.grad_f32;
    size_t elem;
    char *at;
    int rc = state_at(local, tensor, CST_STATE_GRAD, first, n, &at, &elem, err);

    if (rc == 0 && sums != NULL) {
        local->kernels->cast(n, sums + place->start + first, out);
    } else if (rc == 0) {
        memcpy(out, at, n * elem);
    }
    return rc;
}

static int local_read(struct gpt_store *store, uint32_t tensor, enum cst_state state,
                      uint64_t first, uint64_t n_elems, void *data, struct cst_err *err)
{
    size_t elem;
    char *at;
    int rc;

    if (state == CST_STATE_GRAD) {
        return read_grad(self(store)->local, tensor, first, n_elems, data, err);
    }
    rc = state_at(self(store)->local, tensor, state, first, n_elems, &at, &elem, err);
    if (rc == 0) {
        memcpy(data, at, n_elems * elem);
    }
    return rc;
}

/* Masters set the weights, which of a frozen tensor are all there is. */
static int write_master(const struct gpt_local *local, uint32_t tensor, uint64_t first, uint64_t n,
                        const void *data, struct cst_err *err)
{
    const struct gpt_local_place *place = &local->places[tensor];
    const struct cst_rows *rows = &local->chunks[place->chunk].rows;
    const uint64_t at = place->start + first;
    size_t elem;
    char *weight;
    int rc = state_at(local, tensor, CST_STATE_WEIGHT, first, n, &weight, &elem, err);

    if (rc == 0) {
        local->kernels->cast(n, data, rows->weight + at);
    }
    if (rc == 0 && rows->master != NULL) {
        memcpy(rows->master + at, data, n * sizeof(float));
        memset((float *)rows->moments[0].values + at, 0, n * sizeof(float));
        memset((float *)rows->moments[1].values + at, 0, n * sizeof(float));
    }
    return rc;
}

static int local_write(struct gpt_store *store, uint32_t tensor, enum cst_state state,
                       uint64_t first, uint64_t n_elems, const void *data, struct cst_err *err)
{
    const struct gpt_local *local = self(store)->local;
    size_t elem;
    char *at;
    int rc;

    if (state == CST_STATE_MASTER) {
        return write_master(local, tensor, first, n_elems, data, err);
    }
    rc = state_at(local, tensor, state, first, n_elems, &at, &elem, err);
    if (rc == 0 && state == CST_STATE_GRAD) {
        rc = cst_err_set(err, CST_EINVAL, "gradients are read only");
    }
    if (rc == 0) {
        memcpy(at, data, n_elems * elem);
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

int gpt_local_open(struct gpt_local **out, const struct gpt_model *model, uint32_t world,
                   uint32_t micro_batches, uint32_t engine_threads, struct cst_err *err)
{
    struct gpt_local *local = calloc(1, sizeof *local);
    int rc;

    if (local == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    local->model = model;
    local->world = world;
    local->micro_batches = micro_batches;
    local->kernels = cst_kernels_get(NULL);
    pthread_mutex_init(&local->lock, NULL);
    pthread_cond_init(&local->met, NULL);
    rc = gpt_local_states_open(local, err);
    if (rc == 0) {
        rc = gpt_team_open(&local->team, engine_threads, err);
    }
    if (rc != 0) {
        gpt_local_close(local);
        return rc;
    }
    for (uint32_t r = 0; r < world; r++) {
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
    gpt_team_close(local->team);
    gpt_local_states_close(local);
    pthread_cond_destroy(&local->met);
    pthread_mutex_destroy(&local->lock);
    free(local);
}
