/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/reduction.h"

#include "kernels/cuda/flight.h"
#include "kernels/cuda/memory.h"

#include <string.h>

/* Staged data has the alignment in elements that it has in its row. */
#define BASE_ALIGN 64

_Static_assert(CST_TILE_MAX_SRC <= CST_CUDA_MAX_SRC, "the kernel takes as many sources");
_Static_assert(CSTE_GPU_STAGING_ELEMS / 2 / CST_TILE_MAX_SRC >= CST_TILE_ELEMS + BASE_ALIGN,
               "a tile of each source fits in the staging buffers, also of fp32");

/* A reduction on one thread, and the flight that it uses. */
struct reduction {
    struct cste_gpu *gpu;
    unsigned thread;
    struct cste_gpu_flight *flight;
    struct cste_gpu_staging *staging; /* Staging buffers of the flight. */
    const struct cst_tile_work *work;
    uint32_t n_src;
    const struct cste_addr *src; /* Starts of the source rows, in rank order. */
};

/* Returns the bytes of an element of a contribution. */
static uint64_t elem_bytes(const struct cst_tile_work *work)
{
    return cst_dtype_bytes(cst_tile_src_dtype(work));
}

/* Returns the address of element @elems of a contribution, or of a row in the same format, that
 * begins at @addr. */
static struct cste_addr ahead(const struct reduction *r, struct cste_addr addr, uint64_t elems)
{
    return cste_addr_ahead(addr, elems * elem_bytes(r->work));
}

/* Take the next tiles of @walk that are not done, as many as fit into @max_elems. */
static void take_batch(struct reduction *r, struct cst_tile_walk *walk, uint64_t max_elems,
                       struct cste_gpu_batch *batch)
{
    struct cst_tile_walk before = *walk;
    struct cst_tile tile;

    *batch = (struct cste_gpu_batch){0};
    while (batch->n < CSTE_GPU_STAGING_TILES && cst_tile_walk_next(walk, &tile) != NULL) {
        if (tile.entry->reduce_mark == (uint32_t)tile.mark) {
            before = *walk;
            continue;
        }
        if (batch->n == 0) {
            batch->base = tile.start / BASE_ALIGN * BASE_ALIGN;
        } else if (tile.start + tile.n_elems - batch->base > max_elems) {
            /* A tile that does not fit begins the next batch. */
            *walk = before;
            break;
        }
        r->staging->batch[batch->n++] = tile;
        batch->end = tile.start + tile.n_elems;
        before = *walk;
    }
}

/* Returns the bytes of the contributions to @tile. */
static uint64_t src_bytes(const struct cste_gpu_reduction *r, const struct cst_tile *tile)
{
    return r->n_src * tile->n_elems * elem_bytes(r->work);
}

/* -- on the GPU ----------------------------------------------------------------------------- */

static struct cst_cuda_tile *staged_tiles(const struct cste_gpu_staging *staging)
{
    return (struct cst_cuda_tile *)(void *)((char *)staging->host.base + CSTE_GPU_STAGING_TILES_AT);
}

static const double *staged_sums(const struct cste_gpu_staging *staging)
{
    return (const double *)(const void *)((const char *)staging->host.base +
                                          CSTE_GPU_STAGING_SUMS_AT);
}

/* Copy the list of the batch's tiles to the GPU, and set @sources to the batch's part of each
 * source. */
static int stage_tiles(struct reduction *r, const struct cste_gpu_batch *batch,
                       struct cst_cuda_sources *sources, struct cst_err *err)
{
    struct cste_gpu_staging *staging = r->staging;
    struct cste_addr to = {.mem = &staging->device, .offset = CSTE_GPU_STAGING_TILES_AT};
    struct cste_addr from = {.mem = &staging->host, .offset = CSTE_GPU_STAGING_TILES_AT};

    *sources = (struct cst_cuda_sources){.n = r->n_src};
    for (uint32_t i = 0; i < batch->n; i++) {
        staged_tiles(staging)[i] = (struct cst_cuda_tile){
            .start = staging->batch[i].start - batch->base, .n_elems = staging->batch[i].n_elems};
    }
    for (uint32_t i = 0; i < r->n_src; i++) {
        struct cste_addr src = ahead(r, r->src[i], batch->base);

        sources->v[i] = (const uint16_t *)(uintptr_t)(src.mem->device + src.offset);
    }
    return cste_gpu_enqueue_copy(r->gpu, r->thread, to, from,
                                 batch->n * sizeof(struct cst_cuda_tile), err);
}

