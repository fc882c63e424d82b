/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/self_benchmark.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TOUCH_BYTES (4u << 20)

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
    start = cste_thread_pool_now();
    cste_thread_pool_submit(pool, &timed.task);
    while (sem_wait(&timed.done) != 0 && errno == EINTR) {
    }
    start = cste_thread_pool_now() - start;
    (void)sem_destroy(&timed.done);
    return (double)start * 1e-9;
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

/* -- memory --------------------------------------------------------------------------------- */

/* A task that touches all pages by writing to them, because the device may leave populating to
 * another engine. Pages are allocated first: a page that could not be allocated would cause a
 * signal. */
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

    (void)thread;
    if (fallocate(touch->memory->fd, 0, (off_t)at, (off_t)bytes) != 0) {
        atomic_store(&touch->failed, errno);
    } else {
        memset((char *)mem->base + at, 0, bytes);
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
