/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cst_cuda_available(struct cst_err *err)
{
    struct cst_cuda_driver driver;
    int rc = cst_cuda_driver_open(&driver, err);

    if (rc == CST_OK) {
        cst_cuda_driver_close(&driver);
    }
    return rc;
}

int cst_cuda_device(const struct cst_cuda *cuda)
{
    return cuda->device;
}

/* Find the job's GPU. This process sees only the GPUs in CUDA_VISIBLE_DEVICES, the daemon sees
 * all. */
static int find_device(struct cst_cuda *cuda, struct cst_err *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int rc = cst_cuda_find(&cuda->driver, cuda->uuid, &cuda->device, err);

    if (rc == CST_ENOTFOUND && visible != NULL) {
        (void)cst_err_prefix(err, "CUDA_VISIBLE_DEVICES is '%.64s'", visible);
    }
    return rc;
}

static int open_context(struct cst_cuda *cuda, struct cst_err *err)
{
    CUcontext context;
    int rc =
        cst_cuda_check(&cuda->driver, cuda->driver.cuDevicePrimaryCtxRetain(&context, cuda->device),
                       err, "context of %s", cuda->uuid);

    if (rc == CST_OK) {
        cuda->context = context;
        rc = cstc_cuda_enter(cuda, err);
    }
    return rc;
}

static int open_parts(struct cst_cuda *cuda, struct cst_job *job, struct cst_err *err)
{
    int rc = find_device(cuda, err);

    if (rc == CST_OK) {
        rc = open_context(cuda, err);
    }
    if (rc == CST_OK) {
        rc = cstc_marks_open(cuda, err);
    }
    if (rc == CST_OK) {
        cuda->calls = (struct cst_device_calls){
            .map = cstc_cuda_map,
            .unmap = cstc_cuda_unmap,
            .zero = cstc_cuda_zero,
            .fence = cstc_cuda_fence,
            .done = cstc_cuda_done,
            .map_host = cstc_cuda_map_host,
            .unmap_host = cstc_cuda_unmap_host,
            .copy = cstc_cuda_copy,
            .await = cstc_cuda_await,
            .copy_array = cstc_cuda_copy_array,
            .await_array = cstc_cuda_await_array,
            .fd = cuda->fd,
        };
        rc = cst_job_use_device(job, &cuda->calls, cuda, err);
    }
    return rc;
}

int cst_cuda_open(struct cst_cuda **out, struct cst_job *job, void *stream, struct cst_err *err)
{
    struct cst_cuda *cuda;
    int rc;

    if (strcmp(cst_job_device(job), "host") == 0) {
        return cst_err_set(err, CST_EUNSUPPORTED, "the job is on the host device: no GPU is used");
    }
    if (strncmp(cst_job_device(job), "paced:", 6) == 0) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "the job is on the simulated accelerator %s: no GPU is used",
                           cst_job_device(job));
    }
    cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a GPU");
    }
    cuda->pid = getpid();
    cuda->job = job;
    cuda->stream = stream;
    cuda->fd = cuda->wake = cuda->timer = -1;
    (void)snprintf(cuda->uuid, sizeof cuda->uuid, "%s", cst_job_device(job));
    rc = cst_cuda_driver_open(&cuda->driver, err);
    if (rc != CST_OK) {
        free(cuda);
        return rc;
    }
    rc = open_parts(cuda, job, err);
    if (rc != CST_OK) {
        cst_cuda_close(cuda);
        return rc;
    }
    *out = cuda;
    return CST_OK;
}

/* In a forked child no call of CUDA works, and the objects of the driver are left as they are. */
void cst_cuda_close(struct cst_cuda *cuda)
{
    if (cuda == NULL) {
        return;
    }
    if (cuda->pid == getpid() && cuda->context != NULL) {
        (void)cstc_cuda_enter(cuda, NULL);
        cstc_copies_close(cuda);
        cstc_marks_close(cuda);
        (void)cuda->driver.cuDevicePrimaryCtxRelease(cuda->device);
    }
    cst_cuda_driver_close(&cuda->driver);
    free(cuda);
}
