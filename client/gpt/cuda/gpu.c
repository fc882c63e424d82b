/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/cuda/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int find_device(const struct gpt_gpu *gpu, const char *name, CUdevice *out,
                       struct cst_err *err)
{
    int n = 0, wanted = 0;
    char end;
    int rc;

    /* The %c detects text after the number. */
    if (strcmp(name, "cuda") != 0 && sscanf(name, "cuda:%d%c", &wanted, &end) != 1) {
        return cst_cuda_find(&gpu->driver, name, out, err);
    }
    rc = cst_cuda_check(&gpu->driver, gpu->driver.cuDeviceGetCount(&n), err, "counting devices");
    if (rc != 0) {
        return rc;
    }
    if (wanted < 0 || wanted >= n) {
        return cst_err_set(err, CST_ENOTFOUND, "--device %s: there are %d GPUs, numbers 0 to %d",
                           name, n, n - 1);
    }
    return cst_cuda_check(&gpu->driver, gpu->driver.cuDeviceGet(out, wanted), err, "device %d",
                          wanted);
}

static int open_context(struct gpt_gpu *gpu, struct cst_err *err)
{
    const struct cst_cuda_driver *d = &gpu->driver;
    int rc = cst_cuda_check(d, d->cuDevicePrimaryCtxRetain(&gpu->context, gpu->number), err,
                            "primary context of device %d", gpu->number);

    if (rc != 0) {
        gpu->context = NULL;
        return rc;
    }
    rc = gpt_gpu_enter(gpu, err);
    if (rc == 0) {
        rc = cst_cuda_check(d,
                            d->cuStreamCreateWithPriority(&gpu->stream, CU_STREAM_NON_BLOCKING, 0),
                            err, "a stream");
    }
    return rc;
}

int gpt_gpu_open(struct gpt_gpu *gpu, const char *name, bool cublas, struct cst_err *err)
{
    const struct cst_cuda_driver *d = &gpu->driver;
    int rc;

    *gpu = (struct gpt_gpu){0};
    rc = cst_cuda_driver_open(&gpu->driver, err);
    if (rc != 0) {
        return rc;
    }
    rc = find_device(gpu, name, &gpu->number, err);
    if (rc == 0) {
        rc = cst_cuda_check(d, d->cuDeviceGetName(gpu->name, sizeof gpu->name, gpu->number), err,
                            "name of device %d", gpu->number);
    }
    if (rc == 0) {
        rc = open_context(gpu, err);
    }
    if (rc == 0) {
        rc = gpt_cuda_kernels_open(&gpu->kernels, d, gpu->stream, err);
    }
    if (rc == 0) {
        rc = gpt_cuda_attention_open(&gpu->attention, d, gpu->kernels.module, err);
    }
    if (rc == 0) {
        rc = cst_cuda_kernels_open(&gpu->states, d, err);
    }
    /* Without cuBLASLt the worker is slow but correct. no_cublas keeps the reason. */
    if (rc == 0 && cublas && gpt_cublas_open(&gpu->cublas, d, &gpu->no_cublas) != 0) {
        gpu->cublas = NULL;
    }
    if (rc != 0) {
        gpt_gpu_close(gpu);
    }
    return rc;
}

void gpt_gpu_close(struct gpt_gpu *gpu)
{
    const struct cst_cuda_driver *d = &gpu->driver;

    if (gpu->context != NULL) {
        (void)d->cuCtxSetCurrent(gpu->context);
        if (gpu->stream != NULL) {
            (void)d->cuStreamSynchronize(gpu->stream);
        }
        gpt_cublas_close(gpu->cublas);
        if (gpu->states.module != NULL) {
            cst_cuda_kernels_close(&gpu->states);
        }
        gpt_cuda_kernels_close(&gpu->kernels);
        if (gpu->stream != NULL) {
            (void)d->cuStreamDestroy(gpu->stream);
        }
        (void)d->cuDevicePrimaryCtxRelease(gpu->number);
    }
    cst_cuda_driver_close(&gpu->driver);
    *gpu = (struct gpt_gpu){0};
}

int gpt_gpu_enter(const struct gpt_gpu *gpu, struct cst_err *err)
{
    return cst_cuda_check(&gpu->driver, gpu->driver.cuCtxSetCurrent(gpu->context), err,
                          "context of device %d", gpu->number);
}

/* -- memory ----------------------------------------------------------------------------------- */

int gpt_gpu_alloc(const struct gpt_gpu *gpu, size_t bytes, const char *what, CUdeviceptr *out,
                  struct cst_err *err)
{
    size_t left = 0, all = 0;

    (void)gpu->driver.cuMemGetInfo(&left, &all);
    return cst_cuda_check(&gpu->driver, gpu->driver.cuMemAlloc(out, bytes), err,
                          "%zu bytes of GPU memory for %s, of %zu free", bytes, what, left);
}

int gpt_gpu_alloc_host(const struct gpt_gpu *gpu, size_t bytes, void **out, struct cst_err *err)
{
    return cst_cuda_check(&gpu->driver, gpu->driver.cuMemHostAlloc(out, bytes, 0), err,
                          "%zu bytes of pinned memory", bytes);
}

