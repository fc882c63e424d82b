/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a job whose ranks call collectives on arrays in the memory of GPUs: all operations,
 * with results that are known exactly, whatever the order of sums; then, with --json, the time of
 * an all-reduce.
 *
 * With --dies, this rank is killed instead of making the last call, an all-reduce. The others get
 * --bereaved: they wait for their streams alone, and must then be told who has died.
 *
 * Usage: collectives --rank R --world N --device DEVICE [--in-order]
 *                    [--json FILE | --dies | --bereaved]
 * Exit status: 0; 1: a wrong result or an error; 3: another rank has died, and was named. */
#include "cistern/cuda.h"
#include "cistern/device.h"
#include "kernels/cuda/driver.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_RANKS = 16,
    MOST_ELEMS = 4096,
    LARGE_BYTES = 64 << 20,
    SMALL_BYTES = 4096,
    DEATH = 3,
    N_CALLS = 36, /* Each operation six times. */
    DEADLY_CALL = 40,
    /* An all-reduce. */
};

struct rank {
    const char *device;
    const char *json; /* File for times; NULL: none. */
    uint32_t rank, world;
    bool in_order, dies, bereaved; /* As the options. */
    struct cst_client *client;
    struct cst_job *job;
    struct cst_cuda *cuda;
    struct cst_comm *comm;
    struct cst_cuda_driver driver;
    CUdevice gpu;
    CUstream stream;
    CUdeviceptr in, out; /* LARGE_BYTES each. */
};

/* A call, and what it must give this rank. The arrays are of floats; bf16 has their upper halves.
 */
struct trial {
    struct cst_comm_call call;
    size_t counts[MOST_RANKS], recv_counts[MOST_RANKS];
    float in[MOST_RANKS * MOST_ELEMS], want[MOST_RANKS * MOST_ELEMS];
    size_t n_in, n_want;
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

/* -- the job ---------------------------------------------------------------------------------- */

static void open_job(struct rank *r)
{
    const struct cst_job_spec spec = {.name = "collectives",
                                      .rank = r->rank,
                                      .world = r->world,
                                      .device = r->device,
                                      .limits.timeout_ms = 60000};
    struct cst_plan plan;
    struct cst_err err = {0};
    CUcontext context;
    int tensor;

    must(r, cst_connect(&r->client, NULL, &err), &err, "cst_connect");
    must(r, cst_job_open(&r->job, r->client, &spec, &err), &err, "cst_job_open");
    must(r, cst_cuda_driver_open(&r->driver, &err), &err, "driver");
    must(r, cst_cuda_find(&r->driver, cst_job_device(r->job), &r->gpu, &err), &err, "device");
    must_cuda(r, r->driver.cuDevicePrimaryCtxRetain(&context, r->gpu), "context");
    must_cuda(r, r->driver.cuCtxSetCurrent(context), "context");
    must_cuda(r, r->driver.cuStreamCreateWithPriority(&r->stream, CU_STREAM_NON_BLOCKING, 0),
              "stream");
    must_cuda(r, r->driver.cuMemAlloc(&r->in, LARGE_BYTES), "input");
    must_cuda(r, r->driver.cuMemAlloc(&r->out, LARGE_BYTES), "output");
    must(r, cst_cuda_open(&r->cuda, r->job, r->stream, &err), &err, "cst_cuda_open");
    tensor = cst_tensor(r->job, "t", CST_BF16, 1, (int64_t[]){1000}, CST_GROUP_ALL);
    (void)cst_operator(r->job, "o", &tensor, 1);
    must(r, cst_commit(r->job, &plan, &err), &err, "cst_commit");
    must(r, cst_sync(r->job, NULL, &err), &err, "cst_sync");
    must(r,
         (r->in_order ? cst_cuda_comm_open_in_order
                      : cst_cuda_comm_open)(&r->comm, r->cuda, CST_GROUP_ALL, r->stream, &err),
         &err, "cst_cuda_comm_open");
}

static void close_job(struct rank *r)
{
    struct cst_err err = {0};

    must(r, cst_comm_barrier(r->comm, &err), &err, "barrier");
    cst_comm_close(r->comm);
    must(r, cst_job_leave(r->job, &err), &err, "cst_job_leave");
    cst_disconnect(r->client);
    cst_cuda_close(r->cuda);
    must_cuda(r, r->driver.cuMemFree(r->in), "input");
    must_cuda(r, r->driver.cuMemFree(r->out), "output");
    must_cuda(r, r->driver.cuStreamDestroy(r->stream), "stream");
    must_cuda(r, r->driver.cuDevicePrimaryCtxRelease(r->gpu), "context");
}

/* -- calls ------------------------------------------------------------------------------------ */

/* Element @i of what @from has for @to in call @number: an integer so small that sums of many are
 * exact in bf16, in any order. */
static float value(unsigned number, uint32_t from, uint32_t to, size_t i)
{
    return (float)((number + 3 * from + 5 * to + 7 * i) % 9) - 4;
}

static void put(float *array, size_t *n, unsigned number, uint32_t from, uint32_t to, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        array[(*n)++] = value(number, from, to, i);
    }
}

