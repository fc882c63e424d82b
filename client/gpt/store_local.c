/* All ranks of one process over one set of states: the daemon's arithmetic (kernels/tile.h,
 * offload/clip.h) without daemon, pools or copies. The states are one chunk of a job table, its
 * spans the tensors in order of declaration, so tiles and sums are those of the daemon. */
#include "client/gpt/store.h"

#include "client/gpt/memory.h"
#include "client/gpt/team.h"
#include "kernels/tile.h"
#include "offload/clip.h"
#include "offload/layout.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct local_rank {
    struct gpt_store head;
    struct gpt_local *local;
    uint32_t rank;
    bool open;                      /* its handle exists */
    uint16_t *grads;                /* n_elems bf16 */
    bool *written;                  /* per tensor: its gradient of this step is there */
    struct cst_hyper_params params; /* of the step that it waits for */
};

struct gpt_local {
    const struct gpt_model *model; /* borrowed */
    const struct cst_kernels *kernels;
    struct gpt_team *team;
    struct cst_table_header *table; /* one chunk */
    uint64_t n_elems;               /* of the chunk, padding included */
    uint64_t n_tiles;
    struct cst_rows rows; /* grad: that of rank 0, which the sum replaces */
    uint32_t world;
    struct local_rank *ranks;

    pthread_mutex_t lock;          /* of all below */
    pthread_cond_t met;            /* the meeting is over or a rank is gone */
    uint32_t n_here;               /* ranks at the meeting */
    uint64_t meetings;             /* held */
    bool broken;                   /* a rank left in bad order: nobody waits any more */
    bool initialised;              /* a sync has completed */
    uint64_t step;                 /* committed */
    uint64_t adam_step;            /* applied: step less the skipped */
    int status;                    /* of the last step */
    struct cst_step_result result; /* of the last step */
};

static struct local_rank *self(struct gpt_store *store)
{
    return (struct local_rank *)(void *)store;
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
    struct gpt_local *local = ((const struct local_rank *)(const void *)store)->local;
    bool initialised;

    pthread_mutex_lock(&local->lock);
    initialised = local->initialised;
    pthread_mutex_unlock(&local->lock);
    return initialised;
}

static uint64_t local_steps(const struct gpt_store *store)
{
    struct gpt_local *local = ((const struct local_rank *)(const void *)store)->local;
    uint64_t step;

    pthread_mutex_lock(&local->lock);
    step = local->step;
    pthread_mutex_unlock(&local->lock);
    return step;
}

static void sync_all(struct gpt_local *local)
{
    local->initialised = true;
    for (uint32_t r = 0; r < local->world; r++) {
        memset(local->ranks[r].written, 0, local->model->n_tensors * sizeof(bool));
    }
}

static int local_sync(struct gpt_store *store, uint64_t *step, struct cst_err *err)
{
    struct gpt_local *local = self(store)->local;
    int rc = meet(local, sync_all, err);

    if (rc == 0) {
        *step = local->step; /* changed in meetings alone */
    }
    return rc;
}

static uint64_t tensor_start(const struct gpt_local *local, uint32_t tensor)
{
    return cst_table_spans(local->table)[tensor].start;
}

static int local_op_begin(struct gpt_store *store, uint32_t op, enum cst_direction direction,
                          struct cst_io *io, uint32_t n_io, struct cst_err *err)
{
    struct local_rank *rank = self(store);
    const struct gpt_operator *o = &rank->local->model->operators[op];

