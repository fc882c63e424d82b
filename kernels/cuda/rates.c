/* SPDX-License-Identifier: Apache-2.0 */
/* cistern-engine-cuda --rates: copies between the memory of a node and a GPU, made as the engine
 * makes them, with registered memory and its lanes, streams and pieces. */
#include "kernels/rates.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/probe.h"
#include "kernels/self_benchmark.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

/* Size of the regions through which copies go repeatedly. */
#define REGION_BYTES ((uint64_t)256 << 20)
#define WINDOW_NS 60000000u /* Duration of a run in nanoseconds. */
/* Number of counted runs, after one that is not counted. */
#define N_RUNS 5
#define LATENCY_BUDGET_S 0.2
#define PAGE_BYTES 4096
#define MAX_LANES 64

/* Copies in one direction, made until the window closes. */
struct way {
    struct cste_addr dst, src; /* Regions. */
    uint64_t piece_bytes;
    atomic_ullong next;      /* Number of the piece that is copied next. */
    double rate[MAX_LANES];  /* Bytes per second of each lane in this run. */
    double runs[N_RUNS + 1]; /* Bytes per second of all lanes in each run. */
};

struct cuda_rates {
    struct cste_cpus cpus;
    struct cste_device device;
    struct cste_gpu *gpu;          /* Equals device.state. */
    struct cste_thread_pool lanes; /* n_lanes threads for each direction. */
    unsigned n_lanes;              /* Number of lanes in each direction. */
    int node;                      /* NUMA node of the host memory; -1: any. */
    struct cste_self_benchmark_memory host[2];
    struct cste_mem own[2]; /* Memory on the GPU. */
    /* Another GPU that this one reaches. ops is NULL if there is none. */
    struct cste_device other;
    /* Memory on the other GPU, as the other GPU sees it and as this one does. */
    struct cste_mem others, reached;
    struct way *ways[2]; /* Directions of the current run. */
    struct cste_task task;
    uint64_t window_end; /* Monotonic time at which the current run ends. */
    atomic_bool failed;
    struct cst_err err; /* The first failure. Written by the thread that set failed. */
    double up, down, up_both, down_both, latency, peer, memory;
};

/* -- copies --------------------------------------------------------------------------------- */

static void fail(struct cuda_rates *r, const struct cst_err *err)
{
    if (!atomic_exchange(&r->failed, true)) {
        r->err = *err;
    }
}

static struct cste_addr ahead(struct cste_addr addr, uint64_t bytes)
{
    return (struct cste_addr){.mem = addr.mem, .offset = addr.offset + bytes};
}

