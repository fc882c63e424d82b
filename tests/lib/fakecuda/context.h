/* SPDX-License-Identifier: Apache-2.0 */
/* Primary contexts, one per device, and the context that is current in a thread.
 *
 *   dead --retain--> alive --last release--> dead
 *   alive --sticky error--> broken, until the process ends
 */
#ifndef CST_FAKE_CONTEXT_H
#define CST_FAKE_CONTEXT_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

struct cst_fake_stream;

/* The primary context of a device. */
struct CUctx_st {
    CUdevice device;                /* device of the context */
    unsigned n_retained;            /* number of retains; 0: the context is dead */
    CUresult broken;                /* the sticky error; CUDA_SUCCESS: none */
    bool dying;                     /* the context is ending: its streams drop their operations */
    struct cst_fake_stream *legacy; /* the default stream; NULL: not used yet */
};

/* The context of the thread; NULL: none. */
CUcontext cst_fake_context_current(void);

/* CUDA_SUCCESS, or the reason why the thread's context cannot be used. Called with the lock. */
CUresult cst_fake_context_usable(void);

/* Make @context (NULL: none) unusable with the sticky error @why. Called with the lock. */
void cst_fake_context_break(CUcontext context, CUresult why);

/* Number of contexts that are alive. Called with the lock. */
size_t cst_fake_n_contexts(void);

#endif
