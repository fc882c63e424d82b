/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/cuda/store.h"

#include "kernels/math/cast.h"
#include "kernels/math/update.h"
#include "offload/base/clip.h"
#include "offload/layout/layout.h"
#include "proto/table.h"

#include <stdlib.h>

struct cuda_store {
    struct gpt_store head;
    const struct gpt_gpu *gpu;     /* borrowed */
    const struct gpt_model *model; /* borrowed */
    uint64_t *starts;              /* per tensor: first element in the rows */
    bool *written;                 /* per tensor: its gradient has been written */
    uint64_t n_elems;              /* elements of all tensors, padding included */
    uint64_t n_trained;            /* elements of tensors that are not frozen, which come first */
    uint64_t n_tiles;              /* tiles of all tensors that are not frozen */
    CUdeviceptr memory;            /* allocation of all arrays below */
    CUdeviceptr weight;            /* n_elems bf16 */
    CUdeviceptr grad;              /* n_trained bf16 */
    CUdeviceptr master, exp_avg, exp_avg_sq; /* n_trained fp32 */
    CUdeviceptr tiles;                       /* n_tiles struct cst_cuda_tile */
    CUdeviceptr hypers;                      /* per tensor struct cst_update_scalars */
    CUdeviceptr sums, norm;                  /* n_tiles doubles; one double */
    struct cst_update_scalars *next;         /* pinned, per tensor: source of hypers */
    double *sum_squares;                     /* pinned: copy of norm */
    bool initialised;                        /* a sync has completed */
    uint64_t step;                           /* committed steps */
    uint64_t adam_step;                      /* applied updates: step minus the skipped steps */
};

static struct cuda_store *self(struct gpt_store *store)
{
    return (struct cuda_store *)(void *)store;
}

static const struct cuda_store *look(const struct gpt_store *store)
{
    return (const struct cuda_store *)(const void *)store;
}

static bool is_frozen(const struct cuda_store *s, uint32_t tensor)
{
    return s->model->tensors[tensor].pattern == CST_PATTERN_FROZEN;
}

static bool store_initialised(const struct gpt_store *store)
{
    return look(store)->initialised;
}

static uint64_t store_steps(const struct gpt_store *store)
{
    return look(store)->step;
}

static int store_sync(struct gpt_store *store, uint64_t *step, struct cst_err *err)
{
    struct cuda_store *s = self(store);

    (void)err;
    s->initialised = true;
    for (uint32_t i = 0; i < s->model->n_tensors; i++) {
        s->written[i] = false;
    }
    *step = s->step;
    return 0;
}

static int store_op_begin(struct gpt_store *store, uint32_t op, enum cst_direction direction,
                          struct cst_io *io, uint32_t n_io, struct cst_err *err)
{
    struct cuda_store *s = self(store);
    const struct gpt_operator *o = &s->model->operators[op];

    if (n_io != o->n_tensors) {
        return cst_err_set(err, CST_EINVAL, "operator '%s' has %u tensors, not %u", o->name,
                           o->n_tensors, n_io);
    }
    for (uint32_t i = 0; i < n_io; i++) {
        const uint32_t tensor = (uint32_t)o->tensors[i];
        const uint64_t at = s->starts[tensor] * sizeof(uint16_t);

        io[i] = (struct cst_io){
            .weight = (void *)(uintptr_t)(s->weight + at),
            .n_elems = s->model->tensors[tensor].n_elems,
        };
        if (direction == CST_BACKWARD && !is_frozen(s, tensor)) {
            io[i].grad = (void *)(uintptr_t)(s->grad + at);
            io[i].accumulate = s->written[tensor];
            s->written[tensor] = true;
        }
    }
    return 0;
}

static int store_op_end(struct gpt_store *store, uint32_t op, struct cst_err *err)
{
    (void)store;
    (void)op;
    (void)err;
    return 0;
}

/* -- the step --------------------------------------------------------------------------------- */

/* A gradient that no operator wrote counts as zero. */
static int clear_unwritten(struct cuda_store *s, struct cst_err *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < s->model->n_tensors; i++) {
        if (!s->written[i] && !is_frozen(s, i)) {
            rc = gpt_gpu_clear(s->gpu, s->grad + s->starts[i] * sizeof(uint16_t),
                               s->model->tensors[i].n_elems * sizeof(uint16_t), err);
        }
        s->written[i] = false;
    }
    return rc;
}

/* Compute the sum of squares of all gradients and copy it to the host. This is the only wait of a
 * step. */
