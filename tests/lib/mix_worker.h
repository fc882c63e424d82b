/* SPDX-License-Identifier: Apache-2.0 */
/* Worker processes that train the model of mix_model.h through libcistern, and can be told to die,
 * or to kill, at any point of their life. */
#ifndef MIX_WORKER_H
#define MIX_WORKER_H

#include "tests/lib/mix_model.h"

#include <sys/types.h>

/* What a worker is told. */
struct mix_order {
    const char *socket;     /* of the daemon */
    const char *name;       /* of the job */
    const char *base;       /* job that has the frozen tensors; NULL: this one has them */
    uint32_t rank, world;   /* its place */
    uint32_t micro_batches; /* per step */
    uint64_t n_steps;       /* to be committed in all */
    uint64_t pool_bytes;    /* of this rank; 0: all it can use */
    uint32_t die_at;        /* kill -9 itself at this point, counted from 0; UINT32_MAX: never */
    uint32_t kill_at;       /* kill -9 victim at this point; UINT32_MAX: never */
    pid_t victim;           /* a process */
};

/* What it tells, in shared memory. */
struct mix_report {
    struct mix_run run;   /* results as this rank saw them; states if it read them */
    struct cst_plan plan; /* from its commit */
    uint32_t n_points;    /* points passed */
    uint32_t n_syncs;     /* after which steps were done again */
    char error[512];      /* why its exit status is not 0 */
};

/* Memory for a report that children share. */
struct mix_report *mix_report_new(void);
void mix_report_free(struct mix_report *report);

/* Start a process that does @order and writes @report; *order is copied. */
pid_t mix_worker_start(const struct mix_order *order, struct mix_report *report);

/* Wait for it. True if it died by SIGKILL; false if it ended well; else the test fails, with its
 * words. */
bool mix_worker_join(pid_t pid, const struct mix_report *report);

#endif