static int launch(struct reduction *r, const struct cste_gpu_batch *batch, struct cst_err *err)
{
    struct cst_cuda_sources sources;
    CUdeviceptr at = r->staging->device.device;
    int rc = stage_tiles(r, batch, &sources, err);

    return rc != CST_OK ? rc
                        : cst_cuda_reduce(&r->gpu->kernels, cste_gpu_stream(r->gpu, r->thread),
                                          batch->n, at + CSTE_GPU_STAGING_TILES_AT, &sources, at,
                                          at + CSTE_GPU_STAGING_SUMS_AT, err);
}

/* Copy gradients and sums of squares to the host. Adjacent tiles are copied together. The row
 * between tiles that are not adjacent is not touched: these elements are padding or belong to tiles
 * that are done. */
static int copy_out(struct reduction *r, const struct cste_gpu_batch *batch, struct cst_err *err)
{
    const struct cst_tile *tiles = r->staging->batch;
    struct cste_gpu_reduction *kept = &r->flight->reduction;
    struct cste_addr to = {.mem = &kept->row_mem, .offset = kept->row_offset};
    struct cste_addr from = {.mem = &r->staging->device};
    int rc = CST_OK;

    if (kept->staged) {
        to = (struct cste_addr){.mem = &r->staging->host};
    }
    for (uint32_t i = 0, next; i < batch->n && rc == CST_OK; i = next) {
        uint64_t start = tiles[i].start, end = start;

        for (next = i; next < batch->n && tiles[next].start == end; next++) {
            end += tiles[next].n_elems;
        }
        rc = cste_gpu_enqueue_copy(
            r->gpu, r->thread, ahead(r, to, kept->staged ? start - batch->base : start),
            ahead(r, from, start - batch->base), (end - start) * sizeof(uint16_t), err);
    }
    from.offset = CSTE_GPU_STAGING_SUMS_AT;
    to = (struct cste_addr){.mem = &r->staging->host, .offset = CSTE_GPU_STAGING_SUMS_AT};
    return rc != CST_OK
               ? rc
               : cste_gpu_enqueue_copy(r->gpu, r->thread, to, from, batch->n * sizeof(double), err);
}

/* Mark the tiles, whose gradients have arrived in the row, or in the staging buffers and are stored
 * in the row first. */
static void end_on_gpu(struct cste_gpu *gpu, struct cste_gpu_flight *flight,
                       struct cst_tile_done *done)
{
    const struct cste_gpu_reduction *r = &flight->reduction;
    const uint16_t *sums = flight->staging.host.base;

    (void)gpu;
    for (uint32_t i = 0; i < r->batch.n; i++) {
        struct cst_tile *tile = &flight->staging.batch[i];

        if (r->staged) {
            memcpy(r->work->rows.grad + tile->start, sums + (tile->start - r->batch.base),
                   tile->n_elems * sizeof *sums);
        }
        tile->entry->sum_squares = staged_sums(&flight->staging)[i];
        cst_undo_end(NULL, tile, CST_UNDO_REDUCE);
        done->n_elems += tile->n_elems;
        done->bytes += src_bytes(r, tile) + tile->n_elems * sizeof(uint16_t);
    }
}

static int add_up_on_gpu(struct reduction *r, const struct cste_gpu_batch *batch,
                         struct cst_err *err)
{
    int rc = launch(r, batch, err);

    r->flight->end = end_on_gpu;
    return rc == CST_OK ? copy_out(r, batch, err) : rc;
}

/* Store the sums that have arrived in the staging buffers in the row. */
static void end_sum(struct cste_gpu *gpu, struct cste_gpu_flight *flight,
                    struct cst_tile_done *done)
{
    const struct cste_gpu_reduction *r = &flight->reduction;
    const float *sums = flight->staging.host.base;

