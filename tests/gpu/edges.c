/* SPDX-License-Identifier: Apache-2.0 */
/* One of two ranks on GPUs: rank 0 puts arrays in its GPU's memory through edges, rank 1 takes them
 * to its own and compares them. One edge has its slots on the GPU of rank 1, if the GPUs can access
 * each other's memory, and the other one has them in host memory. With --json, rank 0 then measures
 * the throughput of each edge, and of a bare copy to rank 1's GPU.
 *
 * Usage: edges --rank R --world 2 --device DEVICE [--json FILE]
 * Both ranks get --json, or neither; rank 0 writes the file. Exit status: 0; 1: a wrong array or an
 * error. */
#include "cistern/cuda.h"
#include "cistern/device.h"
#include "kernels/cuda/driver.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SLOT = 64 << 20,
    N_SLOTS = 3,
    CHECKED = 1 << 20, /* Most bytes of an array that is compared. */
    N_CHECKED = 24,    /* Such arrays in each edge. */
    N_TIMED = 20,      /* Arrays in each edge that are timed, and bare copies. */
    N_EDGES = 2,
};

static const char *const names[N_EDGES] = {"device", "host"};

struct rank {
    const char *device;
    const char *json; /* File for times; NULL: nothing is timed. */
    uint32_t rank, world;
    struct cst_client *client;
    struct cst_job *job;
    struct cst_cuda *cuda;
    struct cst_cuda_driver driver;
    CUdevice gpu;
    CUstream stream;
    CUdeviceptr array; /* SLOT bytes. */
    int edges[N_EDGES];
};

static void must(const struct rank *r, int rc, const struct cst_err *err, const char *what)
{
    if (rc != CST_OK) {
        (void)fprintf(stderr, "rank %u: %s: %s: %s\n", r->rank, what, cst_status_name(rc),
                      err->text);
        exit(EXIT_FAILURE);
    }
}

static void must_cuda(const struct rank *r, CUresult result, const char *what)
{
    struct cst_err err;

    must(r, cst_cuda_check(&r->driver, result, &err, "%s", what), &err, what);
}

static void *address(CUdeviceptr array)
{
    return (void *)(uintptr_t)array;
}

/* -- the job ---------------------------------------------------------------------------------- */

static void declare(struct rank *r)
{
    int tensor;

    for (int i = 0; i < N_EDGES; i++) {
        const struct cst_edge_spec spec = {.name = names[i],
                                           .from = 0,
                                           .to = 1,
                                           .slot_bytes = r->json != NULL ? SLOT : CHECKED,
                                           .n_slots = N_SLOTS,
                                           .on_device = i == 0};

        r->edges[i] = cst_edge(r->job, &spec);
        must(r, r->edges[i] < 0 ? r->edges[i] : CST_OK, cst_job_error(r->job), "cst_edge");
    }
    tensor = cst_tensor(r->job, "t", CST_BF16, 1, (int64_t[]){1000}, CST_GROUP_ALL);
    (void)cst_operator(r->job, "o", &tensor, 1);
}

static void open_job(struct rank *r)
{
    const struct cst_job_spec spec = {.name = "edges",
                                      .rank = r->rank,
                                      .world = 2,
                                      .device = r->device,
                                      .limits.timeout_ms = 60000};
    struct cst_err err = {0};
    CUcontext context;

    must(r, cst_connect(&r->client, NULL, &err), &err, "cst_connect");
    must(r, cst_job_open(&r->job, r->client, &spec, &err), &err, "cst_job_open");
    must(r, cst_cuda_driver_open(&r->driver, &err), &err, "driver");
    must(r, cst_cuda_find(&r->driver, cst_job_device(r->job), &r->gpu, &err), &err, "device");
    must_cuda(r, r->driver.cuDevicePrimaryCtxRetain(&context, r->gpu), "context");
    must_cuda(r, r->driver.cuCtxSetCurrent(context), "context");
    must_cuda(r, r->driver.cuStreamCreateWithPriority(&r->stream, CU_STREAM_NON_BLOCKING, 0),
              "stream");
    must_cuda(r, r->driver.cuMemAlloc(&r->array, r->json != NULL ? SLOT : CHECKED), "array");
    must(r, cst_cuda_open(&r->cuda, r->job, r->stream, &err), &err, "cst_cuda_open");
    declare(r);
    must(r, cst_commit(r->job, NULL, &err), &err, "cst_commit");
    must(r, cst_sync(r->job, NULL, &err), &err, "cst_sync");
}

