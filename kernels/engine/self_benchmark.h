/* SPDX-License-Identifier: Apache-2.0 */
/* Trials, with which an engine program measures itself (kernels/engine/rates.h). A trial is a task
 * on a thread pool, timed from its submission to its end and repeated. The result is the median. An
 * engine that serves the daemon does not use this module. */
#ifndef CSTE_SELF_BENCHMARK_H
#define CSTE_SELF_BENCHMARK_H

#include "kernels/engine/cpus.h"
#include "kernels/engine/device.h"
#include "kernels/engine/rates.h"
#include "kernels/engine/thread_pool.h"

#include <stdatomic.h>

#define CSTE_SELF_BENCHMARK_MAX_RUNS 64
#define CSTE_SELF_BENCHMARK_MAX_LANES 64

/* The device that is measured, and the lanes that copy, as in an engine. */
struct cste_self_benchmark {
    struct cste_cpus cpus;                      /* Processors of the node. */
    struct cste_device device;                  /* The device; ops is NULL until it is open. */
    struct cste_thread_pool lanes;              /* Threads for copies. */
    unsigned n_lanes;                           /* Number of lanes in each direction. */
    struct cste_self_benchmark_copy *copies[2]; /* Copies of the present run. */
    struct cste_task task;                      /* Task of the present run. */
    uint64_t window_end;                        /* Monotonic time at which the run ends. */
    atomic_bool failed;
    struct cst_err err; /* The first failure. Written by the thread that set failed. */
};

/* Copies in one direction between two regions of @region_bytes, a multiple of @piece_bytes. */
struct cste_self_benchmark_copy {
    struct cste_addr dst, src;
    uint64_t region_bytes, piece_bytes;
    atomic_ullong next;                         /* Number of the piece that is copied next. */
    double rate[CSTE_SELF_BENCHMARK_MAX_LANES]; /* Bytes/s of each lane in this run. */
};

/* Open @b->cpus for @node, and choose the number of lanes for @ops. On failure cpus is zeroed.
 * CST_ENOTFOUND: the node has no usable processors, and is not node 0. */
int cste_self_benchmark_open_cpus(struct cste_self_benchmark *b, int node,
                                  const struct cste_device_ops *ops,
                                  const struct cste_engine_rates_options *options,
                                  struct cst_err *err);

/* Open @b->device. On failure it is zeroed. Statuses as cste_device_open. */
int cste_self_benchmark_open_device(struct cste_self_benchmark *b,
                                    const struct cste_device_ops *ops,
                                    const struct cste_device_spec *spec, struct cst_err *err);

/* Start @n_threads lanes, numbered from @first, on the processors of the node. */
int cste_self_benchmark_open_lanes(struct cste_self_benchmark *b, unsigned n_threads,
                                   unsigned first, struct cst_err *err);

/* Close what is open. */
void cste_self_benchmark_close(struct cste_self_benchmark *b);

/* Record a failure. Only the first one is kept. Any thread. */
void cste_self_benchmark_fail(struct cste_self_benchmark *b, const struct cst_err *err);

/* Returns the recorded failure, or CST_OK. */
int cste_self_benchmark_result(const struct cste_self_benchmark *b, struct cst_err *err);

/* Returns the bytes per second of @copy on all lanes of its direction, made as an engine makes
 * copies. If @other is not NULL, it is copied at the same time on as many other lanes, and
 * *other_rate receives its bytes per second. Both are medians. */
double cste_self_benchmark_rate(struct cste_self_benchmark *b,
                                struct cste_self_benchmark_copy *copy,
                                struct cste_self_benchmark_copy *other, double *other_rate);

/* Memory to measure on: a file, mapped on a device. */
struct cste_self_benchmark_memory {
    struct cste_device *device; /* Device; borrowed. */
    struct cste_mem mem;        /* Mapped memory. */
    int fd;                     /* File descriptor; owned. */
};

/* Map @bytes on @device. The memory is bound to NUMA node @node (-1: any node) if the system
 * permits. The threads of @pool touch every page. CST_ENOMEM; other statuses as cste_device_map. */
int cste_self_benchmark_memory_open(struct cste_self_benchmark_memory *memory,
                                    struct cste_device *device, const struct cste_cpus *cpus,
                                    int node, uint64_t bytes, struct cste_thread_pool *pool,
                                    struct cst_err *err);

/* Unmap the memory and close its file. Does nothing if @memory is all zeros. */
void cste_self_benchmark_memory_close(struct cste_self_benchmark_memory *memory);

/* Submit @task (piece, n_pieces and class are set) to @pool and sleep until it is done. Returns the
 * seconds from submission to end. Not on a thread of a thread pool. */
double cste_self_benchmark_run(struct cste_thread_pool *pool, struct cste_task *task);

/* Returns the median of the seconds that @run returns. One run is not counted. Then runs begin
 * until @budget_s is spent, at least 3 and at most CSTE_SELF_BENCHMARK_MAX_RUNS. */
double cste_self_benchmark_median(double (*run)(void *arg), void *arg, double budget_s);

#endif
