/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of a rank. cistern.h has the terms, and what holds for all calls. */
#ifndef CISTERN_STAT_H
#define CISTERN_STAT_H

#include "cistern/job.h"
#include "cistern/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counters of one rank. Each fetch of weights that is granted counts in one of hits, late and
 * misses. */
struct cst_rank_stat {
    uint64_t hits; /* Fetches whose weights were in the pool before the worker waited for them. */
    /* Fetches whose weights were being copied to the pool when the worker began to wait. */
    uint64_t late;
    uint64_t misses;            /* All other fetches. */
    double weight_wait_seconds; /* Time for which the worker waited for weights. */
    /* Blocks of weights or of incomplete gradients that were emptied for other chunks. */
    uint64_t evictions;
    uint64_t prefetches; /* Weights that the daemon copied to the pool before their request. */
    /* Uses that the daemon did not expect from the order of earlier steps. */
    uint64_t surprises;
    uint64_t bytes_up;   /* Bytes copied from host memory to the pool. */
    uint64_t bytes_down; /* Bytes copied from the pool to host memory: gradients. */
    uint64_t pool_bytes; /* Size of the pool in bytes; 0 before cst_commit. */
    uint64_t step;       /* Number of committed steps. */
    double step_seconds; /* Time between the last two commits; 0 before the second one. */
    /* Time by which the steps of the job would have been shorter if updates took no time. */
    double exposed_seconds;
    uint64_t n_skipped; /* How many of these steps have changed nothing (struct cst_step_result). */
};

/* Get the daemon's counters of this rank. CST_EBUSY: a cst_try_... call is pending; CST_EINVAL: the
 * job was left; CST_ENOTFOUND: the daemon has no counters of this rank. */
int cst_stat(struct cst_job *job, struct cst_rank_stat *out, struct cst_err *err);

#ifdef __cplusplus
}
#endif

#endif
