/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU of an engine: the driver, its context, and the resources of each thread of the engine.
 * Each thread has a stream; each thread of the compute team also has the buffers of a reduction.
 * Operations on memory are in memory.h, sums in reduction.h. */
#ifndef CST_CUDA_GPU_H
#define CST_CUDA_GPU_H

#include "kernels/cuda/kernels.h"
#include "kernels/engine/device.h"

/* Number of fp32 values that are cast at a time. */
#define CSTE_GPU_CAST_ELEMS (1u << 18)
#define CSTE_GPU_STAGE_TILES 2048
#define CSTE_GPU_STAGE_ELEMS ((uint64_t)CSTE_GPU_STAGE_TILES * CST_TILE_ELEMS)

/* Buffers of a reduction, with one layout on the device and on the host (pinned):
 *
 *   +-------------------------+-----------------------+--------------------+
 *   | rows[STAGE_ELEMS], bf16 | tiles[STAGE_TILES]    | sums[STAGE_TILES]  |
 *   +-------------------------+-----------------------+--------------------+ */
struct cste_gpu_stage {
    struct cste_mem device; /* Buffer on the GPU. */
    struct cste_mem host;   /* Pinned host buffer. */
    struct cst_tile *batch; /* The tiles in the buffer; room for CSTE_GPU_STAGE_TILES. */
};

#define CSTE_GPU_STAGE_TILES_AT (CSTE_GPU_STAGE_ELEMS * sizeof(uint16_t))
#define CSTE_GPU_STAGE_SUMS_AT                                                                     \
    (CSTE_GPU_STAGE_TILES_AT + CSTE_GPU_STAGE_TILES * sizeof(struct cst_cuda_tile))
#define CSTE_GPU_STAGE_BYTES (CSTE_GPU_STAGE_SUMS_AT + CSTE_GPU_STAGE_TILES * sizeof(double))

/* The state of the device "cuda". */
struct cste_gpu {
    struct cst_cuda_driver driver;
    struct cst_cuda_kernels kernels;     /* Kernels of the GPU. */
    const struct cst_kernels *processor; /* Kernels of the processor, for sums that it makes. */
    CUdevice device;                     /* Number of the device in this process. */
    CUcontext context;                   /* Primary context of the device. NULL: not retained. */
    char uuid[CST_CUDA_UUID_BYTES];      /* Name of the GPU in messages. */
    char name[128];                      /* Product name, such as "NVIDIA H200". */
    char isa[16];                        /* Architecture, such as "sm_90". */
    uint64_t bytes;                      /* Size of the GPU's memory in bytes. */
    uint64_t granularity;                /* Allocations are multiples of this many bytes. */
    /* n_threads streams. An entry is NULL until it is created. */
    CUstream *streams;
    struct cste_gpu_stage *stages; /* n_team buffers. */
    /* n_threads buffers for fp32 values that a thread casts. 0: not allocated yet. */
    CUdeviceptr *values;
    unsigned n_threads, n_team; /* As in struct cste_device_spec. */
};

/* Open the GPU that spec->id names. CST_EUNSUPPORTED: no driver, no GPU, the driver is too old, or
 * the GPU lacks a required feature; CST_ENOTFOUND: no such GPU; CST_EINVAL: no GPU was named;
 * CST_ENOMEM; CST_EGPU. */
int cste_gpu_open(struct cste_gpu **out, const struct cste_device_spec *spec, struct cst_err *err);

/* Close the GPU and free @gpu. No call may be under way. */
void cste_gpu_close(struct cste_gpu *gpu);

/* Make the context of @gpu current on the calling thread. Required before any driver call on a
 * thread. */
int cste_gpu_enter(struct cste_gpu *gpu, struct cst_err *err);

/* Wait for all work on the stream of thread @thread. @rc and @err are the result of enqueuing the
 * work. If the wait succeeds, nothing is under way any more and @rc is returned with @err
 * unchanged. CST_EGPU: waiting failed, for whatever reason. The GPU may still access memory that
 * the owner would take back. */
int cste_gpu_settle(struct cste_gpu *gpu, unsigned thread, int rc, struct cst_err *err);

/* Returns the properties of exportable memory of this GPU. */
CUmemAllocationProp cste_gpu_memory_prop(const struct cste_gpu *gpu);

#endif
