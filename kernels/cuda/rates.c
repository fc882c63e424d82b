/* SPDX-License-Identifier: Apache-2.0 */
/* cistern-engine-cuda --rates: copies between the memory of a node and a GPU, made as the engine
 * makes them, with registered memory and its lanes, streams and pieces. */
#include "kernels/engine/rates.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/probe.h"
#include "kernels/engine/self_benchmark.h"
#include "proto/clock.h"
#include "proto/rates_fields.h"
#include "proto/round_up.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

/* Size of the regions through which copies go repeatedly. */
#define REGION_BYTES ((uint64_t)256 << 20)
#define LATENCY_BUDGET_S 0.2
#define SMALL_BYTES 4096 /* A copy of so few bytes takes its latency. */

struct cuda_rates {
    struct cste_self_benchmark b;
    struct cste_gpu *gpu; /* Equals b.device.state. */
    int node;             /* NUMA node of the host memory; -1: any. */
    struct cste_self_benchmark_memory host[2];
    struct cste_mem own[2]; /* Memory on the GPU. */
    /* Another GPU that this one reaches. ops is NULL if there is none. */
    struct cste_device other;
    /* Memory on the other GPU, as the other GPU sees it and as this one does. */
    struct cste_mem others, reached;
    struct cst_rates_device rates; /* The results. */
};

/* -- copies --------------------------------------------------------------------------------- */

static double copy_small(void *arg)
{
    struct cuda_rates *r = arg;
    uint64_t start = cst_clock_ns();
    struct cst_tile_done done;
    struct cst_err err;

    if (cste_device_copy(&r->b.device, 0, (struct cste_addr){.mem = &r->own[0]},
                         (struct cste_addr){.mem = &r->host[0].mem}, SMALL_BYTES, &err) != CST_OK ||
        cste_device_finish(&r->b.device, 0, &done, &err) != CST_OK) {
        cste_self_benchmark_fail(&r->b, &err);
    }
    return (double)(cst_clock_ns() - start) * 1e-9;
}

static struct cste_self_benchmark_copy between(const struct cste_mem *dst,
                                               const struct cste_mem *src, uint64_t piece_bytes)
{
    return (struct cste_self_benchmark_copy){.dst = {.mem = dst},
                                             .src = {.mem = src},
                                             .region_bytes = REGION_BYTES,
                                             .piece_bytes = piece_bytes};
}

static int measure_all(struct cuda_rates *r, struct cst_err *err)
{
    uint64_t piece = cste_cuda_ops.memory->piece_bytes;
    struct cste_self_benchmark_copy up = between(&r->own[0], &r->host[0].mem, piece);
    struct cste_self_benchmark_copy down = between(&r->host[1].mem, &r->own[1], piece);
    struct cste_self_benchmark_copy within = between(&r->own[0], &r->own[1], REGION_BYTES);
    struct cste_self_benchmark_copy peer = between(&r->reached, &r->own[0], piece);
    struct cst_rates_device *rates = &r->rates;

    rates->up = cste_self_benchmark_rate(&r->b, &up, NULL, NULL);
    rates->down = cste_self_benchmark_rate(&r->b, &down, NULL, NULL);
    rates->up_both = cste_self_benchmark_rate(&r->b, &up, &down, &rates->down_both);
    /* A copy within the GPU reads and writes each byte. */
    rates->memory = 2.0 * cste_self_benchmark_rate(&r->b, &within, NULL, NULL);
    if (r->reached.device != 0) {
        rates->peer = cste_self_benchmark_rate(&r->b, &peer, NULL, NULL);
    }
    rates->copy_latency_s = cste_self_benchmark_median(copy_small, r, LATENCY_BUDGET_S);
    return cste_self_benchmark_result(&r->b, err);
}

/* -- devices and memory to measure on ------------------------------------------------------- */

/* Store the node of the host memory in r->node: @given or, if that is -1, the one nearest to the
 * GPU. */
static int find_node(struct cuda_rates *r, int given, struct cst_err *err)
{
    struct cst_host_nodes nodes;
    int rc = CST_OK;

    r->node = given;
    if (given < 0) {
        rc = cst_host_nodes_open(&nodes, CST_HOST_NODES_WITH_DEVICES, err);
    }
    if (given < 0 && rc == CST_OK) {
        r->node = cste_cuda_node(&r->gpu->driver, &nodes, r->gpu->device);
        cst_host_nodes_close(&nodes);
    }
    return rc;
}

