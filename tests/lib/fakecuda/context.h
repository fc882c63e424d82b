/* SPDX-License-Identifier: Apache-2.0 */
/* Primary contexts, one per device, and which one is current in a thread.
 *
 *   dead --retain--> alive --last release--> dead     broken: a sticky error, until the process
 * ends
 */
#ifndef CST_FAKE_CONTEXT_H
#define CST_FAKE_CONTEXT_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

struct cst_fake_stream;

struct CUctx_st {
    CUdevice device;                /* whose */
    unsigned n_retained;            /* 0: dead */
    CUresult broken;                /* the sticky error, CUDA_SUCCESS: none */
    bool dying;                     /* its streams drop what they have */
    struct cst_fake_stream *legacy; /* the default stream, NULL: not used yet */
};

/* The thread's context, NULL: none. */
CUcontext cst_fake_context_current(void);

/* CUDA_SUCCESS, or why the thread's context cannot be used. With the lock. */
CUresult cst_fake_context_usable(void);

/* @context (NULL: none) cannot be used from now on, because of @why. With the lock. */
void cst_fake_context_break(CUcontext context, CUresult why);

/* Contexts that are alive. With the lock. */
size_t cst_fake_n_contexts(void);

#endif