    for (uint32_t i = 0; i < r->batch.n; i++) {
        const struct cst_tile *tile = &flight->staging.batch[i];

        (void)cst_tile_reduce_sum(gpu->processor, sums + (tile->start - r->batch.base),
                                  &r->work->rows, tile, done);
        done->bytes += src_bytes(r, tile);
    }
}

/* Sum on the GPU in fp32. The sums go through the staging buffers to the processor, which stores
 * them in the row. */
static int sum_on_gpu(struct reduction *r, const struct cste_gpu_batch *batch, struct cst_err *err)
{
    struct cste_addr to = {.mem = &r->staging->host}, from = {.mem = &r->staging->device};
    struct cst_cuda_sources sources;
    int rc = stage_tiles(r, batch, &sources, err);

    r->flight->end = end_sum;
    if (rc == CST_OK) {
        rc = cst_cuda_sum(&r->gpu->kernels, cste_gpu_stream(r->gpu, r->thread), batch->n,
                          from.mem->device + CSTE_GPU_STAGING_TILES_AT, &sources, from.mem->device,
                          err);
    }
    return rc != CST_OK ? rc
                        : cste_gpu_enqueue_copy(r->gpu, r->thread, to, from,
                                                (batch->end - batch->base) * sizeof(float), err);
}

/* -- on the processor ----------------------------------------------------------------------- */

/* Returns the address at which a staged source row would begin if it were staged whole. Only the
 * batch's part of the row is there. */
static const void *row_of_staged(const struct reduction *r, const void *staged,
                                 const struct cste_gpu_batch *batch)
{
    return (const void *)((uintptr_t)staged - batch->base * elem_bytes(r->work));
}

/* Sum the sources, which have arrived in the staging buffers if they are on GPUs. */
static void end_here(struct cste_gpu *gpu, struct cste_gpu_flight *flight,
                     struct cst_tile_done *done)
{
    const struct cste_gpu_reduction *r = &flight->reduction;

    for (uint32_t i = 0; i < r->batch.n; i++) {
        (void)cst_tile_reduce(gpu->processor, r->n_src, r->at, &r->work->rows,
                              &flight->staging.batch[i], r->undo, done);
    }
}

/* Copy the sources that are on GPUs to the staging buffers, with space for max_elems of each, and
 * keep the starts of all source rows. */
static int add_up_here(struct reduction *r, const struct cste_gpu_batch *batch, struct cst_err *err)
{
    struct cste_gpu_reduction *kept = &r->flight->reduction;
    struct cste_addr to = {.mem = &r->staging->host};
    int rc = CST_OK;

    r->flight->end = end_here;
    for (uint32_t i = 0; i < r->n_src && rc == CST_OK; i++) {
        const struct cste_mem *mem = r->src[i].mem;

        if (mem->device == 0) {
            kept->at[i] = (const char *)mem->base + r->src[i].offset;
            continue;
        }
        rc = cste_gpu_enqueue_copy(r->gpu, r->thread, to, ahead(r, r->src[i], batch->base),
                                   (batch->end - batch->base) * elem_bytes(r->work), err);
        kept->at[i] = row_of_staged(r, (const char *)r->staging->host.base + to.offset, batch);
        to = ahead(r, to, kept->max_elems);
    }
    return rc;
}

/* -- choice between GPU and processor ------------------------------------------------------- */

/* Returns how many elements of each source row fit into the staging buffers, which take
 * @staging_elems of their elements. */
static uint64_t room(uint64_t staging_elems, uint32_t n_on_gpu, bool on_gpu)
{
    return on_gpu || n_on_gpu == 0 ? staging_elems
                                   : staging_elems / n_on_gpu / BASE_ALIGN * BASE_ALIGN;
}

/* Find the segment address of the grad row. Registrations are counted from the start of its
 * segment. */
static void find_row(struct cste_gpu_reduction *r)
{
    const struct cst_table_chunk *chunk = &cst_table_chunks(r->work->table)[r->work->chunk];

    r->row_offset = chunk->rows[CST_ROW_GRAD].offset;
    r->row_mem =
        (struct cste_mem){.base = (char *)r->work->rows.grad - r->row_offset,
                          .bytes = r->row_offset + chunk->n_elems * sizeof *r->work->rows.grad};
}

