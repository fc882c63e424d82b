/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/device.h"

#include "kernels/cuda/memory.h"
#include "kernels/cuda/reduction.h"
#include "kernels/cuda/update.h"

static int cuda_open(void **state, const struct cste_device_spec *spec,
                     struct cste_device_about *about, struct cst_err *err)
{
    struct cste_gpu *gpu;
    int rc = cste_gpu_open(&gpu, spec, err);

    if (rc == CST_OK) {
        *state = gpu;
        *about = (struct cste_device_about){.isa = gpu->isa,
                                            .name = gpu->name,
                                            .bytes = gpu->bytes,
                                            .granularity = gpu->granularity,
                                            .driver = (uint32_t)gpu->driver.version};
    }
    return rc;
}

static void cuda_close(void *state)
{
    cste_gpu_close(state);
}

static int cuda_map(void *state, int fd, int node, struct cste_mem *mem, struct cst_err *note,
                    struct cst_err *err)
{
    /* The engines of nodes bind and populate host memory. */
    (void)node;
    (void)note;
    return cste_gpu_map(state, fd, mem, err);
}

static int cuda_import(void *state, unsigned thread, int *fd, struct cste_mem *mem,
                       struct cst_err *err)
{
    return cste_gpu_import(state, thread, fd, mem, err);
}

static void cuda_unmap(void *state, struct cste_mem *mem)
{
    cste_gpu_unmap(state, mem);
}

/* Host memory is populated by the engines of nodes, each on its node. */
static int cuda_populate(void *state, int fd, void *base, uint64_t offset, uint64_t bytes,
                         struct cst_err *err)
{
    (void)state;
    (void)fd;
    (void)base;
    (void)offset;
    (void)bytes;
    (void)err;
    return CST_OK;
}

static int cuda_lock(void *state, const struct cste_mem *mem, struct cst_err *err)
{
    return cste_gpu_register(state, mem, err);
}

static int cuda_copy(void *state, unsigned thread, struct cste_addr dst, struct cste_addr src,
                     uint64_t bytes, struct cst_err *err)
{
    return cste_gpu_copy(state, thread, dst, src, bytes, err);
}

static int cuda_fill(void *state, unsigned thread, struct cste_addr dst, uint64_t bytes,
                     struct cst_err *err)
{
    return cste_gpu_fill(state, thread, dst, bytes, err);
}

static int cuda_convert(void *state, unsigned thread, const struct cste_device_convert *convert,
                        struct cst_err *err)
{
    if (convert->what != CSTE_CONVERT_WEIGHT) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "CONVERT of states must go to the engine of a node");
    }
    return cste_gpu_cast(state, thread, convert->dst[0], convert->src, convert->n_elems, err);
}

static int cuda_reduce(void *state, unsigned thread, const struct cst_tile_work *work,
                       uint32_t n_src, const struct cste_addr *src, uint64_t first, uint64_t count,
                       struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err)
{
    return cste_gpu_reduce(state, thread, work, n_src, src, first, count, undo, done, err);
}

static int cuda_update(void *state, unsigned thread, const struct cste_device_update *update,
                       uint64_t first, uint64_t count, struct cst_undo_slot *undo,
                       struct cst_tile_done *done, struct cst_err *err)
{
    (void)undo;
    return cste_gpu_update(state, thread, update, first, count, done, err);
}

const struct cste_device_ops cste_cuda_ops = {
    .name = "cuda",
    /* Copies of unlocked memory are slow. */
    .always_locks = true,
    /* Each thread has a stage. While the sums of one thread are copied, another thread sums. */
    .max_team = 4,
    /* One piece is under way while the next one is enqueued. */
    .max_lanes = 2,
    .piece_bytes = 16u << 20,
    .max_tiles = CSTE_GPU_STAGE_TILES,
    .open = cuda_open,
    .close = cuda_close,
    .map = cuda_map,
    .import = cuda_import,
    .unmap = cuda_unmap,
    .populate = cuda_populate,
    .lock = cuda_lock,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .convert = cuda_convert,
    .reduce = cuda_reduce,
    .update = cuda_update,
};
