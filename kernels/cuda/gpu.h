/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's GPU: the driver, its context, and what each thread of the engine has of its own: a
 * stream, and for those of the compute team the buffers of a reduction. What it does with memory is
 * in memory.h, what it adds up in reduction.h. */
#ifndef CST_CUDA_GPU_H
#define CST_CUDA_GPU_H

#include "kernels/cuda/kernels.h"
#include "kernels/device.h"

#define CST_GPU_CAST_ELEMS (1u << 18) /* of values at a time */
#define CST_GPU_STAGE_TILES 2048
#define CST_GPU_STAGE_ELEMS ((uint64_t)CST_GPU_STAGE_TILES * CST_TILE_ELEMS)

/* Buffers of a reduction, the same on the device and on the host (pinned):
 *
 *   +-------------------------+-----------------------+--------------------+
 *   | rows[STAGE_ELEMS], bf16 | tiles[STAGE_TILES]    | sums[STAGE_TILES]  |
 *   +-------------------------+-----------------------+--------------------+ */
struct cst_gpu_stage {
    struct cst_mem device;  /* on the GPU */
    struct cst_mem host;    /* pinned */
    struct cst_tile *batch; /* STAGE_TILES: the tiles that are in it */
};

#define CST_GPU_STAGE_TILES_AT (CST_GPU_STAGE_ELEMS * sizeof(uint16_t))
#define CST_GPU_STAGE_SUMS_AT                                                                      \
    (CST_GPU_STAGE_TILES_AT + CST_GPU_STAGE_TILES * sizeof(struct cst_cuda_tile))
#define CST_GPU_STAGE_BYTES (CST_GPU_STAGE_SUMS_AT + CST_GPU_STAGE_TILES * sizeof(double))

struct cst_gpu {
    struct cst_cuda_driver driver;
    struct cst_cuda_kernels kernels;     /* of the GPU */
    const struct cst_kernels *processor; /* of the processor, for what it has to add up */
    CUdevice device;                     /* number in this process */
    CUcontext context;                   /* its primary context; NULL: not retained */
    char uuid[CST_CUDA_UUID_BYTES];      /* name on the wire */
    char name[128];                      /* "NVIDIA H200" */
    char isa[16];                        /* "sm_90" */
    uint64_t bytes;                      /* its memory */
    uint64_t granularity;                /* memory is made in multiples of it, bytes */
    CUstream *streams;                   /* n_threads of them; NULL: not made */
    struct cst_gpu_stage *stages;        /* n_team of them */
    CUdeviceptr *values;                 /* n_threads: fp32 that a thread casts; 0: not made yet */
    unsigned n_threads, n_team;          /* as in cst_device_spec */
};

/* Open the GPU that spec->id names. CST_EUNSUPPORTED: no driver, no GPU, driver too old, or the GPU
 * lacks something; CST_ENOTFOUND: no such GPU; CST_EINVAL: none was named; CST_ENOMEM, CST_EGPU. */
int cst_gpu_open(struct cst_gpu **out, const struct cst_device_spec *spec, struct cst_err *err);

/* No call may be under way. */
void cst_gpu_close(struct cst_gpu *gpu);

/* Make its context the calling thread's. Before any call of the driver on a thread. */
int cst_gpu_enter(struct cst_gpu *gpu, struct cst_err *err);

/* Wait for all that was enqueued on thread @thread's stream. @rc and @err are what enqueuing came
 * to, returned as they are after the wait: nothing is under way then. CST_EGPU: it cannot be waited
 * for, whatever the reason: the GPU may still be at work on memory that its owner would take back.
 */
int cst_gpu_settle(struct cst_gpu *gpu, unsigned thread, int rc, struct cst_err *err);

/* How the properties of memory of this GPU that can be exported are written. */
CUmemAllocationProp cst_gpu_memory_prop(const struct cst_gpu *gpu);

#endif