/* Where the sums are made, and for how many elements at a time. */
struct way {
    /* The GPU makes the whole sum, or with an fp32 row the sum of the contributions. */
    bool on_gpu;
    uint64_t max_elems; /* Largest number of elements of the rows in a batch. */
};

/* The kernels sum bf16 contributions only. The processor sums those of fp32 tensors, so that the
 * link carries 4 * n_src bytes of each of their elements, where a GPU would send 4. That is the
 * same with one contribution; with several, models whose tensors are all fp32 pay for it. */
static struct way choose_way(const struct cst_tile_work *work, uint32_t n_src, uint32_t n_on_gpu)
{
    bool wide = work->rows.grad_f32 != NULL, fp32 = cst_tile_src_dtype(work) == CST_FP32;
    /* With an fp32 row, the link carries either all sources (2 bytes per element each) or the
     * sum (4 bytes). */
    bool fewer_bytes = !wide || (!work->accumulate && n_src * sizeof(uint16_t) > sizeof(float));
    bool on_gpu = n_on_gpu == n_src && fewer_bytes && !fp32;
    /* The staging buffers have room for half as many fp32 values as bf16 values. */
    bool half = fp32 || (on_gpu && wide);

    return (struct way){.on_gpu = on_gpu,
                        .max_elems =
                            room(CSTE_GPU_STAGING_ELEMS / (half ? 2 : 1), n_on_gpu, on_gpu)};
}

/* Enqueue @batch. */
static int start(struct reduction *r, bool on_gpu, const struct cste_gpu_batch *batch,
                 struct cst_err *err)
{
    int rc;

    if (!on_gpu) {
        rc = add_up_here(r, batch, err);
    } else if (r->work->rows.grad_f32 != NULL) {
        rc = sum_on_gpu(r, batch, err);
    } else {
        rc = add_up_on_gpu(r, batch, err);
    }
    return cste_gpu_depart(r->gpu, r->thread, r->flight, rc, err);
}

/* Enqueue all tiles of @walk, batch by batch. A batch uses the staging buffers of the batch before
 * it, which lands first. */
static int start_all(struct reduction *r, bool on_gpu, struct cst_tile_walk *walk,
                     struct cst_tile_done *done, struct cst_err *err)
{
    struct cste_gpu_reduction *kept = &r->flight->reduction;
    int rc = CST_OK;

    while (rc == CST_OK && cst_tile_walk_has_next(walk)) {
        rc = cste_gpu_land(r->gpu, r->thread, r->flight, done, err);
        if (rc == CST_OK) {
            take_batch(r, walk, kept->max_elems, &kept->batch);
        }
        if (rc == CST_OK && kept->batch.n > 0) {
            rc = start(r, on_gpu, &kept->batch, err);
        }
    }
    return rc;
}

int cste_gpu_reduce(void *state, unsigned thread, const struct cst_tile_work *work, uint32_t n_src,
                    const struct cste_addr *src, uint64_t first, uint64_t count,
                    struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err)
{
    struct cste_gpu *gpu = state;
    struct cste_gpu_flight *flight = cste_gpu_take_flight(gpu, thread);
    struct reduction r = {.gpu = gpu,
                          .thread = thread,
                          .flight = flight,
                          .staging = &flight->staging,
                          .work = work,
                          .n_src = n_src,
                          .src = src};
    struct cst_tile_walk walk;
    uint32_t n_on_gpu = 0;
    struct way way;
    int rc = cste_gpu_enter(gpu, err);

    for (uint32_t i = 0; i < n_src; i++) {
        n_on_gpu += src[i].mem->device != 0;
    }
    way = choose_way(work, n_src, n_on_gpu);
    flight->reduction = (struct cste_gpu_reduction){.work = work,
                                                    .n_src = n_src,
                                                    .max_elems = way.max_elems,
                                                    .undo = undo,
                                                    .staged = atomic_load(&gpu->has_unregistered)};
    if (work->rows.grad != NULL) {
        find_row(&flight->reduction);
    }
    cst_tile_walk_start(&walk, work, first, count);
    if (rc == CST_OK) {
        rc = start_all(&r, way.on_gpu, &walk, done, err);
    }
    return cste_gpu_leave_under_way(gpu, thread, rc);
}
