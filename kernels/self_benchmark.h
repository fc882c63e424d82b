/* SPDX-License-Identifier: Apache-2.0 */
/* Trials, with which an engine program measures itself (kernels/rates.h). A trial is a task on a
 * thread pool, timed from its submission to its end and repeated. The result is the median. An
 * engine that serves the daemon does not use this module. */
#ifndef CSTE_SELF_BENCHMARK_H
#define CSTE_SELF_BENCHMARK_H

#include "kernels/thread_pool.h"
#include "kernels/device.h"

#define CSTE_SELF_BENCHMARK_MAX_RUNS 64

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