static void close_job(struct rank *r)
{
    struct cst_err err = {0};

    must(r, cst_job_leave(r->job, &err), &err, "cst_job_leave");
    cst_disconnect(r->client);
    cst_cuda_close(r->cuda);
    must_cuda(r, r->driver.cuMemFree(r->array), "array");
    must_cuda(r, r->driver.cuStreamDestroy(r->stream), "stream");
    must_cuda(r, r->driver.cuDevicePrimaryCtxRelease(r->gpu), "context");
}

static bool is_on_device(const struct rank *r, int edge)
{
    return cst_edge_on_device(r->job, edge, NULL) == 1;
}

/* -- correctness ------------------------------------------------------------------------------ */

static uint64_t bytes_of(uint32_t number)
{
    return number * UINT64_C(2654435761) % CHECKED + 1;
}

static void fill(uint8_t *data, uint32_t number)
{
    for (uint64_t i = 0; i < bytes_of(number); i++) {
        data[i] = (uint8_t)(number * 31 + i * 7 + i / 256);
    }
}

/* Put array @number. Every second one is written into the slot by the program's own stream. */
static void put(struct rank *r, int edge, uint32_t number)
{
    static uint8_t data[CHECKED];
    struct cst_err err = {0};
    void *slot;

    fill(data, number);
    must_cuda(r, r->driver.cuMemcpyHtoDAsync(r->array, data, bytes_of(number), r->stream), "fill");
    if (number % 2 == 0) {
        must(r, cst_put_start(r->job, edge, number, address(r->array), bytes_of(number), &err),
             &err, "cst_put_start");
        must(r, cst_edge_wait(r->job, edge, number, &err), &err, "cst_edge_wait");
        return;
    }
    must(r, cst_put_begin(r->job, edge, number, &slot, &err), &err, "cst_put_begin");
    must_cuda(r,
              r->driver.cuMemcpyAsync((CUdeviceptr)(uintptr_t)slot, r->array, bytes_of(number),
                                      r->stream),
              "write to the slot");
    if (!is_on_device(r, edge)) { /* Otherwise cst_put_end waits for the stream. */
        must_cuda(r, r->driver.cuStreamSynchronize(r->stream), "stream");
    }
    must(r, cst_put_end(r->job, edge, number, &err), &err, "cst_put_end");
}

static void take(struct rank *r, int edge, uint32_t number)
{
    static uint8_t data[CHECKED], right[CHECKED];
    struct cst_err err = {0};

    must(r, cst_take_start(r->job, edge, number, address(r->array), bytes_of(number), &err), &err,
         "cst_take_start");
    must(r, cst_edge_wait(r->job, edge, number, &err), &err, "cst_edge_wait");
    must_cuda(r, r->driver.cuMemcpyDtoHAsync(data, r->array, bytes_of(number), r->stream), "read");
    must_cuda(r, r->driver.cuStreamSynchronize(r->stream), "stream");
    fill(right, number);
    if (memcmp(data, right, bytes_of(number)) != 0) {
        (void)fprintf(stderr, "rank %u: array %u of edge '%s' is wrong\n", r->rank, number,
                      names[edge == r->edges[1]]);
        exit(EXIT_FAILURE);
    }
}

/* -- times ------------------------------------------------------------------------------------ */

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double rate(double seconds)
{
    return N_TIMED * (double)SLOT / seconds / 1e9;
}

/* GB/s of N_TIMED arrays that pass through @edge one after another. The first ones only fill the
 * slots, and are not counted. */
