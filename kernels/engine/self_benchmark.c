/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/self_benchmark.h"

#include "kernels/engine/populate.h"
#include "proto/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define TOUCH_BYTES (4u << 20)
#define WINDOW_NS 60000000u /* Duration of a run of copies. */
#define N_RUNS 5            /* Number of counted runs of copies, after one that is not counted. */

/* -- running a task ------------------------------------------------------------------------- */

/* A wrapper of the measured task. A thread pool reports the end of a task on one of its own
 * threads; the wrapper passes the report to the waiting thread. */
struct timed {
    struct cste_task task;
    struct cste_task *what;
    sem_t done;
};

static struct timed *timed_of(struct cste_task *task)
{
    return (struct timed *)(void *)((char *)task - offsetof(struct timed, task));
}

static void timed_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct timed *timed = timed_of(task);

    timed->what->piece(timed->what, piece, thread);
}

static void timed_done(struct cste_task *task)
{
    (void)sem_post(&timed_of(task)->done);
}

double cste_self_benchmark_run(struct cste_thread_pool *pool, struct cste_task *task)
{
    struct timed timed = {.what = task};
    uint64_t start;

    timed.task = (struct cste_task){
        .piece = timed_piece, .done = timed_done, .n_pieces = task->n_pieces, .class = task->class};
    (void)sem_init(&timed.done, 0, 0);
    start = cst_clock_ns();
    cste_thread_pool_submit(pool, &timed.task);
    while (sem_wait(&timed.done) != 0 && errno == EINTR) {
    }
    start = cst_clock_ns() - start;
    (void)sem_destroy(&timed.done);
    return (double)start * 1e-9;
}

/* -- the device and its lanes ----------------------------------------------------------------- */

int cste_self_benchmark_open_cpus(struct cste_self_benchmark *b, int node,
                                  const struct cste_device_ops *ops,
                                  const struct cste_engine_rates_options *options,
                                  struct cst_err *err)
{
    unsigned n = options->copy_threads;
    int rc = cste_cpus_open(&b->cpus, (unsigned)node, err);

    if (rc != CST_OK) {
        b->cpus = (struct cste_cpus){0};
        return rc;
    }
    if (options->node > 0 && !b->cpus.node_found) {
        cste_cpus_close(&b->cpus);
        b->cpus = (struct cste_cpus){0};
        return cst_err_set(err, CST_ENOTFOUND, "no processor of NUMA node %d may be used",
                           options->node);
    }
    if (n == 0) {
        n = b->cpus.n_cores < ops->memory->max_lanes ? b->cpus.n_cores : ops->memory->max_lanes;
    }
    b->n_lanes = n < CSTE_SELF_BENCHMARK_MAX_LANES ? n : CSTE_SELF_BENCHMARK_MAX_LANES;
    return CST_OK;
}

int cste_self_benchmark_open_device(struct cste_self_benchmark *b,
                                    const struct cste_device_ops *ops,
                                    const struct cste_device_spec *spec, struct cst_err *err)
{
    int rc = cste_device_open(&b->device, ops, spec, err);

    if (rc != CST_OK) {
        b->device = (struct cste_device){0};
    }
    return rc;
}

static void place_lane(void *arg, unsigned thread)
{
    struct cste_self_benchmark *b = arg;

    (void)thread;
    (void)cste_cpus_stay(&b->cpus);
}

int cste_self_benchmark_open_lanes(struct cste_self_benchmark *b, unsigned n_threads,
                                   unsigned first, struct cst_err *err)
{
    struct cste_thread_pool_config config = {
        .name = "cst-lane", .n_threads = n_threads, .first = first, .start = place_lane, .arg = b};

    return cste_thread_pool_open(&b->lanes, &config, err);
}

