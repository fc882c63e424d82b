/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills of memory. */
#include "tests/lib/fakecuda/address.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/stream.h"

#include <stdlib.h>
#include <string.h>

enum side {
    ANY,    /* the address determines the kind of memory */
    HOST,   /* host memory */
    DEVICE, /* device memory, or pinned memory by its device address */
};

struct copy {
    struct cst_fake_op op;
    uintptr_t dst, src;
    size_t bytes;
    void *staged; /* copy of a pageable source, made at the call; NULL: none */
};

struct fill {
    struct cst_fake_op op;
    uintptr_t dst;
    uint32_t value;
    size_t n;     /* number of elements */
    size_t bytes; /* bytes of an element: 1 or 4 */
};

/* -- copies --------------------------------------------------------------------------------- */

static CUresult run_copy(struct cst_fake_op *op)
{
    struct copy *copy = (struct copy *)op;

    memmove((void *)copy->dst, copy->staged != NULL ? copy->staged : (const void *)copy->src,
            copy->bytes);
    return CUDA_SUCCESS;
}

static void finish_copy(struct cst_fake_op *op)
{
    free(((struct copy *)op)->staged);
}

/* Check what can be checked at the call. As on a GPU, an illegal address is found when the copy
 * runs. */
static CUresult check_side(const char *name, enum side side, enum cst_fake_verdict verdict)
{
    if (verdict == CST_FAKE_STRADDLES) {
        cst_fake_misuse("%s: a copy that leaves a registration", name);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (side == HOST && verdict == CST_FAKE_IS_DEVICE) {
        cst_fake_misuse("%s: a device address for the host's side", name);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (side == DEVICE && verdict == CST_FAKE_IS_PAGEABLE) {
        cst_fake_misuse("%s: a host address for the device's side", name);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (verdict == CST_FAKE_IS_PAGEABLE && !cst_fake_settings()->pageable) {
        cst_fake_misuse("%s: host memory that is not pinned", name);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* A pageable source is read, and a pageable destination is written, before the call returns. */
static CUresult submit_copy(struct cst_fake_stream *stream, struct copy *copy, bool staged,
                            bool await)
{
    CUcontext context = stream->context;
    struct cst_fake_point point;
    CUresult result;

    if (staged) {
        copy->staged = malloc(copy->bytes);
        if (copy->staged == NULL) {
            cst_fake_op_drop(&copy->op);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memcpy(copy->staged, (const void *)copy->src, copy->bytes);
        copy->op.touches[1].bytes = 0;
    }
    result = cst_fake_stream_submit(stream, &copy->op);
    if (result == CUDA_SUCCESS && await) {
        point = cst_fake_stream_point(stream);
        point.progress->refs++;
        result = cst_fake_point_await(point, context);
        cst_fake_progress_put(point.progress);
    }
    return result;
}

static CUresult start_copy(const char *name, uintptr_t dst, enum side dst_side, uintptr_t src,
                           enum side src_side, size_t bytes, CUstream handle)
{
    enum cst_fake_verdict to, from;
    struct cst_fake_stream *stream;
    struct copy *copy;
    CUdevice device;
    CUresult result = cst_fake_stream_find(handle, &stream);

    if (result != CUDA_SUCCESS || bytes == 0) {
        return result;
    }
    if (stream->context != cst_fake_context_current()) {
        cst_fake_misuse("%s: the stream of another context", name);
        return CUDA_ERROR_INVALID_VALUE; /* the driver decides in the current context */
    }
    device = stream->context->device;
    to = cst_fake_classify(dst, bytes, device, true);
    from = cst_fake_classify(src, bytes, device, false);
    result = check_side(name, dst_side, to);
    if (result == CUDA_SUCCESS) {
        result = check_side(name, src_side, from);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    copy = (struct copy *)cst_fake_op_new(sizeof *copy, "copy", run_copy);
    if (copy == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    copy->op.finish = finish_copy;
    copy->op.touches[0] = (struct cst_fake_touch){.addr = dst, .bytes = bytes, .write = true};
    copy->op.touches[1] = (struct cst_fake_touch){.addr = src, .bytes = bytes};
    copy->dst = dst;
    copy->src = src;
    copy->bytes = bytes;
    return submit_copy(stream, copy, from == CST_FAKE_IS_PAGEABLE, to == CST_FAKE_IS_PAGEABLE);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    return result != CUDA_SUCCESS
               ? result
               : cst_fake_end(start_copy(__func__, dst, ANY, src, ANY, ByteCount, hStream));
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                           CUstream hStream)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    return result != CUDA_SUCCESS
               ? result
               : cst_fake_end(start_copy(__func__, dstDevice, DEVICE, (uintptr_t)srcHost, HOST,
                                         ByteCount, hStream));
}

CUresult cuMemcpyDtoHAsync(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    return result != CUDA_SUCCESS ? result
                                  : cst_fake_end(start_copy(__func__, (uintptr_t)dstHost, HOST,
                                                            srcDevice, DEVICE, ByteCount, hStream));
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                           CUstream hStream)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    return result != CUDA_SUCCESS ? result
                                  : cst_fake_end(start_copy(__func__, dstDevice, DEVICE, srcDevice,
                                                            DEVICE, ByteCount, hStream));
}

/* -- fills ---------------------------------------------------------------------------------- */

static CUresult run_fill(struct cst_fake_op *op)
{
    struct fill *fill = (struct fill *)op;

    if (fill->bytes == 1) {
        memset((void *)fill->dst, (int)fill->value, fill->n);
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < fill->n; i++) {
        ((uint32_t *)fill->dst)[i] = fill->value;
    }
    return CUDA_SUCCESS;
}

static CUresult start_fill(const char *name, uintptr_t dst, uint32_t value, size_t n, size_t bytes,
                           CUstream handle)
{
    enum cst_fake_verdict verdict;
    struct cst_fake_stream *stream;
    struct fill *fill;
    CUresult result = cst_fake_stream_find(handle, &stream);

    if (result != CUDA_SUCCESS || n == 0) {
        return result;
    }
    if (dst % bytes != 0 || n > SIZE_MAX / bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    verdict = cst_fake_classify(dst, n * bytes, stream->context->device, true);
    result = check_side(name, DEVICE, verdict);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    fill = (struct fill *)cst_fake_op_new(sizeof *fill, "set", run_fill);
    if (fill == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fill->op.touches[0] = (struct cst_fake_touch){.addr = dst, .bytes = n * bytes, .write = true};
    fill->dst = dst;
    fill->value = value;
    fill->n = n;
    fill->bytes = bytes;
    return cst_fake_stream_submit(stream, &fill->op);
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    return result != CUDA_SUCCESS
               ? result
               : cst_fake_end(start_fill(__func__, dstDevice, uc, N, 1, hStream));
}

CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    return result != CUDA_SUCCESS
               ? result
               : cst_fake_end(start_fill(__func__, dstDevice, ui, N, 4, hStream));
}
