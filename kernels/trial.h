/* SPDX-License-Identifier: Apache-2.0 */
/* Trials: what an engine measures of itself (kernels/rates.h). A trial is a job on a crew, timed
 * from its submission to its end, repeated; the figure is the median. Not for the engine at work.
 */
#ifndef CST_TRIAL_H
#define CST_TRIAL_H

#include "kernels/crew.h"
#include "kernels/device.h"

#define CST_TRIAL_MAX_RUNS 64

/* Memory to measure on, of its own file, mapped on a device. */
struct cst_trial_memory {
    struct cst_device *device; /* borrowed */
    struct cst_mem mem;        /* mapped */
    int fd;                    /* owned */
};

/* Map @bytes on @device, bound to node @node (-1: any) as far as the system lets it, every page
 * touched by the threads of @crew. CST_ENOMEM, or as cst_device_map. */
int cst_trial_memory_open(struct cst_trial_memory *memory, struct cst_device *device,
                          const struct cst_cpus *cpus, int node, uint64_t bytes,
                          struct cst_crew *crew, struct cst_err *err);

/* A no-op on one that is all zeros. */
void cst_trial_memory_close(struct cst_trial_memory *memory);

/* Submit @job (piece, n_pieces and class are set) to @crew and sleep until it is done. Seconds. Not
 * on a thread of a crew. */
double cst_trial_run(struct cst_crew *crew, struct cst_job *job);

/* Seconds that a trial takes: the median of as many runs of @run as begin within @budget_s, 3 at
 * least, after one that is not counted. */
double cst_trial_median(double (*run)(void *arg), void *arg, double budget_s);

#endif
