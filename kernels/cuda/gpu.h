/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU of an engine: the driver, its context, and the threads of the engine. What a thread has
 * under way is in flight.h, operations on memory are in memory.h, sums in reduction.h, updates in
 * update.h. */
#ifndef CST_CUDA_GPU_H
#define CST_CUDA_GPU_H

#include "kernels/cuda/kernels.h"
#include "kernels/engine/device.h"

#include <stdatomic.h>

struct cste_gpu_thread;

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
    struct cste_gpu_thread *threads;     /* Owned array of n_threads threads (flight.h). */
    unsigned n_threads, n_team;          /* As in struct cste_device_spec. */
    /* The driver has refused to register host memory. It is not known of every row whether it is
     * registered; sums therefore reach all rows through pinned buffers from then on. */
    atomic_bool has_unregistered;
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

/* Returns the properties of exportable memory of this GPU. */
CUmemAllocationProp cste_gpu_memory_prop(const struct cste_gpu *gpu);

#endif
