/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakecuda/context.h"
#include "tests/lib/fakecuda/address.h"
#include "tests/lib/fakecuda/device.h"
#include "tests/lib/fakecuda/event.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/ledger.h"
#include "tests/lib/fakecuda/module.h"
#include "tests/lib/fakecuda/stream.h"

#include <stdio.h>

static struct CUctx_st contexts[CST_FAKE_MAX_DEVICES];
static _Thread_local CUcontext current;

CUcontext cst_fake_context_current(void)
{
    return current;
}

CUresult cst_fake_context_usable(void)
{
    if (current == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (current->broken != CUDA_SUCCESS) {
        return current->broken;
    }
    return current->n_retained > 0 ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void cst_fake_context_break(CUcontext context, CUresult why)
{
    if (context != NULL && context->broken == CUDA_SUCCESS) {
        context->broken = why;
        fprintf(stderr, "fakecuda: the context of device %d is unusable from now on: error %d\n",
                context->device, (int)why);
    }
    cst_fake_changed();
}

size_t cst_fake_n_contexts(void)
{
    size_t n = 0;

    for (int i = 0; i < CST_FAKE_MAX_DEVICES; i++) {
        n += contexts[i].n_retained > 0;
    }
    return n;
}

static bool is_context(CUcontext ctx)
{
    for (int i = 0; i < cst_fake_n_devices(); i++) {
        if (ctx == &contexts[i]) {
            return true;
        }
    }
    return false;
}

/* -- primary contexts ----------------------------------------------------------------------- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_INIT);
    CUcontext ctx;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pctx == NULL) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (!cst_fake_device_is(dev)) {
        return cst_fake_end(CUDA_ERROR_INVALID_DEVICE);
    }
    ctx = &contexts[dev];
    if (ctx->broken != CUDA_SUCCESS) {
        return cst_fake_end(ctx->broken);
    }
    ctx->device = dev;
    ctx->n_retained++;
    *pctx = ctx;
    return cst_fake_end(CUDA_SUCCESS);
}

/* Free everything that belongs to the context. */
static void destroy(CUcontext ctx)
{
    cst_fake_streams_end(ctx);
    cst_fake_events_end(ctx);
    cst_fake_modules_end(ctx);
    cst_fake_range_sweep(CST_FAKE_ALLOCATED, ctx->device);
    cst_fake_range_sweep(CST_FAKE_PINNED, ctx->device);
    cst_fake_range_sweep(CST_FAKE_REGISTERED, ctx->device);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_INIT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!cst_fake_device_is(dev)) {
        return cst_fake_end(CUDA_ERROR_INVALID_DEVICE);
    }
    if (contexts[dev].n_retained == 0) {
        cst_fake_misuse("cuDevicePrimaryCtxRelease of a context that is not retained");
        return cst_fake_end(CUDA_ERROR_INVALID_CONTEXT);
    }
    if (contexts[dev].n_retained == 1) {
        destroy(&contexts[dev]);
    }
    contexts[dev].n_retained--;
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_INIT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!cst_fake_device_is(dev)) {
        return cst_fake_end(CUDA_ERROR_INVALID_DEVICE);
    }
    return cst_fake_end((flags & ~(unsigned)CU_CTX_FLAGS_MASK) == 0 ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_INVALID_VALUE);
}

/* -- the current context -------------------------------------------------------------------- */

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_INIT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (ctx != NULL && (!is_context(ctx) || ctx->n_retained == 0)) {
        return cst_fake_end(CUDA_ERROR_INVALID_CONTEXT);
    }
    current = ctx;
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_INIT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pctx == NULL) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    *pctx = current;
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (device == NULL) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    *device = current->device;
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuCtxSynchronize(void)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    return cst_fake_end(cst_fake_streams_drain(current));
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (leastPriority != NULL) {
        *leastPriority = CST_FAKE_LEAST_PRIORITY;
    }
    if (greatestPriority != NULL) {
        *greatestPriority = CST_FAKE_GREATEST_PRIORITY;
    }
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuMemGetInfo(size_t *free, size_t *total)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    size_t bytes;
    struct cst_fake_use use;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    bytes = cst_fake_device_bytes(current->device);
    if (free == NULL || total == NULL) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (cst_fake_ledger_use(cst_fake_settings()->state_dir,
                            cst_fake_device_physical(current->device), &use) != 0) {
        return cst_fake_end(CUDA_ERROR_OPERATING_SYSTEM);
    }
    *free = use.bytes < bytes ? bytes - use.bytes : 0;
    *total = bytes;
    return cst_fake_end(CUDA_SUCCESS);
}