/* Add the sum over all ranks of what they have for @to. */
static void put_sum(const struct rank *r, struct trial *t, unsigned number, uint32_t to,
                    size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float sum = 0;

        for (uint32_t from = 0; from < r->world; from++) {
            sum += value(number, from, to, i);
        }
        t->want[t->n_want++] = sum;
    }
}

/* Elements that @from sends to @to, or of the part of @to: different for the ranks in every second
 * round of the operations. */
static size_t count_of(unsigned number, uint32_t from, uint32_t to)
{
    const size_t least = 100 + number % 50;

    return number / 6 % 2 == 0 ? least : least + 10 * to + 100 * from;
}

static void make(const struct rank *r, struct trial *t, unsigned number)
{
    const enum cst_comm_op op = (enum cst_comm_op)(CST_COMM_BARRIER + number % 6);
    const size_t n = 1000 + number;

    t->n_in = t->n_want = 0;
    t->call = (struct cst_comm_call){.op = op,
                                     .type = number / 6 % 3 == 0 ? CST_COMM_BF16 : CST_COMM_FP32,
                                     .n_elems = n,
                                     .root = number % r->world,
                                     .counts = t->counts,
                                     .recv_counts = t->recv_counts};
    for (uint32_t i = 0; i < r->world; i++) {
        t->counts[i] = count_of(number, op == CST_COMM_ALL_TO_ALL ? r->rank : 0, i);
        t->recv_counts[i] = count_of(number, i, r->rank);
    }
    switch (op) {
    case CST_COMM_BARRIER:
        break;
    case CST_COMM_BROADCAST:
        put(t->in, &t->n_in, number, r->rank, 0, n);
        put(t->want, &t->n_want, number, t->call.root, 0, n);
        break;
    case CST_COMM_ALL_REDUCE:
        put(t->in, &t->n_in, number, r->rank, 0, n);
        put_sum(r, t, number, 0, n);
        break;
    case CST_COMM_ALL_GATHER:
        put(t->in, &t->n_in, number, r->rank, 0, t->counts[r->rank]);
        for (uint32_t i = 0; i < r->world; i++) {
            put(t->want, &t->n_want, number, i, 0, t->counts[i]);
        }
        break;
    case CST_COMM_REDUCE_SCATTER:
        for (uint32_t i = 0; i < r->world; i++) {
            put(t->in, &t->n_in, number, r->rank, i, t->counts[i]);
        }
        put_sum(r, t, number, r->rank, t->counts[r->rank]);
        break;
    case CST_COMM_ALL_TO_ALL:
        for (uint32_t i = 0; i < r->world; i++) {
            put(t->in, &t->n_in, number, r->rank, i, t->counts[i]);
            put(t->want, &t->n_want, number, i, r->rank, t->recv_counts[i]);
        }
        break;
    }
}

/* Turn @n floats into the elements of the call, or back. In place. */
static size_t encode(const struct trial *t, float *array, size_t n)
{
    for (size_t i = 0; t->call.type == CST_COMM_BF16 && i < n; i++) {
        uint32_t bits;
        uint16_t half;

        memcpy(&bits, &array[i], sizeof bits);
        half = (uint16_t)(bits >> 16);
        memcpy((char *)array + i * sizeof half, &half, sizeof half);
    }
    return n * (t->call.type == CST_COMM_BF16 ? 2 : 4);
}

/* Start the call of @t. */
static int start(const struct rank *r, struct trial *t, uint64_t *ticket, struct cst_err *err)
{
    const size_t bytes = encode(t, t->in, t->n_in);

    if (bytes > 0) {
        must_cuda(r, r->driver.cuMemcpyHtoDAsync(r->in, t->in, bytes, r->stream), "input");
    }
    t->call.in = (const void *)(uintptr_t)r->in;
    t->call.out = (void *)(uintptr_t)r->out;
    return cst_comm_start(r->comm, &t->call, ticket, err);
}