    if (n_io != o->n_tensors) {
        return cst_err_set(err, CST_EINVAL, "operator '%s' has %u tensors, not %u", o->name,
                           o->n_tensors, n_io);
    }
    for (uint32_t i = 0; i < n_io; i++) {
        const uint32_t tensor = (uint32_t)o->tensors[i];
        const uint64_t start = tensor_start(rank->local, tensor);

        io[i] = (struct cst_io){
            .weight = rank->local->rows.weight + start,
            .n_elems = rank->local->model->tensors[tensor].n_elems,
        };
        if (direction == CST_BACKWARD) {
            io[i].grad = rank->grads + start;
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

/* -- the step ------------------------------------------------------------------------------- */

struct pass {
    struct gpt_local *local;
    struct cst_tile_hyper hyper;
    uint64_t mark;
};

static void tile_share(uint64_t n_tiles, unsigned member, unsigned n_members, uint64_t *first,
                       uint64_t *count)
{
    *first = n_tiles * member / n_members;
    *count = n_tiles * (member + 1) / n_members - *first;
}

static struct cst_tile_work tile_work(const struct pass *pass)
{
    return (struct cst_tile_work){
        .kernels = pass->local->kernels,
        .table = pass->local->table,
        .mark = pass->mark,
        .rows = pass->local->rows,
    };
}

static void reduce_share(void *arg, unsigned member, unsigned n_members)
{
    const struct pass *pass = arg;
    const struct cst_tile_work work = tile_work(pass);
    const uint16_t *src[CST_TILE_MAX_SRC];
    uint64_t first, count;

    for (uint32_t r = 0; r < pass->local->world; r++) {
        src[r] = pass->local->ranks[r].grads;
    }
    tile_share(pass->local->n_tiles, member, n_members, &first, &count);
    (void)cst_tile_reduce_range(&work, pass->local->world, src, first, count, NULL);
}

static void update_share(void *arg, unsigned member, unsigned n_members)
{
    const struct pass *pass = arg;
    const struct cst_tile_work work = tile_work(pass);
    uint64_t first, count;

    tile_share(pass->local->n_tiles, member, n_members, &first, &count);
    (void)cst_tile_update_range(&work, &pass->hyper, first, count, NULL);
}

static bool same_params(const struct cst_hyper_params *a, const struct cst_hyper_params *b)
{
    const float x[] = {a->lr,           a->beta1,     a->beta2,     a->eps,
                       a->weight_decay, a->clip_norm, a->grad_scale};
    const float y[] = {b->lr,           b->beta1,     b->beta2,     b->eps,
                       b->weight_decay, b->clip_norm, b->grad_scale};

    return memcmp(x, y, sizeof x) == 0;
}

static double or_default(float value, float fallback)
{
    return (double)(value == 0.0f ? fallback : value);
}

/* A gradient that no operator wrote counts as zero. */
static void clear_unwritten(struct gpt_local *local)
{
    for (uint32_t r = 0; r < local->world; r++) {
        for (uint32_t t = 0; t < local->model->n_tensors; t++) {
            if (!local->ranks[r].written[t]) {
                memset(local->ranks[r].grads + tensor_start(local, t), 0,
                       local->model->tensors[t].n_elems * sizeof(uint16_t));
            }
            local->ranks[r].written[t] = false;
        }
    }
}

/* By the last rank to come, with the lock held. */
static void step_all(struct gpt_local *local)
{
    const struct cst_hyper_params *params = &local->ranks[0].params;
    const float scale = params->grad_scale == 0.0f ? 1.0f : params->grad_scale;
    struct pass pass = {.local = local, .mark = local->step + 1};
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
    clear_unwritten(local);
    gpt_team_run(local->team, reduce_share, &pass);
    clip = cst_clip_factor(cst_norm_sum(cst_table_tiles(local->table), local->n_tiles), scale,
                           params->clip_norm);
    local->step++;
    if (clip.finite) {
        pass.mark = ++local->adam_step;
        pass.hyper = (struct cst_tile_hyper){
            .lr = (double)params->lr,
            .beta1 = or_default(params->beta1, 0.9f),
            .beta2 = or_default(params->beta2, 0.999f),
            .eps = or_default(params->eps, 1e-8f),
            .weight_decay = (double)params->weight_decay,
            .grad_scale = clip.factor,
        };
        gpt_team_run(local->team, update_share, &pass);
    }
    local->result = (struct cst_step_result){
        .step = local->step,
        .skipped = !clip.finite,
        .grad_norm = clip.grad_norm,
        .clip = clip.clip,
        .loss = loss / local->world,
        .n_skipped = local->step - local->adam_step,
    };
}

static int local_step(struct gpt_store *store, const struct cst_hyper_params *params,
                      struct cst_step_result *result, struct cst_err *err)
{
    struct local_rank *rank = self(store);
    int rc;

    rank->params = *params;
    rc = meet(rank->local, step_all, err);
    if (rc == 0 && rank->local->status != 0) {
        rc = cst_err_set(err, rank->local->status, "ranks gave different parameters to the step");
    }
    if (rc == 0 && result != NULL) {
        *result = rank->local->result;
    }
    return rc;
}

/* -- states --------------------------------------------------------------------------------- */

/* First byte of the state's row and the bytes of an element. */
static char *state_row(const struct gpt_local *local, enum cst_state state, size_t *elem_out)
{
    const struct cst_rows *rows = &local->rows;
    void *const row[] = {rows->weight, rows->grad, rows->master, rows->exp_avg, rows->exp_avg_sq};

    *elem_out = state <= CST_STATE_GRAD ? sizeof(uint16_t) : sizeof(float);
    return row[state];
}

static int check_range(const struct gpt_local *local, uint32_t tensor, uint64_t first, uint64_t n,
                       struct cst_err *err)
{
    const struct gpt_tensor *t = &local->model->tensors[tensor];

    if (first > t->n_elems || n > t->n_elems - first) {
        return cst_err_set(err, CST_EINVAL, "elements %llu..%llu of '%s', which has %llu",
                           (unsigned long long)first, (unsigned long long)(first + n), t->name,
                           (unsigned long long)t->n_elems);
    }
    return 0;
}

static int local_read(struct gpt_store *store, uint32_t tensor, enum cst_state state,
                      uint64_t first, uint64_t n_elems, void *data, struct cst_err *err)
{
    const struct gpt_local *local = self(store)->local;
    size_t elem;
    const char *row = state_row(local, state, &elem);
    int rc = check_range(local, tensor, first, n_elems, err);

    if (rc == 0) {
        memcpy(data, row + (tensor_start(local, tensor) + first) * elem, n_elems * elem);
    }
    return rc;
}

static int local_write(struct gpt_store *store, uint32_t tensor, enum cst_state state,
                       uint64_t first, uint64_t n_elems, const void *data, struct cst_err *err)
{
    const struct gpt_local *local = self(store)->local;
    const struct cst_rows *rows = &local->rows;
    const uint64_t at = tensor_start(local, tensor) + first;
    size_t elem;
    char *row = state_row(local, state, &elem);
    int rc = check_range(local, tensor, first, n_elems, err);

    if (rc != 0) {
        return rc;
    }
    if (state == CST_STATE_GRAD) {
        return cst_err_set(err, CST_EINVAL, "gradients are read only");
    }
    memcpy(row + at * elem, data, n_elems * elem);
    if (state == CST_STATE_MASTER) {
        local->kernels->cast(n_elems, rows->master + at, rows->weight + at);
        memset(rows->exp_avg + at, 0, n_elems * sizeof(float));
        memset(rows->exp_avg_sq + at, 0, n_elems * sizeof(float));
    }
    return 0;
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
    struct local_rank *rank = self(store);
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
    .step = local_step,
    .read = local_read,
    .write = local_write,
    .stat = local_stat,
    .close = local_close,
};

int gpt_store_local_open(struct gpt_store **out, struct gpt_local *local, uint32_t rank,
                         struct cst_err *err)
{
    struct local_rank *r = &local->ranks[rank];
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

/* -- memory --------------------------------------------------------------------------------- */

/* The job table: one chunk, one span per tensor. */
static int table_open(struct gpt_local *local, struct cst_err *err)
{
    const struct gpt_model *model = local->model;
    struct cst_table_header header;
    struct cst_table_span *spans;
    uint64_t at = 0, tile = 0;

    for (uint32_t i = 0; i < model->n_tensors; i++) {
        tile += cst_table_n_tiles(model->tensors[i].n_elems);
    }
    local->n_tiles = tile;
    cst_table_size(&header, 1, model->n_tensors, tile);
    local->table = gpt_memory_get(header.total_bytes);
    if (local->table == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory: %llu bytes for the table of tiles",
                           (unsigned long long)header.total_bytes);
    }
    *local->table = header;
    spans = cst_table_spans(local->table);
    tile = 0;
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        const struct gpt_tensor *t = &model->tensors[i];

        spans[i] = (struct cst_table_span){
            .start = at,
            .n_elems = t->n_elems,
            .first_tile = tile,
            .lr_scale = 1.0f,
            .decay_scale = t->decay_scale,
        };
        tile += cst_table_n_tiles(t->n_elems);
        at += (t->n_elems + CST_LAYOUT_ALIGN_ELEMS - 1) / CST_LAYOUT_ALIGN_ELEMS *
              CST_LAYOUT_ALIGN_ELEMS;
    }
    local->n_elems = at;
    *cst_table_chunks(local->table) =
        (struct cst_table_chunk){.n_elems = at, .n_spans = model->n_tensors};
    return 0;
}

static int rank_open(struct gpt_local *local, uint32_t rank)
{
    struct local_rank *r = &local->ranks[rank];

    *r = (struct local_rank){.local = local, .rank = rank, .head.ops = &local_ops};
    r->head.plan.n_params = local->model->n_params;
    r->head.plan.arena_bytes = local->n_elems * (2 * (1 + (uint64_t)local->world) + 3 * 4);
    r->grads = gpt_memory_get(local->n_elems * sizeof(uint16_t));
    r->written = calloc(local->model->n_tensors, sizeof(bool));
    return r->grads == NULL || r->written == NULL ? CST_ENOMEM : 0;
}

static int states_open(struct gpt_local *local, struct cst_err *err)
{
    const size_t n = local->n_elems;
    struct cst_rows *rows = &local->rows;

    rows->weight = gpt_memory_get(n * sizeof(uint16_t));
    rows->master = gpt_memory_get(n * sizeof(float));
    rows->exp_avg = gpt_memory_get(n * sizeof(float));
    rows->exp_avg_sq = gpt_memory_get(n * sizeof(float));
    local->ranks = calloc(local->world, sizeof *local->ranks);
    if (rows->weight == NULL || rows->master == NULL || rows->exp_avg == NULL ||
        rows->exp_avg_sq == NULL || local->ranks == NULL) {
        goto fail;
    }
    for (uint32_t r = 0; r < local->world; r++) {
        if (rank_open(local, r) != 0) {
            goto fail;
        }
    }
    rows->grad = local->ranks[0].grads;
    return 0;
fail:
    return cst_err_set(err, CST_ENOMEM, "out of memory: states of %llu parameters, %u ranks",
                       (unsigned long long)local->model->n_params, local->world);
}

int gpt_local_open(struct gpt_local **out, const struct gpt_model *model, uint32_t world,
                   uint32_t engine_threads, struct cst_err *err)
{
    struct gpt_local *local = calloc(1, sizeof *local);
    int rc;

    if (local == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    local->model = model;
    local->world = world;
    local->kernels = cst_kernels_get(NULL);
    pthread_mutex_init(&local->lock, NULL);
    pthread_cond_init(&local->met, NULL);
    rc = table_open(local, err);
    if (rc == 0) {
        rc = states_open(local, err);
    }
    if (rc == 0) {
        rc = gpt_team_open(&local->team, engine_threads, err);
    }
    if (rc != 0) {
        gpt_local_close(local);
        return rc;
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
    for (uint32_t r = 0; local->ranks != NULL && r < local->world; r++) {
        gpt_memory_put(local->ranks[r].grads);
        free(local->ranks[r].written);
    }
    free(local->ranks);
    gpt_memory_put(local->rows.weight);
    gpt_memory_put(local->rows.master);
    gpt_memory_put(local->rows.exp_avg);
    gpt_memory_put(local->rows.exp_avg_sq);
    gpt_memory_put(local->table);
    pthread_cond_destroy(&local->met);
    pthread_mutex_destroy(&local->lock);
    free(local);
}
