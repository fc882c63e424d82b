/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/update.h"

#include "kernels/cuda/flight.h"
#include "kernels/cuda/memory.h"
#include "proto/grad_limit.h"

/* Offset of a batch's scalars in the staging buffers. The scalars use the space of a reduction's
 * rows. Each span has at least one tile; there are therefore no more scalars than tiles. */
#define SPANS_AT 0

_Static_assert(CSTE_GPU_STAGING_TILES * sizeof(struct cst_update_scalars) <=
                   CSTE_GPU_STAGING_TILES_AT,
               "the scalars of as many spans as tiles fit into the staging buffers");
_Static_assert(CST_UPDATE_GROUP == CST_MX8_BLOCK, "a group is a block");

/* Tiles of one launch, staged. */
struct batch {
    bool directs;     /* The launch computes directions of Muon. Otherwise it updates. */
    uint32_t n;       /* Number of tiles. */
    uint32_t n_spans; /* Number of spans to which the tiles belong. */
};

static void *staged(const struct cste_gpu_staging *staging, uint64_t at)
{
    return (char *)staging->host.base + at;
}

static void prepare(struct cst_update_scalars *out, const struct cste_device_update *update,
                    const struct cst_table_span *span)
{
    const struct cst_tile_hyper *hyper = update->hyper;
    const struct cst_table_header *table = update->work->table;
    uint64_t mark = update->work->mark;
    double lr = hyper->lr * cst_table_lr(table, span, mark);
    double decay = hyper->weight_decay * cst_table_decay(table, span, mark);

    if (update->work->batch != NULL) {
        cst_update_prepare_muon(out, lr, decay, hyper->grad_scale, span->rows, span->columns);
    } else {
        cst_update_prepare(out, lr, hyper->beta1, hyper->beta2, hyper->eps, decay,
                           hyper->grad_scale, cst_table_step(table, span, mark));
    }
}

/* Returns where the directions of @tile of @span are before the products (@orthogonal is false) or
 * after them. NULL: they are not those of Muon. */
static uint16_t *directions(const struct cst_tile_work *work, const struct cst_table_span *span,
                            const struct cst_tile *tile, bool orthogonal)
{
    const struct cst_muon_batch *batch = work->batch;

    return batch == NULL ? NULL
                         : cst_muon_values(batch, (uint32_t)(span - batch->spans), orthogonal) +
                               (tile->start - span->start);
}

/* Returns whether the states of @tile of @span stay. The kernel does not read the table; the host
 * decides here. */
static bool is_kept(const struct cste_device_update *update, const struct cst_table_span *span,
                    const struct cst_tile *tile)
{
    struct cst_tile_work work = *update->work;

    work.guard = update->guard;
    return cst_tile_spares(&work, span, update->hyper->grad_scale) ||
           (work.batch == NULL && work.guard &&
            !cst_grad_limit_holds(tile->entry->sum_squares, update->hyper->grad_scale));
}

/* Stage the next tiles of @walk in @batch. */
static void take_batch(const struct cste_gpu_staging *staging,
                       const struct cste_device_update *update, struct cst_tile_walk *walk,
                       struct batch *batch)
{
    struct cst_cuda_tile *tiles = staged(staging, CSTE_GPU_STAGING_TILES_AT);
    struct cst_update_scalars *spans = staged(staging, SPANS_AT);
    const struct cst_table_span *span, *prepared = NULL;
    struct cst_tile tile;
    bool spared = false;

    batch->n = batch->n_spans = 0;
    while (batch->n < CSTE_GPU_STAGING_TILES && (span = cst_tile_walk_next(walk, &tile)) != NULL) {
        if (span != prepared) {
            prepare(&spans[batch->n_spans++], update, span);
            spared = update->work->batch != NULL && is_kept(update, span, &tile);
            prepared = span;
        }
        tiles[batch->n++] = (struct cst_cuda_tile){
            .start = tile.start,
            .n_elems = tile.n_elems,
            .span = batch->n_spans - 1,
            .number = tile.number,
            .keep = update->work->batch != NULL ? spared : is_kept(update, span, &tile),
            .direction = directions(update->work, span, &tile, !batch->directs)};
    }
}