static int sum_squares(struct cuda_store *s, struct cst_err *err)
{
    const struct gpt_gpu *gpu = s->gpu;
    const struct cst_cuda_sources sources = {.v = {(const uint16_t *)(uintptr_t)s->grad}, .n = 1};
    int rc = clear_unwritten(s, err);

    if (rc == 0) {
        rc = cst_cuda_reduce(&gpu->states, gpu->stream, s->n_tiles, s->tiles, &sources, s->grad,
                             s->sums, err);
    }
    if (rc == 0) {
        rc = cst_cuda_norm(&gpu->states, gpu->stream, s->n_tiles, s->sums, s->norm, err);
    }
    if (rc == 0) {
        rc = gpt_gpu_download(gpu, s->sum_squares, s->norm, sizeof(double), err);
    }
    return rc == 0 ? gpt_gpu_wait(gpu, err) : rc;
}

static double or_default(double value, double fallback)
{
    return value == 0 ? fallback : value;
}

/* Launch the update kernels on all tensors, in place. */
static int launch_update(struct cuda_store *s, struct cst_err *err)
{
    const struct gpt_gpu *gpu = s->gpu;
    const struct cst_update_moment moments[2] = {{.values = (void *)(uintptr_t)s->exp_avg},
                                                 {.values = (void *)(uintptr_t)s->exp_avg_sq}};
    float *master = (float *)(uintptr_t)s->master;
    const struct cst_cuda_update update = {
        .rows = {.grad_bf16 = (const uint16_t *)(uintptr_t)s->grad,
                 .master_in = master,
                 .moments_in = {moments[0], moments[1]},
                 .master = master,
                 .moments = {moments[0], moments[1]},
                 .weight = (uint16_t *)(uintptr_t)s->weight},
        .t = s->adam_step + 1,
        .optimizer = CST_OPTIMIZER_ADAMW};

    return cst_cuda_update(&gpu->states, gpu->stream, s->n_tiles, s->tiles, s->hypers,
                           CST_MOMENTS_FP32, CST_ROUNDING_NEAREST, &update, err);
}

static int update(struct cuda_store *s, const struct cst_hyper_params *params, float factor,
                  struct cst_err *err)
{
    const struct gpt_gpu *gpu = s->gpu;
    int rc;

    for (uint32_t i = 0; i < s->model->n_tensors; i++) {
        cst_update_prepare(&s->next[i], params->lr, or_default(params->beta1, 0.9),
                           or_default(params->beta2, 0.999), or_default(params->eps, 1e-8),
                           params->weight_decay * (double)s->model->tensors[i].decay_scale, factor,
                           s->adam_step + 1);
    }
    rc = gpt_gpu_upload(gpu, s->hypers, s->next, s->model->n_tensors * sizeof *s->next, err);
    if (rc == 0) {
        rc = launch_update(s, err);
    }
    if (rc == 0) {
        s->adam_step++;
    }
    return rc;
}

static int store_step(struct gpt_store *store, const struct cst_hyper_params *params,
                      struct cst_step_result *result, struct cst_err *err)
{
    struct cuda_store *s = self(store);
    const double scale = or_default(params->grad_scale, 1);
    struct cst_clip clip;
    int rc = sum_squares(s, err);

    if (rc != 0) {
        return rc;
    }
    clip = cst_clip_factor(*s->sum_squares, scale, params->clip_norm);
    if (clip.finite) {
        rc = update(s, params, clip.factor, err);
    }
    if (rc != 0) {
        return rc;
    }
    s->step++;
    if (result != NULL) {
        *result = (struct cst_step_result){
            .step = s->step,
            .skipped = !clip.finite,
            .grad_norm = clip.grad_norm,
            .clip = clip.clip,
            .loss = params->loss,
            .n_skipped = s->step - s->adam_step,
            .overflow = !clip.finite,
        };
    }
    return 0;
}

/* -- states ----------------------------------------------------------------------------------- */

static CUdeviceptr state_row(const struct cuda_store *s, enum cst_state state, size_t *elem_out)
{
    const CUdeviceptr rows[] = {s->weight, s->grad, s->master, s->exp_avg, s->exp_avg_sq};

    *elem_out = state <= CST_STATE_GRAD ? sizeof(uint16_t) : sizeof(float);
    return rows[state];
}

static int check_range(const struct cuda_store *s, uint32_t tensor, enum cst_state state,
                       uint64_t first, uint64_t n, struct cst_err *err)
{
    const struct gpt_tensor *t = &s->model->tensors[tensor];

    if (first > t->n_elems || n > t->n_elems - first) {
        return cst_err_set(err, CST_EINVAL, "elements %llu..%llu of '%s', which has %llu",
                           (unsigned long long)first, (unsigned long long)(first + n), t->name,
                           (unsigned long long)t->n_elems);
    }
    if (is_frozen(s, tensor) && state != CST_STATE_WEIGHT) {
        return cst_err_set(err, CST_EUNSUPPORTED, "'%s' is frozen: it has only weights", t->name);
    }
    return 0;
}