static double measure_edge(struct rank *r, int edge)
{
    struct cst_err err = {0};
    double began = 0;

    for (uint32_t i = 0; i < N_TIMED + N_SLOTS + 1; i++) {
        began = i == N_SLOTS + 1 ? now() : began;
        must(r,
             r->rank == 0 ? cst_put(r->job, edge, i, address(r->array), SLOT, &err)
                          : cst_take(r->job, edge, i, address(r->array), SLOT, &err),
             &err, "an array to be timed");
    }
    return rate(now() - began);
}

/* GB/s of copies from rank 0's memory to a slot on rank 1's GPU, which rank 1 then empties. */
static double measure_copies(struct rank *r)
{
    const uint32_t number = N_TIMED * 2;
    struct cst_err err = {0};
    double began = 0, seconds;
    void *slot;

    if (r->rank != 0) {
        must(r, cst_take(r->job, r->edges[0], number, address(r->array), SLOT, &err), &err,
             "cst_take");
        return 0;
    }
    must(r, cst_put_begin(r->job, r->edges[0], number, &slot, &err), &err, "cst_put_begin");
    for (int i = 0; i <= N_TIMED; i++) {
        must_cuda(r,
                  r->driver.cuMemcpyAsync((CUdeviceptr)(uintptr_t)slot, r->array, SLOT, r->stream),
                  "copy");
        if (i == 0) { /* The first one is not counted. */
            must_cuda(r, r->driver.cuStreamSynchronize(r->stream), "stream");
            began = now();
        }
    }
    must_cuda(r, r->driver.cuStreamSynchronize(r->stream), "stream");
    seconds = now() - began;
    must(r, cst_put_end(r->job, r->edges[0], number, &err), &err, "cst_put_end");
    return rate(seconds);
}

static void report(struct rank *r)
{
    double copies = is_on_device(r, r->edges[0]) ? measure_copies(r) : 0;
    double on_device = measure_edge(r, r->edges[0]), in_host = measure_edge(r, r->edges[1]);
    FILE *file;

    if (r->rank != 0) {
        return;
    }
    file = fopen(r->json, "w");
    if (file == NULL) {
        perror(r->json);
        exit(EXIT_FAILURE);
    }
    (void)fprintf(file,
                  "{\"device_gb_per_s\": %.2f, \"host_gb_per_s\": %.2f, \"copy_gb_per_s\": %.2f}\n",
                  on_device, in_host, copies);
    if (fclose(file) != 0) {
        perror(r->json);
        exit(EXIT_FAILURE);
    }
}

static _Noreturn void usage(void)
{
    (void)fputs("usage: edges --rank R --world 2 --device DEVICE [--json FILE]\n", stderr);
    exit(2);
}

static struct rank read_options(int argc, char **argv)
{
    static const struct option options[] = {{"rank", required_argument, NULL, 'r'},
                                            {"world", required_argument, NULL, 'w'},
                                            {"device", required_argument, NULL, 'd'},
                                            {"json", required_argument, NULL, 'j'},
                                            {NULL, 0, NULL, 0}};
    struct rank r = {.world = 2, .device = "cuda"};

    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'r':
            r.rank = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'w':
            r.world = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'd':
            r.device = optarg;
            break;
        case 'j':
            r.json = optarg;
            break;
        default:
            usage();
        }
    }
    if (r.world != 2 || r.rank >= r.world || optind != argc) {
        usage();
    }
    return r;
}

int main(int argc, char **argv)
{
    struct rank r = read_options(argc, argv);

    open_job(&r);
    if (r.rank == 1) {
        printf("slots on a GPU: %s\n", is_on_device(&r, r.edges[0]) ? "yes" : "no");
    }
    for (uint32_t i = 0; i < N_EDGES * N_CHECKED; i++) {
        (r.rank == 0 ? put : take)(&r, r.edges[i % N_EDGES], i / N_EDGES);
    }
    if (r.json != NULL) {
        report(&r);
    }
    close_job(&r);
    return 0;
}