/* Call @number, and check the result. */
static void call(const struct rank *r, struct trial *t, unsigned number)
{
    static float got[MOST_RANKS * MOST_ELEMS];
    struct cst_err err = {0};
    uint64_t ticket = 0;
    size_t bytes;

    make(r, t, number);
    must(r, start(r, t, &ticket, &err), &err, "cst_comm_start");
    must(r, cst_comm_wait(r->comm, ticket, &err), &err, "cst_comm_wait");
    bytes = encode(t, t->want, t->n_want);
    if (bytes > 0) {
        must_cuda(r, r->driver.cuMemcpyDtoHAsync(got, r->out, bytes, r->stream), "output");
        must_cuda(r, r->driver.cuStreamSynchronize(r->stream), "stream");
    }
    if (memcmp(got, t->want, bytes) != 0) {
        (void)fprintf(stderr, "rank %u: call %u (operation %d) has a wrong result\n", r->rank,
                      number, (int)t->call.op);
        exit(EXIT_FAILURE);
    }
}

/* Call @number, in which another rank dies. Waits for the stream alone first. */
static _Noreturn void mourn(const struct rank *r, struct trial *t, unsigned number)
{
    struct cst_err err = {0};
    uint64_t ticket = 0;
    int rc;

    make(r, t, number);
    rc = start(r, t, &ticket, &err); /* Without NCCL it waits for the other ranks. */
    must_cuda(r, r->driver.cuStreamSynchronize(r->stream), "stream");
    rc = rc == CST_OK ? cst_comm_wait(r->comm, ticket, &err) : rc;
    if (rc != CST_EPEERDIED) {
        (void)fprintf(stderr, "rank %u: a rank has died, and a collective says %s\n", r->rank,
                      cst_status_name(rc));
        exit(EXIT_FAILURE);
    }
    printf("rank %u: %s\n", r->rank, err.text);
    exit(DEATH);
}

/* -- times ------------------------------------------------------------------------------------ */

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of one all-reduce of @bytes bytes in fp32, of @n. */
static double measure(struct rank *r, size_t bytes, unsigned n)
{
    struct cst_err err = {0};
    double began = 0;

    for (unsigned i = 0; i <= n; i++) {
        must(r,
             cst_comm_all_reduce(r->comm, (const void *)(uintptr_t)r->in, (void *)(uintptr_t)r->out,
                                 bytes / 4, CST_COMM_FP32, &err),
             &err, "all-reduce");
        began = i == 0 ? now() : began; /* The first one is not counted. */
    }
    return (now() - began) / n;
}

static void report(struct rank *r)
{
    const double small = measure(r, SMALL_BYTES, 200), large = measure(r, LARGE_BYTES, 10);
    FILE *file = r->json != NULL && r->rank == 0 ? fopen(r->json, "w") : NULL;

    if (file != NULL) {
        (void)fprintf(file, "{\"small_us\": %.2f, \"large_gb_per_s\": %.2f}\n", small * 1e6,
                      LARGE_BYTES / large / 1e9);
        (void)fclose(file);
    }
}

static _Noreturn void usage(void)
{
    (void)fputs("usage: collectives --rank R --world N --device DEVICE [--in-order] "
                "[--json FILE | --dies | --bereaved]\n",
                stderr);
    exit(2);
}

static struct rank read_options(int argc, char **argv)
{
    static const struct option options[] = {
        {"rank", required_argument, NULL, 'r'},   {"world", required_argument, NULL, 'w'},
        {"device", required_argument, NULL, 'd'}, {"json", required_argument, NULL, 'j'},
        {"in-order", no_argument, NULL, 'o'},     {"dies", no_argument, NULL, 'k'},
        {"bereaved", no_argument, NULL, 'b'},     {NULL, 0, NULL, 0}};
    struct rank r = {.world = 1, .device = "cuda"};

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
        case 'o':
            r.in_order = true;
            break;
        case 'k':
            r.dies = true;
            break;
        case 'b':
            r.bereaved = true;
            break;
        default:
            usage();
        }
    }
    if (r.world == 0 || r.world > MOST_RANKS || r.rank >= r.world || optind != argc) {
        usage();
    }
    return r;
}

int main(int argc, char **argv)
{
    static struct trial trial;
    struct rank r = read_options(argc, argv);

    open_job(&r);
    for (unsigned i = 1; i <= N_CALLS; i++) {
        call(&r, &trial, i);
    }
    if (r.dies) {
        (void)raise(SIGKILL);
    }
    if (r.bereaved) {
        mourn(&r, &trial, DEADLY_CALL);
    }
    if (r.json != NULL) {
        report(&r);
    }
    close_job(&r);
    return 0;
}