static int store_read(struct gpt_store *store, uint32_t tensor, enum cst_state state,
                      uint64_t first, uint64_t n_elems, void *data, struct cst_err *err)
{
    const struct cuda_store *s = look(store);
    size_t elem;
    const CUdeviceptr row = state_row(s, state, &elem);
    int rc = check_range(s, tensor, state, first, n_elems, err);

    if (rc == 0) {
        rc = gpt_gpu_download(s->gpu, data, row + (s->starts[tensor] + first) * elem,
                              n_elems * elem, err);
    }
    return rc == 0 ? gpt_gpu_wait(s->gpu, err) : rc;
}

/* Set the weights from new master weights, and clear the moments. */
static int follow_master(const struct cuda_store *s, uint64_t at, uint64_t n, struct cst_err *err)
{
    const size_t bytes = n * sizeof(float);
    int rc = cst_cuda_cast(&s->gpu->states, s->gpu->stream, n, s->master + at * sizeof(float),
                           s->weight + at * sizeof(uint16_t), err);

    if (rc == 0) {
        rc = gpt_gpu_clear(s->gpu, s->exp_avg + at * sizeof(float), bytes, err);
    }
    return rc == 0 ? gpt_gpu_clear(s->gpu, s->exp_avg_sq + at * sizeof(float), bytes, err) : rc;
}

static int write_state(const struct cuda_store *s, uint32_t tensor, enum cst_state state,
                       uint64_t first, uint64_t n_elems, const void *data, struct cst_err *err)
{
    const uint64_t at = s->starts[tensor] + first;
    size_t elem;
    const CUdeviceptr row = state_row(s, state, &elem);
    int rc = check_range(s, tensor, state, first, n_elems, err);

    if (rc != 0) {
        return rc;
    }
    if (state == CST_STATE_GRAD) {
        return cst_err_set(err, CST_EINVAL, "gradients are read only");
    }
    rc = gpt_gpu_upload(s->gpu, row + at * elem, data, n_elems * elem, err);
    if (rc == 0 && state == CST_STATE_MASTER) {
        rc = follow_master(s, at, n_elems, err);
    }
    /* The caller may reuse @data after the return. */
    return rc == 0 ? gpt_gpu_wait(s->gpu, err) : rc;
}

/* Write a state. Master weights of a frozen tensor are rounded and written as its weights. */
static int store_write(struct gpt_store *store, uint32_t tensor, enum cst_state state,
                       uint64_t first, uint64_t n_elems, const void *data, struct cst_err *err)
{
    const struct cuda_store *s = look(store);
    uint16_t *weights;
    int rc;

    if (!is_frozen(s, tensor) || state != CST_STATE_MASTER) {
        return write_state(s, tensor, state, first, n_elems, data, err);
    }
    weights = malloc(n_elems * sizeof *weights + 1);
    if (weights == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory: %llu weights",
                           (unsigned long long)n_elems);
    }
    for (uint64_t i = 0; i < n_elems; i++) {
        weights[i] = cst_fp32_to_bf16(((const float *)data)[i]);
    }
    rc = write_state(s, tensor, CST_STATE_WEIGHT, first, n_elems, weights, err);
    free(weights);
    return rc;
}

static int store_stat(struct gpt_store *store, struct cst_rank_stat *out, struct cst_err *err)
{
    (void)err;
    *out = (struct cst_rank_stat){.step = look(store)->step};
    return 0;
}

static void store_close(struct gpt_store *store, bool good)
{
    struct cuda_store *s = self(store);

    (void)good;
    (void)gpt_gpu_wait(s->gpu, NULL);
    gpt_gpu_free(s->gpu, s->memory);
    gpt_gpu_free_host(s->gpu, s->next);
    gpt_gpu_free_host(s->gpu, s->sum_squares);
    free(s->starts);
    free(s->written);
    free(s);
}

static const struct gpt_store_ops store_ops = {
    .name = "local",
    .initialised = store_initialised,
    .steps = store_steps,
    .sync = store_sync,
    .op_begin = store_op_begin,
    .op_end = store_op_end,
    .step = store_step,
    .read = store_read,
    .write = store_write,
    .stat = store_stat,
    .close = store_close,
};

/* -- memory ----------------------------------------------------------------------------------- */

