/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a job, for reports: the whole run in at most CSTD_HISTORY_ENTRIES entries. When they
 * are all used, neighbours are merged, and each entry stands for twice as many steps from then on.
 * A step costs one addition to an entry; a merge comes once in thousands of steps. Loop thread
 * only. */
#ifndef CSTD_HISTORY_H
#define CSTD_HISTORY_H

#include <stdint.h>

#define CSTD_HISTORY_ENTRIES 4096 /* An even number. */

/* A committed step. */
struct cstd_history_step {
    uint64_t step;     /* Number of the step, from 1. */
    uint64_t ended_ns; /* ns, monotonic: the commit. */
    uint64_t ns;       /* Duration, from commit to commit. */
    uint64_t exposed_ns;
    uint64_t tokens; /* 0: not known. */
    double loss;     /* 0: the ranks gave none. */
    double grad_norm;
    uint32_t n_skipped; /* 1: the step was skipped. */
};

/* Consecutive steps. */
struct cstd_history_entry {
    uint64_t first;      /* Number of the first step. */
    uint32_t n_steps;    /* Number of steps. */
    uint32_t n_skipped;  /* Steps that were skipped. */
    uint32_t n_losses;   /* Steps whose loss is in `losses`: those with a finite one. */
    uint32_t n_norms;    /* Steps whose norm is in `norms`: those with a finite one. */
    uint64_t ended_ns;   /* ns, monotonic: commit of the last step. */
    uint64_t ns;         /* Sum of the durations. */
    uint64_t exposed_ns; /* Sum of the exposed update times. */
    uint64_t tokens;     /* Sum of the known numbers of tokens. */
    double losses;       /* Sum of the losses. */
    double norms;        /* Sum of the gradient norms. */
};

/* All 0: no steps. */
struct cstd_history {
    struct cstd_history_entry *entries; /* Owned. */
    uint32_t n, capacity;               /* Entries that are used, and allocated. */
    uint32_t stride;                    /* Steps of an entry that is complete; 0: 1. */
};

/* Bytes of the heap that a history takes at most. */
uint64_t cstd_history_bytes(void);

/* Add a step. If memory is short, or the step does not follow the last one (the job was restored
 * from a checkpoint), the history begins anew with it, or with the next one. */
void cstd_history_add(struct cstd_history *history, const struct cstd_history_step *step);

/* Index of the first entry that begins with step @step or later; history->n: there is none. */
uint32_t cstd_history_find(const struct cstd_history *history, uint64_t step);

/* Free the entries. The history has no steps afterwards. */
void cstd_history_close(struct cstd_history *history);

#endif