void cste_self_benchmark_close(struct cste_self_benchmark *b)
{
    if (b->lanes.n_started > 0) {
        cste_thread_pool_close(&b->lanes);
    }
    if (b->device.ops != NULL) {
        cste_device_close(&b->device);
    }
    if (b->cpus.topology != NULL) {
        cste_cpus_close(&b->cpus);
    }
}

void cste_self_benchmark_fail(struct cste_self_benchmark *b, const struct cst_err *err)
{
    if (!atomic_exchange(&b->failed, true)) {
        b->err = *err;
    }
}

int cste_self_benchmark_result(const struct cste_self_benchmark *b, struct cst_err *err)
{
    if (!atomic_load(&b->failed)) {
        return CST_OK;
    }
    *err = b->err;
    return err->status;
}

/* -- the median ----------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double cste_self_benchmark_median(double (*run)(void *arg), void *arg, double budget_s)
{
    double seconds[CSTE_SELF_BENCHMARK_MAX_RUNS], spent = run(arg);
    unsigned n = 0;

    while (n < CSTE_SELF_BENCHMARK_MAX_RUNS && (n < 3 || spent < budget_s)) {
        seconds[n] = run(arg);
        spent += seconds[n++];
    }
    qsort(seconds, n, sizeof *seconds, by_value);
    return n % 2 == 1 ? seconds[n / 2] : (seconds[n / 2 - 1] + seconds[n / 2]) / 2.0;
}

/* -- copies ----------------------------------------------------------------------------------- */

/* Wait for the oldest copy of @thread that is under way. Returns its bytes. */
static uint64_t finish_copy(struct cste_self_benchmark *b, unsigned thread, uint64_t piece_bytes)
{
    struct cst_tile_done done;
    struct cst_err err;

    if (cste_device_finish(&b->device, thread, &done, &err) != CST_OK) {
        cste_self_benchmark_fail(b, &err);
    }
    return piece_bytes;
}

/* One lane's part of a run: copy pieces until the window closes. As in the engine, the lane begins
 * as many pieces as the device permits before it waits for the oldest one. */
static void copy_lane(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct cste_self_benchmark *b =
        (struct cste_self_benchmark *)(void *)((char *)task -
                                               offsetof(struct cste_self_benchmark, task));
    struct cste_self_benchmark_copy *copy = b->copies[piece / b->n_lanes];
    uint64_t start = cst_clock_ns(), now = start, bytes = 0;
    unsigned n = 0, window = b->device.ops->window > 0 ? b->device.ops->window : 1;
    struct cst_err err;

    while (now < b->window_end && !atomic_load(&b->failed)) {
        uint64_t at = atomic_fetch_add(&copy->next, 1) * copy->piece_bytes % copy->region_bytes;

        if (cste_device_copy(&b->device, thread, cste_addr_ahead(copy->dst, at),
                             cste_addr_ahead(copy->src, at), copy->piece_bytes, &err) != CST_OK) {
            cste_self_benchmark_fail(b, &err);
            break;
        }
        if (++n == window) {
            bytes += finish_copy(b, thread, copy->piece_bytes);
            n--;
        }
        now = cst_clock_ns();
    }
    for (; n > 0; n--) {
        bytes += finish_copy(b, thread, copy->piece_bytes);
        now = cst_clock_ns();
    }
    copy->rate[piece % b->n_lanes] =
        now > start ? (double)bytes * 1e9 / (double)(now - start) : 0.0;
}

double cste_self_benchmark_rate(struct cste_self_benchmark *b,
                                struct cste_self_benchmark_copy *copy,
                                struct cste_self_benchmark_copy *other, double *other_rate)
{
    double rates[2][N_RUNS + 1] = {{0}};
    unsigned n = other != NULL ? 2 : 1;

