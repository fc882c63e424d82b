/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/train_cuda.h"

#include "cistern/cuda.h"
#include "cistern/device.h"
#include "kernels/cuda/driver.h"

#include <stdlib.h>

struct train_stream {
    struct cst_cuda_driver driver; /* the program's own instance of the driver */
    struct cst_cuda *cuda;         /* the instance of libcistern-cuda */
    CUdevice device;               /* device of the job */
    CUcontext context;             /* primary context of the device */
    CUstream stream;               /* the program's stream */
};

static int open_stream(struct train_stream *s, struct cst_job *job, struct cst_err *err)
{
    int rc = cst_cuda_driver_open(&s->driver, err);

    if (rc == CST_OK) {
        rc = cst_cuda_find(&s->driver, cst_job_device(job), &s->device, err);
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(&s->driver, s->driver.cuDevicePrimaryCtxRetain(&s->context, s->device),
                            err, "context");
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(&s->driver, s->driver.cuCtxSetCurrent(s->context), err, "context");
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(
            &s->driver, s->driver.cuStreamCreateWithPriority(&s->stream, CU_STREAM_NON_BLOCKING, 0),
            err, "stream");
    }
    return rc;
}

static int open_cuda(struct train_stream **out, struct cst_job *job, struct cst_err *err)
{
    struct train_stream *s = calloc(1, sizeof *s);
    int rc = s != NULL ? CST_OK : cst_err_set(err, CST_ENOMEM, "no memory for a stream");

    if (rc == CST_OK) {
        rc = open_stream(s, job, err);
    }
    if (rc == CST_OK) {
        rc = cst_cuda_open(&s->cuda, job, s->stream, err);
    }
    if (rc != CST_OK) {
        free(s); /* the process ends after this */
        return rc;
    }
    *out = s;
    return CST_OK;
}

static int run_on_stream(struct train_stream *s, void (*fn)(void *arg), void *arg,
                         struct cst_err *err)
{
    return cst_cuda_check(&s->driver, s->driver.cuLaunchHostFunc(s->stream, fn, arg), err,
                          "enqueueing work");
}

static int check_stream(struct train_stream *s, struct cst_err *err)
{
    CUresult result = s->driver.cuStreamQuery(s->stream);

    return result == CUDA_ERROR_NOT_READY ? CST_OK
                                          : cst_cuda_check(&s->driver, result, err, "the stream");
}

static void close_cuda(struct train_stream *s)
{
    cst_cuda_close(s->cuda);
    (void)s->driver.cuCtxSetCurrent(s->context);
    (void)s->driver.cuStreamDestroy(s->stream);
    (void)s->driver.cuDevicePrimaryCtxRelease(s->device);
    free(s);
}

const struct train_stream_kind train_cuda = {
    .open = open_cuda, .run = run_on_stream, .check = check_stream, .close = close_cuda};
