/* SPDX-License-Identifier: Apache-2.0 */
/* Worker processes that train the model of mix_model.h through libcistern. A worker can be told to
 * die, or to kill another process, at any point of its run. */
#ifndef MIX_WORKER_H
#define MIX_WORKER_H

#include "tests/lib/mix_model.h"

#include <sys/types.h>

/* Instructions to a worker. */
struct mix_order {
    const char *socket; /* the daemon's socket */
    const char *name;   /* name of the job */
    /* Name of the base job, which holds the frozen tensors; NULL: the job holds them itself. */
    const char *base;
    uint32_t rank, world;   /* the worker's rank and the number of ranks */
    uint32_t micro_batches; /* micro-batches of a step */
    uint64_t n_steps;       /* number of steps to be committed in all */
    uint64_t pool_bytes;    /* bytes of the rank's pool; 0: as many as it can use */
    /* Point at which the worker kills itself with SIGKILL, counted from 0; UINT32_MAX: never. */
    uint32_t die_at;
    uint32_t kill_at; /* point at which the worker kills `victim` with SIGKILL; UINT32_MAX: never */
    pid_t victim;     /* the process that `kill_at` kills */
};

/* The worker's report, in shared memory. */
struct mix_report {
    struct mix_run run;   /* results that this rank received, and the states if it read them */
    struct cst_plan plan; /* plan from the rank's commit */
    uint32_t n_points;    /* number of points that the worker has passed */
    uint32_t n_syncs;     /* number of syncs after which a step was repeated */
    char error[512];      /* reason for an exit status that is not 0 */
};

/* Allocate a report that children share. */
struct mix_report *mix_report_new(void);
void mix_report_free(struct mix_report *report);

/* Start a process that executes @order and writes @report. *@order is copied. */
pid_t mix_worker_start(const struct mix_order *order, struct mix_report *report);

/* Wait for the process. True if SIGKILL ended it, false if it exited with status 0. Otherwise the
 * test fails with the report's message. */
bool mix_worker_join(pid_t pid, const struct mix_report *report);

#endif
