/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpt/cuda_cases.h"

#include "client/gpt/rng.h"
#include "kernels/math/cast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void cuda_case_fail(struct cuda_case *c, const char *words)
{
    if (c->ok) {
        c->ok = false;
        (void)snprintf(c->why, sizeof c->why, "%s", words);
    }
}

bool cuda_case_near(struct cuda_case *c, const char *what, const float *got, const float *want,
                    size_t n, double limit)
{
    double most = 1e-30, off = 0;
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - (double)want[i]);

        most = fabs((double)want[i]) > most ? fabs((double)want[i]) : most;
        if (!isnan(off) && !(d <= off)) { /* a difference that is NaN stays */
            off = d;
            at = i;
        }
    }
    c->n_compared++;
    if (!(off <= limit * most) && c->ok) {
        c->ok = false;
        (void)snprintf(
            c->why, sizeof c->why,
            "%s: element %zu of %zu is %.9g, not %.9g: off by %.2e of %.3g, allowed %.2e", what, at,
            n, (double)got[at], (double)want[at], off, most, limit * most);
    }
    return off <= limit * most;
}

/* -- arrays on host and GPU ------------------------------------------------------------------- */

void *cuda_must(void *p)
{
    if (p == NULL) {
        abort();
    }
    return p;
}

float *cuda_numbers(size_t n, uint64_t seed, float deviation)
{
    float *x = cuda_must(malloc(n * sizeof *x));

    for (size_t i = 0; i < n; i++) {
        x[i] = deviation * gpt_rng_normal(seed, 1, i);
    }
    return x;
}

uint16_t *cuda_numbers16(size_t n, uint64_t seed, float deviation, float mean)
{
    uint16_t *x = cuda_must(malloc(n * sizeof *x));

    for (size_t i = 0; i < n; i++) {
        x[i] = cst_fp32_to_bf16(mean + deviation * gpt_rng_normal(seed, 2, i));
    }
    return x;
}

float *cuda_wide(const uint16_t *x, size_t n)
{
    float *y = cuda_must(malloc(n * sizeof *y));

    for (size_t i = 0; i < n; i++) {
        y[i] = cst_bf16_to_fp32(x[i]);
    }
    return y;
}

CUdeviceptr cuda_there(struct cuda_case *c, const void *from, size_t bytes)
{
    const struct gpt_gpu *gpu = c->gpu;
    struct cst_err err = {0};
    CUdeviceptr p = 0;
    int rc = gpt_gpu_alloc(gpu, bytes, "a test", &p, &err);

    if (rc == 0) {
        rc = from != NULL ? gpt_gpu_upload(gpu, p, from, bytes, &err)
                          : cst_cuda_check(&gpu->driver,
                                           gpu->driver.cuMemsetD8Async(p, 0xff, bytes, gpu->stream),
                                           &err, "fill");
    }
    if (rc == 0) {
        rc = gpt_gpu_wait(gpu, &err);
    }
    if (rc != 0) {
        cuda_case_fail(c, err.text);
    }
    return p;
}

float *cuda_back(struct cuda_case *c, CUdeviceptr p, size_t n)
{
    struct cst_err err = {0};
    float *x = cuda_must(malloc(n * sizeof *x));

    if (gpt_gpu_download(c->gpu, x, p, n * sizeof *x, &err) != 0 ||
        gpt_gpu_wait(c->gpu, &err) != 0) {
        cuda_case_fail(c, err.text);
    }
    gpt_gpu_free(c->gpu, p);
    return x;
}

float *cuda_back16(struct cuda_case *c, CUdeviceptr p, size_t n)
{
    struct cst_err err = {0};
    uint16_t *x = cuda_must(malloc(n * sizeof *x));
    float *y;

    if (gpt_gpu_download(c->gpu, x, p, n * sizeof *x, &err) != 0 ||
        gpt_gpu_wait(c->gpu, &err) != 0) {
        cuda_case_fail(c, err.text);
    }
    gpt_gpu_free(c->gpu, p);
    y = cuda_wide(x, n);
    free(x);
    return y;
}

void cuda_done(struct cuda_case *c, int rc, const struct cst_err *err)
{
    if (rc != 0) {
        cuda_case_fail(c, err->text);
    }
}

void cuda_expect(struct cuda_case *c, const char *what, CUdeviceptr p, const float *want, size_t n,
                 double limit)
{
    float *got = cuda_back(c, p, n);

    (void)cuda_case_near(c, what, got, want, n, limit);
    free(got);
}

void cuda_expect16(struct cuda_case *c, const char *what, CUdeviceptr p, const float *want,
                   size_t n, double limit)
{
    float *got = cuda_back16(c, p, n);

    (void)cuda_case_near(c, what, got, want, n, limit);
    free(got);
}

struct gpt_layers cuda_host_layers(size_t max_width, const struct gpt_attention_shape *shape)
{
    struct gpt_layers layers;

    if (gpt_layers_init(&layers, gpt_simd_get("plain"), false, 1, max_width, shape) != 0) {
        abort();
    }
    return layers;
}
