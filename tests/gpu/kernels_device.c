/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/kernels_device.h"

#include "kernels/math/cast.h"

#include <stdlib.h>

enum { AROUND = 256, CANARY = 0xa5 };

static const size_t ARENA_BYTES = 256u << 20;

extern const unsigned char cst_probe_fatbin[];

void kernels_device_need(int status, const struct cst_err *err)
{
    if (status != CST_OK) {
        (void)fprintf(stderr, "check_kernels: %s: %s\n", cst_status_name(status), err->text);
        exit(EXIT_FAILURE);
    }
}

void kernels_device_call(struct kernels_device *d, CUresult result, const char *what)
{
    struct cst_err err = {0};

    kernels_device_need(cst_cuda_check(&d->driver, result, &err, "%s", what), &err);
}

static struct kernels_device *of(struct cases_device *cases)
{
    return (struct kernels_device *)cases;
}

static void finish(struct kernels_device *d, int status, const struct cst_err *err)
{
    kernels_device_need(status, err);
    kernels_device_call(d, d->driver.cuStreamSynchronize(d->stream), "a kernel");
}

static CUdeviceptr address(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

/* ---- memory ---- */

static void *place(struct cases_device *cases, size_t bytes, size_t offset)
{
    struct kernels_device *d = of(cases);
    size_t at = (d->arena_used + AROUND + 255) / 256 * 256 + offset;

    if (d->n_placed == KERNELS_MAX_PLACED || at + bytes + AROUND > ARENA_BYTES) {
        (void)fprintf(stderr, "check_kernels: the rows of a case do not fit\n");
        exit(EXIT_FAILURE);
    }
    d->placed[d->n_placed++] = (struct kernels_placed){.at = d->arena + at, .bytes = bytes};
    d->arena_used = at + bytes + AROUND;
    return (void *)(uintptr_t)(d->arena + at);
}

static void put(struct cases_device *cases, void *to, const void *from, size_t bytes)
{
    struct kernels_device *d = of(cases);

    if (bytes > 0) {
        kernels_device_call(d, d->driver.cuMemcpyHtoDAsync(address(to), from, bytes, d->stream),
                            "copy to the GPU");
        kernels_device_call(d, d->driver.cuStreamSynchronize(d->stream), "copy to the GPU");
    }
}

static void get(struct cases_device *cases, void *to, const void *from, size_t bytes)
{
    struct kernels_device *d = of(cases);

    if (bytes > 0) {
        kernels_device_call(d, d->driver.cuMemcpyDtoHAsync(to, address(from), bytes, d->stream),
                            "copy from the GPU");
        kernels_device_call(d, d->driver.cuStreamSynchronize(d->stream), "copy from the GPU");
    }
}

/* Fill the used part of the arena with canaries again. */
static bool clear(struct cases_device *cases)
{
    struct kernels_device *d = of(cases);
    unsigned char *all = malloc(d->arena_used + 1);
    size_t at = 0;
    bool whole = true;

    if (all == NULL) {
        perror("check_kernels");
        exit(EXIT_FAILURE);
    }
    get(cases, all, (void *)(uintptr_t)d->arena, d->arena_used);
    for (unsigned i = 0; i <= d->n_placed; i++) {
        size_t end = i < d->n_placed ? d->placed[i].at - d->arena : d->arena_used;

        while (at < end) {
            whole = all[at++] == CANARY && whole;
        }
        at = i < d->n_placed ? end + d->placed[i].bytes : end;
    }
    free(all);
    kernels_device_call(
        d, d->driver.cuMemsetD8Async(d->arena, CANARY, d->arena_used + AROUND, d->stream), "fill");
    kernels_device_call(d, d->driver.cuStreamSynchronize(d->stream), "fill");
    d->n_placed = 0;
    d->arena_used = 0;
    return whole;
}

/* ---- kernels ---- */

static void update(struct cases_device *cases, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                   const struct cst_update_scalars *spans, enum cst_moments moments,
                   enum cst_rounding rounding, const struct cst_cuda_update *args)
{
    struct kernels_device *d = of(cases);
    struct cst_err err;

    finish(d,
           cst_cuda_update(&d->kernels, d->stream, n_tiles, address(tiles), address(spans), moments,
                           rounding, args, &err),
           &err);
}

static void direct(struct cases_device *cases, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                   const struct cst_update_scalars *spans, enum cst_moments moments,
                   const struct cst_cuda_update *args)
{
    struct kernels_device *d = of(cases);
    struct cst_err err;

    finish(d,
           cst_cuda_direct(&d->kernels, d->stream, n_tiles, address(tiles), address(spans), moments,
                           args, &err),
           &err);
}

static void muon_sums(struct cases_device *cases, uint64_t n, const struct cst_cuda_muon_norm *norm)
{
    struct kernels_device *d = of(cases);
    struct cst_err err;

    finish(d, cst_cuda_muon_sums(&d->kernels, d->stream, n, norm, &err), &err);
}

static void muon_scale(struct cases_device *cases, uint64_t n,
                       const struct cst_cuda_muon_norm *norm)
{
    struct kernels_device *d = of(cases);
    struct cst_err err;

    finish(d, cst_cuda_muon_scale(&d->kernels, d->stream, n, norm, &err), &err);
}

static void muon_product(struct cases_device *cases, uint64_t n,
                         const struct cst_cuda_product *product)
{
    struct kernels_device *d = of(cases);
    struct cst_err err;

    finish(d, cst_cuda_muon_product(&d->kernels, d->stream, n, product, &err), &err);
}

static void reduce(struct cases_device *cases, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                   const struct cst_cuda_sources *sources, uint16_t *dst, double *sums)
{
    struct kernels_device *d = of(cases);
    struct cst_err err;

    finish(d,
           cst_cuda_reduce(&d->kernels, d->stream, n_tiles, address(tiles), sources, address(dst),
                           address(sums), &err),
           &err);
}

static void sum(struct cases_device *cases, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                const struct cst_cuda_sources *sources, float *dst)
{
    struct kernels_device *d = of(cases);
    struct cst_err err;

    finish(
        d,
        cst_cuda_sum(&d->kernels, d->stream, n_tiles, address(tiles), sources, address(dst), &err),
        &err);
}

static void norm(struct cases_device *cases, uint64_t n, const double *sums, double *out)
{
    struct kernels_device *d = of(cases);
    struct cst_err err;

    finish(d, cst_cuda_norm(&d->kernels, d->stream, n, address(sums), address(out), &err), &err);
}

static void cast(struct cases_device *cases, uint64_t n, const float *src, uint16_t *dst)
{
    struct kernels_device *d = of(cases);
    struct cst_err err;

    finish(d, cst_cuda_cast(&d->kernels, d->stream, n, address(src), address(dst), &err), &err);
}

static void upcast(struct cases_device *cases, uint64_t n, const uint16_t *src, float *dst)
{
    struct kernels_device *d = of(cases);
    struct cst_err err;

    finish(d, cst_cuda_upcast(&d->kernels, d->stream, n, address(src), address(dst), &err), &err);
}

static void total(struct cases_device *cases, bool is_fp32, const struct cst_cuda_total *args)
{
    struct kernels_device *d = of(cases);
    struct cst_err err;

    finish(d,
           is_fp32 ? cst_cuda_total_fp32(&d->kernels, d->stream, args, &err)
                   : cst_cuda_total_bf16(&d->kernels, d->stream, args, &err),
           &err);
}

/* ---- the warp's matrices ---- */

enum { M = 16, N = 8, K = 16, WHOLE = 100 };

struct product {
    uint16_t a[M][K], a_trans[K][M], b_trans[N][K], b[K][N];
    float want[3][M][N];
};

/* Small integers make sums exact in any order. */
static void make_product(struct product *p)
{
    for (int k = 0; k < K; k++) {
        for (int m = 0; m < M; m++) {
            p->a[m][k] = p->a_trans[k][m] = cst_fp32_to_bf16((float)((m * 5 + k * 3) % 11 - 4));
        }
        for (int n = 0; n < N; n++) {
            p->b[k][n] = p->b_trans[n][k] = cst_fp32_to_bf16((float)((n * 7 + k) % 13 - 6));
        }
    }
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            float sum = 0.0f;
            float part = 0.0f;

            for (int k = 0; k < K; k++) {
                float product = cst_bf16_to_fp32(p->a[m][k]) * cst_bf16_to_fp32(p->b[k][n]);

                sum += product;
                part += m * K + k < WHOLE ? product : 0.0f;
            }
            p->want[0][m][n] = p->want[1][m][n] = sum;
            p->want[2][m][n] = part;
        }
    }
}