static void *pointer(struct cste_addr addr)
{
    return addr.mem == NULL ? NULL : (void *)(uintptr_t)(addr.mem->device + addr.offset);
}

static struct cst_update_moment moment(const struct cste_device_update *update,
                                       struct cste_addr addr)
{
    uint8_t *values = pointer(addr);
    bool blocks = update->work->table->moments == CST_MOMENTS_MX8 && values != NULL;

    return (struct cst_update_moment){.values = values,
                                      .exponents = blocks ? values + update->row_elems : NULL};
}

/* Set the master weights and the weights that are read and written. */
static void point_weights(struct cst_update_rows *rows, const struct cste_device_update *update)
{
    void *weight_in = pointer(update->in[CST_ROW_WEIGHT]);
    void *master_in = pointer(update->in[CST_ROW_MASTER]);
    void *weight = pointer(update->out[CST_ROW_WEIGHT]);
    void *master = pointer(update->out[CST_ROW_MASTER]);

    if (cst_tile_dtype(update->work) == CST_FP32) {
        rows->master_in = weight_in;
        rows->master = weight;
        return;
    }
    rows->weight = weight;
    if (update->work->table->masters == CST_MASTERS_SPLIT) {
        rows->weight_in = weight_in;
        rows->remainder_in = master_in;
        rows->remainder = master;
    } else {
        rows->master_in = master_in;
        rows->master = master;
    }
}

static struct cst_cuda_update arguments(const struct cste_device_update *update)
{
    struct cst_table_header *table = update->work->table;
    const struct cst_table_chunk *chunk = &cst_table_chunks(table)[update->work->chunk];
    bool wide = cst_table_grad_bytes(table, cst_tile_dtype(update->work)) == sizeof(float);
    void *grad = pointer(update->in[CST_ROW_GRAD]);
    struct cst_cuda_update args = {
        .rows = {.grad_bf16 = wide ? NULL : grad, .grad_fp32 = wide ? grad : NULL},
        .seed = table->seed,
        .t = update->work->mark,
        .optimizer = cst_table_optimizer(table, chunk)};

    point_weights(&args.rows, update);
    for (unsigned k = 0; k < CST_MAX_MOMENTS; k++) {
        args.rows.moments_in[k] = moment(update, update->in[CST_ROW_MOMENT + k]);
        args.rows.moments[k] = moment(update, update->out[CST_ROW_MOMENT + k]);
    }
    return args;
}

static int bring(struct cste_gpu *gpu, unsigned thread, const struct cste_gpu_staging *staging,
                 uint64_t at, uint64_t bytes, struct cst_err *err)
{
    return cste_gpu_enqueue_copy(
        gpu, thread, (struct cste_addr){.mem = &staging->device, .offset = at},
        (struct cste_addr){.mem = &staging->host, .offset = at}, bytes, err);
}

/* Returns what the update of @batch does. The kernel reads no gradient of a tile whose states
 * stay. */
static struct cst_tile_done count(const struct cste_gpu_staging *staging,
                                  const struct cst_cuda_update *args, enum cst_moments moments,
                                  const struct batch *batch)
{
    const struct cst_cuda_tile *tiles = staged(staging, CSTE_GPU_STAGING_TILES_AT);
    struct cst_tile_done done = {0};

    for (uint32_t i = 0; i < batch->n; i++) {
        struct cst_update_rows rows = args->rows;

        if (tiles[i].keep != 0) {
            rows.grad_bf16 = NULL;
            rows.grad_fp32 = NULL;
        }
        done.bytes += cst_update_bytes(&rows, moments, tiles[i].n_elems);
        done.n_elems += tiles[i].n_elems;
    }
    return done;
}