/* Place the tensors that are frozen, or those that are not. */
static void lay_out(struct cuda_store *s, bool frozen)
{
    for (uint32_t i = 0; i < s->model->n_tensors; i++) {
        const uint64_t n = s->model->tensors[i].n_elems;

        if (is_frozen(s, i) == frozen) {
            s->starts[i] = s->n_elems;
            s->n_tiles += frozen ? 0 : cst_table_n_tiles(n);
            s->n_elems +=
                (n + CST_LAYOUT_ALIGN_ELEMS - 1) / CST_LAYOUT_ALIGN_ELEMS * CST_LAYOUT_ALIGN_ELEMS;
        }
    }
    s->n_trained = frozen ? s->n_trained : s->n_elems;
}

/* Make one allocation. Every array begins at a multiple of 128 bytes. */
static int alloc_states(struct cuda_store *s, struct cst_err *err)
{
    const size_t n = s->n_trained, n_tensors = s->model->n_tensors;
    const struct {
        CUdeviceptr *at;
        size_t bytes;
    } rows[] = {
        {&s->weight, s->n_elems * sizeof(uint16_t)},
        {&s->grad, n * sizeof(uint16_t)},
        {&s->master, n * sizeof(float)},
        {&s->exp_avg, n * sizeof(float)},
        {&s->exp_avg_sq, n * sizeof(float)},
        {&s->tiles, s->n_tiles * sizeof(struct cst_cuda_tile)},
        {&s->hypers, n_tensors * sizeof(struct cst_update_scalars)},
        {&s->sums, s->n_tiles * sizeof(double)},
        {&s->norm, sizeof(double)},
    };
    const size_t n_rows = sizeof rows / sizeof rows[0];
    size_t bytes = 0;
    int rc;

    for (size_t i = 0; i < n_rows; i++) {
        *rows[i].at = bytes;
        bytes += (rows[i].bytes + 127) & ~(size_t)127;
    }
    rc = gpt_gpu_alloc(s->gpu, bytes, "states", &s->memory, err);
    if (rc != 0) {
        s->memory = 0;
        return rc;
    }
    for (size_t i = 0; i < n_rows; i++) {
        *rows[i].at += s->memory;
    }
    s->head.plan.arena_bytes = bytes;
    return gpt_gpu_clear(s->gpu, s->memory, bytes, err);
}

static int write_tiles(const struct cuda_store *s, struct cst_err *err)
{
    struct cst_cuda_tile *tiles = malloc(s->n_tiles * sizeof *tiles);
    size_t at = 0;
    int rc;

    if (tiles == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory: %llu tiles",
                           (unsigned long long)s->n_tiles);
    }
    for (uint32_t i = 0; i < s->model->n_tensors; i++) {
        const uint64_t n = is_frozen(s, i) ? 0 : s->model->tensors[i].n_elems;

        for (uint64_t first = 0; first < n; first += CST_TILE_ELEMS) {
            const uint64_t left = n - first;

            tiles[at++] = (struct cst_cuda_tile){
                .start = s->starts[i] + first,
                .n_elems = (uint32_t)(left < CST_TILE_ELEMS ? left : CST_TILE_ELEMS),
                .span = i,
            };
        }
    }
    rc = gpt_gpu_upload(s->gpu, s->tiles, tiles, s->n_tiles * sizeof *tiles, err);
    if (rc == 0) {
        rc = gpt_gpu_wait(s->gpu, err);
    }
    free(tiles);
    return rc;
}

int gpt_cuda_store_open(struct gpt_store **out, const struct gpt_gpu *gpu,
                        const struct gpt_model *model, struct cst_err *err)
{
    struct cuda_store *s = calloc(1, sizeof *s);
    int rc;

    if (s == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    s->head.ops = &store_ops;
    s->head.plan.n_params = model->n_params;
    s->gpu = gpu;
    s->model = model;
    s->starts = calloc(model->n_tensors, sizeof *s->starts);
    s->written = calloc(model->n_tensors, sizeof *s->written);
    if (s->starts == NULL || s->written == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "out of memory");
        goto err_close;
    }
    lay_out(s, false);
    lay_out(s, true);
    rc = gpt_gpu_enter(gpu, err);
    if (rc == 0) {
        rc = alloc_states(s, err);
    }
    if (rc == 0) {
        rc = write_tiles(s, err);
    }
    if (rc == 0) {
        rc = gpt_gpu_alloc_host(gpu, model->n_tensors * sizeof *s->next, (void **)&s->next, err);
    }
    if (rc == 0) {
        rc = gpt_gpu_alloc_host(gpu, sizeof *s->sum_squares, (void **)&s->sum_squares, err);
    }
    if (rc != 0) {
        goto err_close;
    }
    *out = &s->head;
    return 0;
err_close:
    store_close(&s->head, false);
    return rc;
}