static CUdeviceptr place_copy(struct kernels_device *d, const void *from, size_t bytes)
{
    void *at = place(&d->cases, bytes, 0);

    put(&d->cases, at, from, bytes);
    return address(at);
}

void kernels_device_mma(struct kernels_device *d, struct cases_result *result)
{
    struct product p;
    float got[3][M][N] = {0};
    CUmodule module;
    CUfunction function;
    CUdeviceptr rows[5];
    uint32_t whole = WHOLE;

    make_product(&p);
    rows[0] = place_copy(d, p.a, sizeof p.a);
    rows[1] = place_copy(d, p.a_trans, sizeof p.a_trans);
    rows[2] = place_copy(d, p.b_trans, sizeof p.b_trans);
    rows[3] = place_copy(d, p.b, sizeof p.b);
    rows[4] = place_copy(d, got, sizeof got);
    kernels_device_call(d, d->driver.cuModuleLoadData(&module, cst_probe_fatbin), "probe's module");
    kernels_device_call(d, d->driver.cuModuleGetFunction(&function, module, "cst_probe_mma"),
                        "cst_probe_mma");
    kernels_device_call(d,
                        d->driver.cuLaunchKernel(
                            function, 1, 1, 1, 32, 1, 1, 0, d->stream,
                            (void *[]){&rows[0], &rows[1], &rows[2], &rows[3], &whole, &rows[4]},
                            NULL),
                        "cst_probe_mma");
    get(&d->cases, got, (void *)(uintptr_t)rows[4], sizeof got);
    d->driver.cuModuleUnload(module);
    *result = (struct cases_result){.n_elems = sizeof got / sizeof(float), .ok = true};
    for (int i = 0; i < 3 && result->ok; i++) {
        if (memcmp(got[i], p.want[i], sizeof got[i]) != 0) {
            result->ok = false;
            (void)snprintf(result->why, sizeof result->why, "mma: product %d differs", i);
        }
    }
    if (!clear(&d->cases)) {
        result->ok = false;
        (void)snprintf(result->why, sizeof result->why, "mma: memory around was written");
    }
}