/* One lane's part of a run: copy pieces until the window closes. */
static void copy_lane(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct cuda_rates *r =
        (struct cuda_rates *)(void *)((char *)task - offsetof(struct cuda_rates, task));
    struct way *way = r->ways[piece / r->n_lanes];
    uint64_t start = cste_thread_pool_now(), now = start, bytes = 0;
    struct cst_err err;

    while (now < r->window_end && !atomic_load(&r->failed)) {
        uint64_t at = atomic_fetch_add(&way->next, 1) * way->piece_bytes % REGION_BYTES;

        if (cste_device_copy(&r->device, thread, ahead(way->dst, at), ahead(way->src, at),
                             way->piece_bytes, &err) != CST_OK) {
            fail(r, &err);
        }
        bytes += way->piece_bytes;
        now = cste_thread_pool_now();
    }
    way->rate[piece % r->n_lanes] = now > start ? (double)bytes * 1e9 / (double)(now - start) : 0.0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Measure copies of @a, and of @b at the same time if it is not NULL. Stores the median rates. */
static void measure(struct cuda_rates *r, struct way *a, double *rate_a, struct way *b,
                    double *rate_b)
{
    struct way *ways[2] = {a, b};
    double *rates[2] = {rate_a, rate_b};
    unsigned n = b != NULL ? 2 : 1;

    for (int run = 0; run <= N_RUNS; run++) {
        r->ways[0] = a;
        r->ways[1] = b;
        r->task = (struct cste_task){.piece = copy_lane, .n_pieces = (uint64_t)n * r->n_lanes};
        r->window_end = cste_thread_pool_now() + WINDOW_NS;
        (void)cste_self_benchmark_run(&r->lanes, &r->task);
        for (unsigned w = 0; w < n; w++) {
            ways[w]->runs[run] = 0.0;
            for (unsigned i = 0; i < r->n_lanes; i++) {
                ways[w]->runs[run] += ways[w]->rate[i];
            }
        }
    }
    for (unsigned w = 0; w < n; w++) {
        /* Run 0 is not counted. */
        qsort(ways[w]->runs + 1, N_RUNS, sizeof(double), by_value);
        *rates[w] = ways[w]->runs[1 + N_RUNS / 2];
    }
}

static double copy_page(void *arg)
{
    struct cuda_rates *r = arg;
    uint64_t start = cste_thread_pool_now();
    struct cst_err err;

    if (cste_device_copy(&r->device, 0, (struct cste_addr){.mem = &r->own[0]},
                         (struct cste_addr){.mem = &r->host[0].mem}, PAGE_BYTES, &err) != CST_OK) {
        fail(r, &err);
    }
    return (double)(cste_thread_pool_now() - start) * 1e-9;
}

static struct way between(const struct cste_mem *dst, const struct cste_mem *src,
                          uint64_t piece_bytes)
{
    return (struct way){.dst = {.mem = dst}, .src = {.mem = src}, .piece_bytes = piece_bytes};
}

static int measure_all(struct cuda_rates *r, struct cst_err *err)
{
    uint64_t piece = cste_cuda_ops.piece_bytes;
    struct way up = between(&r->own[0], &r->host[0].mem, piece);
    struct way down = between(&r->host[1].mem, &r->own[1], piece);
    struct way within = between(&r->own[0], &r->own[1], REGION_BYTES);
    struct way peer = between(&r->reached, &r->own[0], piece);

    measure(r, &up, &r->up, NULL, NULL);
    measure(r, &down, &r->down, NULL, NULL);
    measure(r, &up, &r->up_both, &down, &r->down_both);
    measure(r, &within, &r->memory, NULL, NULL);
    /* A copy within the GPU reads and writes each byte. */
    r->memory *= 2.0;
    if (r->reached.device != 0) {
        measure(r, &peer, &r->peer, NULL, NULL);
    }
    r->latency = cste_self_benchmark_median(copy_page, r, LATENCY_BUDGET_S);
    if (atomic_load(&r->failed)) {
        *err = r->err;
        return err->status;
    }
    return CST_OK;
}

/* -- devices and memory to measure on ------------------------------------------------------- */

static void place_lane(void *arg, unsigned thread)
{
    struct cuda_rates *r = arg;

    (void)thread;
    (void)cste_cpus_stay(&r->cpus);
}

static unsigned choose_lanes(const struct cuda_rates *r,
                             const struct cste_engine_rates_options *options)
{
    unsigned n = options->copy_threads;

    if (n == 0) {
        n = r->cpus.n_cores < cste_cuda_ops.max_lanes ? r->cpus.n_cores : cste_cuda_ops.max_lanes;
    }
    return n < MAX_LANES ? n : MAX_LANES;
}

/* Open r->cpus for @node. On failure r->cpus is zeroed and must not be closed. */
static int open_cpus(struct cuda_rates *r, int node, struct cst_err *err)
{
    int rc = cste_cpus_open(&r->cpus, (unsigned)node, err);

    if (rc != CST_OK) {
        r->cpus = (struct cste_cpus){0};
    }
    return rc;
}

/* Open the GPU with a stream for each lane. A node that was not given is known only after the GPU
 * is open; r->cpus is then opened again. */
static int open_device(struct cuda_rates *r, const struct cste_engine_rates_options *options,
                       struct cst_err *err)
{
    struct cste_device_spec spec = {.cpus = &r->cpus, .id = options->device, .n_team = 1};
    int rc = open_cpus(r, options->node > 0 ? options->node : 0, err);

    if (rc == CST_OK && options->node > 0 && !r->cpus.node_found) {
        rc = cst_err_set(err, CST_ENOTFOUND, "no processor of NUMA node %d may be used",
                         options->node);
    }
    if (rc != CST_OK) {
        return rc;
    }
    r->n_lanes = choose_lanes(r, options);
    spec.n_threads = spec.n_team + 2 * r->n_lanes;
    rc = cste_device_open(&r->device, &cste_cuda_ops, &spec, err);
    if (rc != CST_OK) {
        r->device = (struct cste_device){0};
        return rc;
    }
    r->gpu = r->device.state;
    r->node = options->node >= 0 ? options->node : cste_cuda_node(&r->gpu->driver, r->gpu->device);
    if (options->node < 0 && r->node > 0) {
        cste_cpus_close(&r->cpus);
        return open_cpus(r, r->node, err);
    }
    return CST_OK;
}

static int open_memory(struct cuda_rates *r, struct cst_err *err)
{
    uint64_t granularity = r->device.about.granularity;
    uint64_t bytes = (REGION_BYTES + granularity - 1) / granularity * granularity;
    int rc = CST_OK;

    for (int i = 0; i < 2 && rc == CST_OK; i++) {
        int fd = -1;

        rc = cste_self_benchmark_memory_open(&r->host[i], &r->device, &r->cpus, r->node,
                                             REGION_BYTES, &r->lanes, err);
        if (rc == CST_OK) {
            rc = cste_device_lock(&r->device, &r->host[i].mem, err);
        }
        if (rc == CST_OK) {
            r->own[i] = (struct cste_mem){.bytes = bytes};
            rc = cste_device_import(&r->device, 0, &fd, &r->own[i], err);
        }
        if (fd >= 0) {
            /* The mapping keeps the memory alive. */
            (void)close(fd);
        }
    }
    return rc;
}

/* Open the first other GPU that this one can reach, if there is one, and map memory of it. */
static void open_peer(struct cuda_rates *r)
{
    const struct cst_cuda_driver *driver = &r->gpu->driver;
    struct cste_device_spec spec = {.cpus = &r->cpus, .n_team = 1, .n_threads = 1};
    char uuid[CST_CUDA_UUID_BYTES];
    int n = 0, fd = -1, reach = 0;
    CUdevice device = 0;
    struct cst_err err;

    (void)driver->cuDeviceGetCount(&n);
    for (int i = 0; i < n && !reach; i++) {
        if (driver->cuDeviceGet(&device, i) == CUDA_SUCCESS && device != r->gpu->device &&
            driver->cuDeviceCanAccessPeer(&reach, r->gpu->device, device) != CUDA_SUCCESS) {
            reach = 0;
        }
    }
    if (!reach || cst_cuda_uuid(driver, device, uuid, &err) != CST_OK) {
        return;
    }
    spec.id = uuid;
    if (cste_device_open(&r->other, &cste_cuda_ops, &spec, &err) != CST_OK) {
        r->other = (struct cste_device){0};
        return;
    }
    r->others = r->reached = (struct cste_mem){.bytes = r->own[0].bytes};
    if (cste_device_import(&r->other, 0, &fd, &r->others, &err) == CST_OK) {
        (void)cste_device_import(&r->device, 0, &fd, &r->reached, &err);
        (void)close(fd);
    }
}

static int open_all(struct cuda_rates *r, const struct cste_engine_rates_options *options,
                    struct cst_err *err)
{
    struct cste_thread_pool_config lanes = {
        .name = "cst-lane", .first = 1, .start = place_lane, .arg = r};
    int rc = open_device(r, options, err);

    if (rc != CST_OK) {
        return rc;
    }
    lanes.n_threads = 2 * r->n_lanes;
    rc = cste_thread_pool_open(&r->lanes, &lanes, err);
    if (rc == CST_OK) {
        rc = open_memory(r, err);
    }
    if (rc == CST_OK) {
        open_peer(r);
    }
    return rc;
}

static void close_all(struct cuda_rates *r)
{
    if (r->lanes.n_started > 0) {
        cste_thread_pool_close(&r->lanes);
    }
    if (r->device.ops != NULL) {
        cste_device_unmap(&r->device, &r->reached);
        for (int i = 0; i < 2; i++) {
            cste_device_unmap(&r->device, &r->own[i]);
            cste_self_benchmark_memory_close(&r->host[i]);
        }
    }
    if (r->other.ops != NULL) {
        cste_device_unmap(&r->other, &r->others);
        cste_device_close(&r->other);
    }
    if (r->device.ops != NULL) {
        cste_device_close(&r->device);
    }
    if (r->cpus.topology != NULL) {
        cste_cpus_close(&r->cpus);
    }
}

static int print(const struct cuda_rates *r, FILE *to, struct cst_err *err)
{
    json_t *object = json_pack(
        "{s:s, s:i, s:s, s:i, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "uuid",
        r->gpu->uuid, "node", r->node, "isa", r->gpu->isa, "copy_threads", (int)r->n_lanes, "name",
        r->gpu->name, "memory_bytes", (json_int_t)r->gpu->bytes, "up", r->up, "down", r->down,
        "up_both", r->up_both, "down_both", r->down_both, "copy_latency_s", r->latency, "peer",
        r->peer, "flops", 0.0, "update", 0.0, "memory", r->memory);
    int rc = CST_OK;

    if (object == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the rates");
    }
    if (json_dumpf(object, to, JSON_COMPACT | JSON_REAL_PRECISION(7)) != 0 ||
        fputc('\n', to) == EOF || fflush(to) != 0) {
        rc = cst_err_set(err, CST_EIO, "the rates could not be written");
    }
    json_decref(object);
    return rc;
}

int cste_cuda_rates(const struct cste_engine_rates_options *options, FILE *to, struct cst_err *err)
{
    struct cuda_rates *r = calloc(1, sizeof *r);
    int rc;

    if (r == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to measure with");
    }
    rc = open_all(r, options, err);
    if (rc == CST_OK) {
        rc = measure_all(r, err);
    }
    if (rc == CST_OK) {
        rc = print(r, to, err);
    }
    close_all(r);
    free(r);
    return rc;
}
