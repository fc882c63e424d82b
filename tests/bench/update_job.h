/* SPDX-License-Identifier: Apache-2.0 */
/* A job of one tensor for bench_update, with moments in every format. Its rows are in shared
 * memory, as in an arena. Only functions that say so may be called by several threads. */
#ifndef CST_BENCH_UPDATE_JOB_H
#define CST_BENCH_UPDATE_JOB_H

#include "kernels/math/tile.h"

#define CST_UPDATE_JOB_MAX_SRC 4   /* Most contributions to a gradient. */
#define CST_UPDATE_JOB_MAX_MAPS 20 /* Most mappings of memory. */

/* Shared memory of a row or of the table. */
struct cst_update_map {
    int fd; /* Its memfd. */
    void *base;
    size_t bytes;
};

/* The kind of update that is measured. */
struct cst_update_way {
    enum cst_optimizer optimizer; /* The optimizer. */
    enum cst_masters masters;     /* Where the master weights are. */
    enum cst_moments moments;     /* The format of the moments. */
    enum cst_rounding rounding;   /* The rounding of moments. */
    uint32_t n_src; /* Contributions that the update sums; 0: the update reads a gradient row. */
};

struct cst_update_job {
    size_t params;               /* Number of parameters. */
    unsigned threads;            /* Number of threads. */
    struct cst_tile_work work;   /* Rows of the current kind of update; at first, fp32 moments. */
    struct cst_tile_hyper hyper; /* Hyper-parameters of all updates. */
    struct cst_update_moment moments[CST_MOMENTS_COUNT][2]; /* Both moments in each format. */
    /* Contributions; the first one is also the gradient row. */
    const uint16_t *src[CST_UPDATE_JOB_MAX_SRC];
    float *wide;                /* A gradient row in fp32. */
    float *master;              /* Whole master weights. */
    int16_t *remainder;         /* Remainders of split ones, whose weights are in rows.weight. */
    struct cst_undo_slot *undo; /* Undo slots, one per thread. */
    uint64_t *updated;          /* Per thread, the number of elements that it updated. */
    struct cst_update_map maps[CST_UPDATE_JOB_MAX_MAPS]; /* All memory of the job. */
    unsigned n_maps;                                     /* Number of these. */
};

/* Make a job of @params parameters, a multiple of 32. Its memory is not written. Ends the program
 * if there is not enough memory. */
void cst_update_job_open(struct cst_update_job *job, size_t params, unsigned threads,
                         const struct cst_kernels *kernels);

/* Compute the share of thread @index: the elements [*first, *first + *n), which are whole tiles and
 * the same in every run. Any thread may call this. */
void cst_update_job_share(const struct cst_update_job *job, unsigned index, size_t *first,
                          size_t *n);

/* A cst_team_fn whose @arg is a struct cst_update_job. Allocates memory, in large pages where the
 * kernel gives them, and writes random gradients and states, of the size that they have in
 * training, to the share of thread @index. */
void cst_update_job_fill(void *arg, unsigned index);

/* Let the following updates be of the kind @way. */
void cst_update_job_set(struct cst_update_job *job, const struct cst_update_way *way);

/* Returns the bytes per parameter that an update of the kind @way reads and writes. */
double cst_update_job_bytes(const struct cst_update_way *way);

#endif