/* ---- open and close ---- */

static int open_context(struct kernels_device *d, struct cst_err *err)
{
    struct cst_cuda_driver *cu = &d->driver;
    int status = cst_cuda_check(cu, cu->cuDeviceGet(&d->number, 0), err, "the first GPU");

    if (status == CST_OK) {
        status = cst_cuda_check(cu, cu->cuDeviceGetName(d->name, sizeof d->name, d->number), err,
                                "its name");
    }
    if (status == CST_OK) {
        status = cst_cuda_check(cu, cu->cuDevicePrimaryCtxRetain(&d->context, d->number), err,
                                "context of %s", d->name);
    }
    return status;
}

static int open_rest(struct kernels_device *d, struct cst_err *err)
{
    struct cst_cuda_driver *cu = &d->driver;
    int status = cst_cuda_check(cu, cu->cuCtxSetCurrent(d->context), err, "context");

    if (status == CST_OK) {
        status = cst_cuda_check(
            cu, cu->cuStreamCreateWithPriority(&d->stream, CU_STREAM_NON_BLOCKING, 0), err,
            "stream");
    }
    if (status == CST_OK) {
        status = cst_cuda_check(cu, cu->cuMemAlloc(&d->arena, ARENA_BYTES), err, "%zu MiB",
                                ARENA_BYTES >> 20);
    }
    if (status == CST_OK) {
        status = cst_cuda_kernels_open(&d->kernels, cu, err);
    }
    if (status == CST_OK) {
        d->arena_used = ARENA_BYTES - AROUND;
        (void)clear(&d->cases); /* fills all of the arena with canaries */
    }
    return status;
}

int kernels_device_open(struct kernels_device *d, struct cst_err *err)
{
    int status;

    *d = (struct kernels_device){.cases = {.place = place,
                                           .put = put,
                                           .get = get,
                                           .clear = clear,
                                           .update = update,
                                           .direct = direct,
                                           .muon_sums = muon_sums,
                                           .muon_scale = muon_scale,
                                           .muon_product = muon_product,
                                           .reduce = reduce,
                                           .sum = sum,
                                           .norm = norm,
                                           .cast = cast,
                                           .upcast = upcast,
                                           .total = total}};
    status = cst_cuda_driver_open(&d->driver, err);
    if (status != CST_OK) {
        return status;
    }
    status = open_context(d, err);
    if (status != CST_OK) {
        goto err_after_driver;
    }
    status = open_rest(d, err);
    if (status != CST_OK) {
        goto err_after_context;
    }
    return CST_OK;

err_after_context:
    d->driver.cuDevicePrimaryCtxRelease(d->number);
err_after_driver:
    cst_cuda_driver_close(&d->driver);
    return status;
}

void kernels_device_close(struct kernels_device *d)
{
    cst_cuda_kernels_close(&d->kernels);
    d->driver.cuMemFree(d->arena);
    d->driver.cuStreamDestroy(d->stream);
    d->driver.cuDevicePrimaryCtxRelease(d->number);
    cst_cuda_driver_close(&d->driver);
}
