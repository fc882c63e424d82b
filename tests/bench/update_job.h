/* SPDX-License-Identifier: Apache-2.0 */
/* One job of one tensor, in shared memory like an arena, with moments in every format, for
 * bench_update. Not thread-safe but for what says so. */
#ifndef CST_BENCH_UPDATE_JOB_H
#define CST_BENCH_UPDATE_JOB_H

#include "kernels/math/tile.h"

#define CST_UPDATE_JOB_MAX_SRC 4

/* How the job is updated. */
struct cst_update_way {
    enum cst_optimizer optimizer;
    enum cst_moments moments;
    enum cst_rounding rounding;
    uint32_t n_src; /* contributions that are summed in the update; 0: the gradient is a row */
};

struct cst_update_job {
    size_t params;
    unsigned threads;
    struct cst_tile_work work; /* as cst_update_job_set left it; moments of fp32 before */
    struct cst_tile_hyper hyper;
    struct cst_update_moment moments[CST_MOMENTS_COUNT][2];
    const uint16_t *src[CST_UPDATE_JOB_MAX_SRC]; /* contributions; the first is the grad row */
    float *wide;                                 /* for gradients in fp32 */
    struct cst_undo_slot *undo;                  /* one per thread */
    uint64_t *updated;                           /* elements, by each thread */
};

/* Make one of @params parameters, a multiple of 32, untouched. Ends the program where there is no
 * memory. */
void cst_update_job_open(struct cst_update_job *job, size_t params, unsigned threads,
                         const struct cst_kernels *kernels);

/* Elements [*first, *first + *n) are thread @index's: whole tiles, the same in every run. Any
 * thread. */
void cst_update_job_share(const struct cst_update_job *job, unsigned index, size_t *first,
                          size_t *n);

/* cst_team_fn: write thread @index's share of a struct cst_update_job: random gradients and states,
 * of the size that they have in training. */
void cst_update_job_fill(void *arg, unsigned index);

/* Update it that way from now on. */
void cst_update_job_set(struct cst_update_job *job, const struct cst_update_way *way);

/* Bytes that an update moves for a parameter, read and written, by the form of its rows. */
double cst_update_job_bytes(const struct cst_update_way *way);

#endif