static int enqueue(struct cste_gpu *gpu, unsigned thread, const struct cste_gpu_staging *staging,
                   const struct cste_device_update *update, const struct batch *batch,
                   const struct cst_cuda_update *args, struct cst_err *err)
{
    const struct cst_table_header *table = update->work->table;
    CUstream stream = cste_gpu_stream(gpu, thread);
    CUdeviceptr tiles = staging->device.device + CSTE_GPU_STAGING_TILES_AT;
    CUdeviceptr spans = staging->device.device + SPANS_AT;
    int rc = bring(gpu, thread, staging, SPANS_AT,
                   batch->n_spans * sizeof(struct cst_update_scalars), err);

    if (rc == CST_OK) {
        rc = bring(gpu, thread, staging, CSTE_GPU_STAGING_TILES_AT,
                   batch->n * sizeof(struct cst_cuda_tile), err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    return batch->directs ? cst_cuda_direct(&gpu->kernels, stream, batch->n, tiles, spans,
                                            (enum cst_moments)table->moments, args, err)
                          : cst_cuda_update(&gpu->kernels, stream, batch->n, tiles, spans,
                                            (enum cst_moments)table->moments,
                                            (enum cst_rounding)table->rounding, args, err);
}

/* Enqueue what is done with @batch, which @flight has staged. */
static int start(struct cste_gpu *gpu, unsigned thread, struct cste_gpu_flight *flight,
                 const struct cste_device_update *update, const struct batch *batch,
                 struct cst_err *err)
{
    const struct cst_cuda_update args = arguments(update);
    int rc = enqueue(gpu, thread, &flight->staging, update, batch, &args, err);

    if (!batch->directs) {
        flight->tally =
            count(&flight->staging, &args, (enum cst_moments)update->work->table->moments, batch);
    }
    return cste_gpu_depart(gpu, thread, flight, rc, err);
}

static bool is_own(const struct cste_addr rows[CST_ROW_COUNT])
{
    bool own = true;

    for (int i = 0; i < CST_ROW_COUNT; i++) {
        own = own && (rows[i].mem == NULL || rows[i].mem->device != 0);
    }
    return own;
}

static int check(const struct cste_device_update *update, struct cst_err *err)
{
    if (cste_device_is_in_place(update)) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "UPDATE in place must go to the engine of a node");
    }
    if (update->n_src > 0) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "UPDATE of %u contributions must go to the engine of a node",
                           update->n_src);
    }
    if (!is_own(update->in) || !is_own(update->out)) {
        return cst_err_set(err, CST_EINVAL, "UPDATE of chunk %u: a row is in host memory",
                           update->work->chunk);
    }
    return CST_OK;
}

/* Update tiles [@first, @first + @count) or, if @directs is true, compute their directions. */
static int start_all(struct cste_gpu *gpu, unsigned thread, const struct cste_device_update *update,
                     bool directs, uint64_t first, uint64_t count, struct cst_tile_done *done,
                     struct cst_err *err)
{
    struct cste_gpu_flight *flight = cste_gpu_take_flight(gpu, thread);
    struct batch batch = {.directs = directs};
    struct cst_tile_walk walk;
    int rc = check(update, err);

    if (rc == CST_OK) {
        rc = cste_gpu_enter(gpu, err);
    }
    cst_tile_walk_start(&walk, update->work, first, count);
    while (rc == CST_OK && cst_tile_walk_has_next(&walk)) {
        /* The staging buffers of the previous batch are used again. */
        rc = cste_gpu_land(gpu, thread, flight, done, err);
        if (rc == CST_OK) {
            take_batch(&flight->staging, update, &walk, &batch);
            rc = start(gpu, thread, flight, update, &batch, err);
        }
    }
    return cste_gpu_leave_under_way(gpu, thread, rc);
}

int cste_gpu_update(void *state, unsigned thread, const struct cste_device_update *update,
                    uint64_t first, uint64_t count, struct cst_undo_slot *undo,
                    struct cst_tile_done *done, struct cst_err *err)
{
    (void)undo;
    return start_all(state, thread, update, false, first, count, done, err);
}

int cste_gpu_direct(struct cste_gpu *gpu, unsigned thread, const struct cste_device_update *update,
                    uint64_t first, uint64_t count, struct cst_err *err)
{
    struct cst_tile_done none = {0};

    return start_all(gpu, thread, update, true, first, count, &none, err);
}
