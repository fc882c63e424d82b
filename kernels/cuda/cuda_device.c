/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/cuda_device.h"

#include "kernels/cuda/flight.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/muon.h"
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

static const struct cste_memory_ops memory_ops = {
    /* Copies of unlocked memory are slow. */
    .always_locks = true,
    /* While one thread waits for a processor, the stream of the other one keeps the link busy. */
    .max_lanes = 2,
    .piece_bytes = CSTE_GPU_PIECE_BYTES,
    .map = cste_gpu_map,
    .import = cste_gpu_import,
    .unmap = cste_gpu_unmap,
    .populate = cuda_populate,
    .lock = cste_gpu_lock,
    .copy = cste_gpu_copy,
    .fill = cste_gpu_fill,
};

static const struct cste_compute_ops compute_ops = {
    /* Each thread has staging buffers. While one thread's sums are copied, another one sums. */
    .max_team = 4,
    .max_tiles = CSTE_GPU_STAGING_TILES,
    /* A phase is one launch for each tensor. */
    .max_products = 1u << 20,
    .convert = cste_gpu_convert,
    .reduce = cste_gpu_reduce,
    .update = cste_gpu_update,
    .orthogonalise = cste_gpu_orthogonalise,
};

const struct cste_device_ops cste_cuda_ops = {
    .name = "cuda",
    .window = CSTE_GPU_WINDOW,
    .open = cuda_open,
    .close = cuda_close,
    .finish = cste_gpu_finish,
    .memory = &memory_ops,
    .compute = &compute_ops,
};