void gpt_gpu_free(const struct gpt_gpu *gpu, CUdeviceptr p)
{
    if (p != 0) {
        (void)gpu->driver.cuMemFree(p);
    }
}

void gpt_gpu_free_host(const struct gpt_gpu *gpu, void *p)
{
    if (p != NULL) {
        (void)gpu->driver.cuMemFreeHost(p);
    }
}

int gpt_gpu_upload(const struct gpt_gpu *gpu, CUdeviceptr to, const void *from, size_t bytes,
                   struct cst_err *err)
{
    return cst_cuda_check(&gpu->driver, gpu->driver.cuMemcpyHtoDAsync(to, from, bytes, gpu->stream),
                          err, "copy of %zu bytes to the GPU", bytes);
}

int gpt_gpu_download(const struct gpt_gpu *gpu, void *to, CUdeviceptr from, size_t bytes,
                     struct cst_err *err)
{
    return cst_cuda_check(&gpu->driver, gpu->driver.cuMemcpyDtoHAsync(to, from, bytes, gpu->stream),
                          err, "copy of %zu bytes from the GPU", bytes);
}

int gpt_gpu_copy(const struct gpt_gpu *gpu, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                 struct cst_err *err)
{
    return cst_cuda_check(&gpu->driver, gpu->driver.cuMemcpyDtoDAsync(to, from, bytes, gpu->stream),
                          err, "copying %zu bytes on the GPU", bytes);
}

int gpt_gpu_clear(const struct gpt_gpu *gpu, CUdeviceptr at, size_t bytes, struct cst_err *err)
{
    return cst_cuda_check(&gpu->driver, gpu->driver.cuMemsetD8Async(at, 0, bytes, gpu->stream), err,
                          "clearing %zu bytes of the GPU", bytes);
}

int gpt_gpu_wait(const struct gpt_gpu *gpu, struct cst_err *err)
{
    return cst_cuda_check(&gpu->driver, gpu->driver.cuStreamSynchronize(gpu->stream), err,
                          "the GPU's work");
}

/* -- products --------------------------------------------------------------------------------- */

static void *address(CUdeviceptr p)
{
    return (void *)(uintptr_t)p;
}

/* cuBLASLt requires rows whose length is a multiple of 16 bytes. */
static bool fits_cublas(const struct gpt_product *p)
{
    const size_t a = p->turn_a ? p->m : p->k, b = p->turn_b ? p->k : p->n;

    return a % 8 == 0 && b % 8 == 0 && p->n % 8 == 0;
}

/* Enqueue a product that has at most a bias as epilogue. */
static int plain_product(const struct gpt_gpu *gpu, const struct gpt_product *p,
                         struct cst_err *err)
{
    const struct gpt_cuda_product plain = {
        .a = address(p->a),
        .b = address(p->b),
        .bias = p->epilogue == GPT_EPILOGUE_BIAS ? address(p->bias) : NULL,
        .c = address(p->c),
        .m = (uint32_t)p->m,
        .n = (uint32_t)p->n,
        .k = (uint32_t)p->k,
        .turn_a = p->turn_a,
        .turn_b = p->turn_b,
        .fp32 = p->fp32,
        .accumulate = p->accumulate,
        .scale = p->scale == 0.0f ? 1.0f : p->scale,
    };

    int rc = CST_EUNSUPPORTED;

    if (gpu->cublas != NULL && fits_cublas(p)) {
        rc = gpt_cublas_run(gpu->cublas, gpu->stream, p, err);
    }
    return rc == CST_EUNSUPPORTED ? gpt_cuda_matmul(&gpu->kernels, &plain, err) : rc;
}

/* Enqueue a product and then its GELU epilogue as a kernel. */
static int split_product(const struct gpt_gpu *gpu, const struct gpt_product *p,
                         struct cst_err *err)
{
    struct gpt_product first = *p;
    int rc;

    if (p->epilogue == GPT_EPILOGUE_BIAS_GELU) {
        first.epilogue = GPT_EPILOGUE_BIAS;
        first.c = p->pre;
        rc = plain_product(gpu, &first, err);
        return rc != 0 ? rc : gpt_cuda_gelu(&gpu->kernels, p->m * p->n, p->pre, p->c, err);
    }
    first.epilogue = GPT_EPILOGUE_NONE;
    rc = plain_product(gpu, &first, err);
    return rc != 0 ? rc : gpt_cuda_gelu_backward(&gpu->kernels, p->m * p->n, p->pre, p->c, err);
}

int gpt_gpu_product(const struct gpt_gpu *gpu, const struct gpt_product *p, struct cst_err *err)
{
    int rc = CST_EUNSUPPORTED;

    if (p->epilogue == GPT_EPILOGUE_NONE || p->epilogue == GPT_EPILOGUE_BIAS) {
        return plain_product(gpu, p, err);
    }
    if (gpu->cublas != NULL) {
        rc = gpt_cublas_run(gpu->cublas, gpu->stream, p, err);
    }
    return rc == CST_EUNSUPPORTED ? split_product(gpu, p, err) : rc;
}
