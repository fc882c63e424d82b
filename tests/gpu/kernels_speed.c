/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the memory bandwidth of the kernels, compared with a copy within the GPU in the same
 * run. */
#include "tests/gpu/kernels_device.h"

#include <stdlib.h>

enum {
    REPEATS = 7,     /* number of repetitions; the median counts */
    LAUNCHES = 10,   /* launches in a repetition */
    MAX_SOURCES = 8, /* sources of a reduction */
};

static const uint64_t N = 1u << 26;    /* elements; rows are larger than any cache */
static const uint64_t N_SUMS = 244141; /* number of tiles of 1e9 parameters */

/* Rows for all measurements. */
struct speed {
    struct kernels_device *d;
    FILE *json;
    CUevent begin, end;
    CUdeviceptr grad, master, exp_avg, exp_avg_sq, weight;
    CUdeviceptr out[3]; /* rows that updates write: master, exp_avg, exp_avg_sq */
    CUdeviceptr source[MAX_SOURCES];
    CUdeviceptr tiles, spans, sums, norm;
    struct cst_update_scalars scalars;
    double copy; /* rate of the copy in GB/s, read plus written */
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Median milliseconds of one call of @once. */
static double measure(struct speed *s, int (*once)(struct speed *s, uint32_t arg, struct cst_err *),
                      uint32_t arg)
{
    struct cst_cuda_driver *cu = &s->d->driver;
    double ms[REPEATS];
    struct cst_err err = {0};

    for (int r = -1; r < REPEATS; r++) { /* the first run warms up */
        float elapsed;

        kernels_device_call(s->d, cu->cuEventRecord(s->begin, s->d->stream), "event");
        for (int l = 0; l < LAUNCHES; l++) {
            kernels_device_need(once(s, arg, &err), &err);
        }
        kernels_device_call(s->d, cu->cuEventRecord(s->end, s->d->stream), "event");
        kernels_device_call(s->d, cu->cuEventSynchronize(s->end), "what is measured");
        kernels_device_call(s->d, cu->cuEventElapsedTime(&elapsed, s->begin, s->end), "event");
        if (r >= 0) {
            ms[r] = (double)elapsed / LAUNCHES;
        }
    }
    qsort(ms, REPEATS, sizeof ms[0], by_size);
    return ms[REPEATS / 2];
}

static int copy_once(struct speed *s, uint32_t arg, struct cst_err *err)
{
    struct cst_cuda_driver *cu = &s->d->driver;

    (void)arg;
    return cst_cuda_check(cu, cu->cuMemcpyDtoDAsync(s->master, s->exp_avg, 4 * N, s->d->stream),
                          err, "copy");
}

static void *pointer(CUdeviceptr at)
{
    return (void *)(uintptr_t)at;
}

/* The moments row at @at. Exponents are after the codes. */
static struct cst_update_moment moment(CUdeviceptr at)
{
    return (struct cst_update_moment){.values = pointer(at), .exponents = pointer(at + N)};
}

/* Run an AdamW update with moments of the format @moments. */
static int update_once(struct speed *s, uint32_t moments, struct cst_err *err)
{
    const struct cst_cuda_update update = {
        .rows = {.grad_bf16 = pointer(s->grad),
                 .master_in = pointer(s->master),
                 .moments_in = {moment(s->exp_avg), moment(s->exp_avg_sq)},
                 .master = pointer(s->out[0]),
                 .moments = {moment(s->out[1]), moment(s->out[2])},
                 .weight = pointer(s->weight)},
        .seed = 1,
        .t = 100,
        .optimizer = CST_OPTIMIZER_ADAMW};

    return cst_cuda_update(&s->d->kernels, s->d->stream, N / CST_CUDA_TILE_ELEMS, s->tiles,
                           s->spans, (enum cst_moments)moments, CST_ROUNDING_STOCHASTIC, &update,
                           err);
}

static int reduce_once(struct speed *s, uint32_t arg, struct cst_err *err)
{
    struct cst_cuda_sources sources = {.n = arg};

    for (uint32_t r = 0; r < arg; r++) {
        sources.v[r] = (const uint16_t *)(uintptr_t)s->source[r];
    }
    return cst_cuda_reduce(&s->d->kernels, s->d->stream, N / CST_CUDA_TILE_ELEMS, s->tiles,
                           &sources, s->weight, s->sums, err);
}

static int norm_once(struct speed *s, uint32_t arg, struct cst_err *err)
{
    (void)arg;
    return cst_cuda_norm(&s->d->kernels, s->d->stream, N_SUMS, s->sums, s->norm, err);
}

static int cast_once(struct speed *s, uint32_t arg, struct cst_err *err)
{
    (void)arg;
    return cst_cuda_cast(&s->d->kernels, s->d->stream, N, s->master, s->weight, err);
}

static int upcast_once(struct speed *s, uint32_t arg, struct cst_err *err)
{
    (void)arg;
    return cst_cuda_upcast(&s->d->kernels, s->d->stream, N, s->weight, s->master, err);
}

static CUdeviceptr make(struct speed *s, size_t bytes)
{
    CUdeviceptr at;

    kernels_device_call(s->d, s->d->driver.cuMemAlloc(&at, bytes), "memory for measurements");
    kernels_device_call(
        s->d, s->d->driver.cuMemsetD32Async(at, 0x3c003c00u, bytes / 4, s->d->stream), "fill");
    return at;
}

static void make_tiles(struct speed *s)
{
    uint64_t n = N / CST_CUDA_TILE_ELEMS;
    struct cst_cuda_tile *tiles = calloc(n, sizeof *tiles);

    if (tiles == NULL) {
        perror("check_kernels");
        exit(EXIT_FAILURE);
    }
    for (uint64_t t = 0; t < n; t++) {
        tiles[t] = (struct cst_cuda_tile){
            .start = t * CST_CUDA_TILE_ELEMS, .n_elems = CST_CUDA_TILE_ELEMS, .number = t};
    }
    s->tiles = make(s, n * sizeof *tiles);
    s->spans = make(s, sizeof s->scalars);
    s->d->cases.put(&s->d->cases, pointer(s->tiles), tiles, n * sizeof *tiles);
    s->d->cases.put(&s->d->cases, pointer(s->spans), &s->scalars, sizeof s->scalars);
    free(tiles);
}

/* Print a row of the table. @bytes: read and written by one call. */
static void row(struct speed *s, const char *name, double ms, double bytes)
{
    double rate = bytes / ms / 1e6;

    if (s->copy == 0.0) {
        s->copy = rate;
    }
    (void)printf("%-22s %9.3f ms %9.0f GB/s %6.1f %% of a copy\n", name, ms, rate,
                 100.0 * rate / s->copy);
    if (s->json != NULL) {
        (void)fprintf(s->json, ", \"%s\": {\"ms\": %.4f, \"gb_per_s\": %.1f, \"of_copy\": %.4f}",
                      name, ms, rate, rate / s->copy);
    }
}

static void measure_all(struct speed *s)
{
    const double n = (double)N;

    row(s, "copy on the card", measure(s, copy_once, 0), 8 * n);
    row(s, "adamw", measure(s, update_once, CST_MOMENTS_FP32), 28 * n);
    row(s, "adamw bf16", measure(s, update_once, CST_MOMENTS_BF16), 20 * n);
    row(s, "adamw mx8", measure(s, update_once, CST_MOMENTS_MX8), 16.125 * n);
    for (uint32_t n_src = 1; n_src <= MAX_SOURCES; n_src *= 2) {
        char name[32];

        (void)snprintf(name, sizeof name, "reduce of %u", n_src);
        row(s, name, measure(s, reduce_once, n_src), 2 * n * (n_src + 1));
    }
    row(s, "cast", measure(s, cast_once, 0), 6 * n);
    row(s, "upcast", measure(s, upcast_once, 0), 6 * n);
    row(s, "norm of 1e9 parameters", measure(s, norm_once, 0), 8.0 * (double)N_SUMS);
}

void kernels_speed(struct kernels_device *d, FILE *json)
{
    struct cst_cuda_driver *cu = &d->driver;
    struct speed s = {.d = d, .json = json};
    CUdeviceptr *rows[] = {&s.grad,   &s.master, &s.exp_avg, &s.exp_avg_sq, &s.out[0],
                           &s.out[1], &s.out[2], &s.weight,  &s.sums,       &s.norm};
    const size_t bytes[] = {2 * N, 4 * N, 4 * N, 4 * N, 4 * N, 4 * N, 4 * N, 2 * N, 8 * N_SUMS, 8};

    cst_update_prepare(&s.scalars, 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0f, 100);
    kernels_device_call(d, cu->cuEventCreate(&s.begin, CU_EVENT_DEFAULT), "event");
    kernels_device_call(d, cu->cuEventCreate(&s.end, CU_EVENT_DEFAULT), "event");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        *rows[i] = make(&s, bytes[i]);
    }
    for (int r = 0; r < MAX_SOURCES; r++) {
        s.source[r] = make(&s, 2 * N);
    }
    make_tiles(&s);
    measure_all(&s);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cu->cuMemFree(*rows[i]);
    }
    for (int r = 0; r < MAX_SOURCES; r++) {
        cu->cuMemFree(s.source[r]);
    }
    cu->cuMemFree(s.tiles);
    cu->cuMemFree(s.spans);
    cu->cuEventDestroy(s.begin);
    cu->cuEventDestroy(s.end);
}