/* Open the GPU with a stream for each lane. A node that was not given is known only after the GPU
 * is open; the processors are then opened again. */
static int open_device(struct cuda_rates *r, const struct cste_engine_rates_options *options,
                       struct cst_err *err)
{
    struct cste_device_spec spec = {.cpus = &r->b.cpus, .id = options->device, .n_team = 1};
    unsigned n_lanes;
    int rc = cste_self_benchmark_open_cpus(&r->b, options->node > 0 ? options->node : 0,
                                           &cste_cuda_ops, options, err);

    if (rc != CST_OK) {
        return rc;
    }
    n_lanes = r->b.n_lanes;
    spec.n_threads = spec.n_team + 2 * n_lanes;
    rc = cste_self_benchmark_open_device(&r->b, &cste_cuda_ops, &spec, err);
    if (rc != CST_OK) {
        return rc;
    }
    r->gpu = r->b.device.state;
    rc = find_node(r, options->node, err);
    if (rc != CST_OK) {
        return rc;
    }
    if (options->node < 0 && r->node > 0) {
        cste_cpus_close(&r->b.cpus);
        rc = cste_self_benchmark_open_cpus(&r->b, r->node, &cste_cuda_ops, options, err);
        /* The streams have been counted. */
        r->b.n_lanes = n_lanes;
    }
    return rc;
}

static int open_memory(struct cuda_rates *r, struct cst_err *err)
{
    uint64_t granularity = r->b.device.about.granularity;
    uint64_t bytes = cst_round_up(REGION_BYTES, granularity);
    int rc = CST_OK;

    for (int i = 0; i < 2 && rc == CST_OK; i++) {
        int fd = -1;

        rc = cste_self_benchmark_memory_open(&r->host[i], &r->b.device, &r->b.cpus, r->node,
                                             REGION_BYTES, &r->b.lanes, err);
        if (rc == CST_OK) {
            rc = cste_device_lock(&r->b.device, &r->host[i].mem, err);
        }
        if (rc == CST_OK) {
            r->own[i] = (struct cste_mem){.bytes = bytes};
            rc = cste_device_import(&r->b.device, 0, &fd, &r->own[i], err);
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
    struct cste_device_spec spec = {.cpus = &r->b.cpus, .n_team = 1, .n_threads = 1};
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
        (void)cste_device_import(&r->b.device, 0, &fd, &r->reached, &err);
        (void)close(fd);
    }
}

static int open_all(struct cuda_rates *r, const struct cste_engine_rates_options *options,
                    struct cst_err *err)
{
    int rc = open_device(r, options, err);

    if (rc == CST_OK) {
        rc = cste_self_benchmark_open_lanes(&r->b, 2 * r->b.n_lanes, 1, err);
    }
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
    if (r->b.device.ops != NULL) {
        cste_device_unmap(&r->b.device, &r->reached);
        for (int i = 0; i < 2; i++) {
            cste_device_unmap(&r->b.device, &r->own[i]);
            cste_self_benchmark_memory_close(&r->host[i]);
        }
    }
    if (r->other.ops != NULL) {
        cste_device_unmap(&r->other, &r->others);
        cste_device_close(&r->other);
    }
    cste_self_benchmark_close(&r->b);
}

static int print(const struct cuda_rates *r, FILE *to, struct cst_err *err)
{
    json_t *object = json_pack("{s:s, s:i, s:s, s:i, s:s, s:I}", "uuid", r->gpu->uuid, "node",
                               r->node, "isa", r->gpu->isa, "copy_threads", (int)r->b.n_lanes,
                               "name", r->gpu->name, "memory_bytes", (json_int_t)r->gpu->bytes);
    int rc = CST_OK;

    if (object == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the rates");
    }
    for (const struct cst_rates_field *f = cst_rates_device_fields; f->name != NULL; f++) {
        (void)json_object_set_new(object, f->name, json_real(cst_rates_get(&r->rates, f)));
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