    b->copies[0] = copy;
    b->copies[1] = other;
    for (int run = 0; run <= N_RUNS; run++) {
        b->task = (struct cste_task){.piece = copy_lane, .n_pieces = (uint64_t)n * b->n_lanes};
        b->window_end = cst_clock_ns() + WINDOW_NS;
        (void)cste_self_benchmark_run(&b->lanes, &b->task);
        for (unsigned i = 0; i < n * b->n_lanes; i++) {
            rates[i / b->n_lanes][run] += b->copies[i / b->n_lanes]->rate[i % b->n_lanes];
        }
    }
    for (unsigned k = 0; k < n; k++) {
        /* Run 0 is not counted. */
        qsort(rates[k] + 1, N_RUNS, sizeof(double), by_value);
    }
    if (other != NULL) {
        *other_rate = rates[1][1 + N_RUNS / 2];
    }
    return rates[0][1 + N_RUNS / 2];
}

/* -- memory --------------------------------------------------------------------------------- */

/* A task that populates the memory, because the device may leave that to another engine. */
struct touch {
    struct cste_task task;
    struct cste_self_benchmark_memory *memory;
    atomic_int failed; /* errno of a piece that could not allocate its pages; 0: none. */
};

static void touch_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct touch *touch = (struct touch *)(void *)((char *)task - offsetof(struct touch, task));
    struct cste_mem *mem = &touch->memory->mem;
    uint64_t at = piece * TOUCH_BYTES, left = mem->bytes - at;
    uint64_t bytes = left < TOUCH_BYTES ? left : TOUCH_BYTES;
    int errnum;

    (void)thread;
    errnum = cste_populate(touch->memory->fd, mem->base, at, bytes);
    if (errnum != 0) {
        atomic_store(&touch->failed, errnum);
    }
}

static int open_file(uint64_t bytes, int *out, struct cst_err *err)
{
    int fd = memfd_create("cistern-rates", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0) {
        return cst_err_errno(err, CST_ENOMEM, errno, "memfd_create");
    }
    if (ftruncate(fd, (off_t)bytes) != 0) {
        (void)cst_err_errno(err, CST_ENOMEM, errno, "a file of %" PRIu64 " bytes", bytes);
        (void)close(fd);
        return CST_ENOMEM;
    }
    *out = fd;
    return CST_OK;
}

int cste_self_benchmark_memory_open(struct cste_self_benchmark_memory *memory,
                                    struct cste_device *device, const struct cste_cpus *cpus,
                                    int node, uint64_t bytes, struct cste_thread_pool *pool,
                                    struct cst_err *err)
{
    struct cste_self_benchmark_memory made = {.device = device, .mem = {.bytes = bytes}};
    struct touch touch = {.memory = &made};
    struct cst_err note;
    int rc = open_file(bytes, &made.fd, err);

    if (rc != CST_OK) {
        return rc;
    }
    /* A device need not bind memory (a GPU does not). The memory is bound below. */
    rc = cste_device_map(device, made.fd, -1, &made.mem, &note, err);
    if (rc != CST_OK) {
        (void)close(made.fd);
        return rc;
    }
    /* Binding precedes the first touch. */
    if (node >= 0) {
        (void)cste_cpus_bind(cpus, made.mem.base, bytes, (unsigned)node, &note);
    }
    touch.task = (struct cste_task){.piece = touch_piece,
                                    .n_pieces = (bytes + TOUCH_BYTES - 1) / TOUCH_BYTES};
    (void)cste_self_benchmark_run(pool, &touch.task);
    if (atomic_load(&touch.failed) != 0) {
        rc = cst_err_errno(err, CST_ENOMEM, atomic_load(&touch.failed),
                           "%" PRIu64 " bytes to measure on", bytes);
        cste_self_benchmark_memory_close(&made);
        return rc;
    }
    *memory = made;
    return CST_OK;
}

void cste_self_benchmark_memory_close(struct cste_self_benchmark_memory *memory)
{
    if (memory->mem.base != NULL) {
        cste_device_unmap(memory->device, &memory->mem);
        (void)close(memory->fd);
    }
    *memory = (struct cste_self_benchmark_memory){0};
}
