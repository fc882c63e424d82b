/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine can do, as the daemon knows it: the file of `cistern probe`, else what its
 * engines were seen to reach, else conservative numbers. And how fast jobs' steps are, against what
 * was predicted. Loop thread. */
#ifndef CST_DAEMON_RATES_H
#define CST_DAEMON_RATES_H

#include "offload/plan/rates.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_RATES_SAMPLES 15 /* of which the median is taken; odd */

/* A rate as it was seen lately. */
struct cst_rates_median {
    double samples[CST_RATES_SAMPLES]; /* amounts per second of work, a ring */
    uint32_t n;                        /* ever */
};

/* @amount more was done in @ns more of work. Windows of less than a millisecond say nothing. */
void cst_rates_median_add(struct cst_rates_median *median, uint64_t amount, uint64_t ns);

/* 0: nothing was seen yet. */
double cst_rates_median_get(const struct cst_rates_median *median);

/* Of one engine: busy time only, one command's after the other. */
struct cst_rates_seen {
    struct cst_rates_median copy;                       /* bytes/s of a copy */
    struct cst_rates_median update;                     /* elements/s */
    struct cst_rates_median reduce;                     /* elements/s */
    struct cst_rates_median up, down;                   /* bytes/s of a copy to and from a GPU */
    struct cst_rates_median update_bytes, reduce_bytes; /* bytes/s that these read and write */
};

struct cst_engine_counters;

/* An engine's counters went from @before to @after. Those of a new process begin at 0. */
void cst_rates_see(struct cst_rates_seen *seen, const struct cst_engine_counters *before,
                   const struct cst_engine_counters *after);

/* -- a job's steps ---------------------------------------------------------------------------- */

#define CST_DRIFT_STEPS 8   /* in a row, until it counts */
#define CST_DRIFT_SHARE 0.2 /* off the prediction */
#define CST_DRIFT_LEARN 5   /* steps whose median is the prediction where nobody made one ... */
#define CST_DRIFT_SKIP 3    /* ... after the first ones */

enum cst_drift_news { CST_DRIFT_NONE, CST_DRIFT_OFF, CST_DRIFT_BACK };

struct cst_drift {
    double predicted_s; /* a step; 0: to be learned */
    bool learned;       /* predicted_s is what was seen, nobody's plan */
    uint32_t n_seen;    /* steps */
    double first[CST_DRIFT_LEARN];
    uint32_t n_off; /* in a row: 20 % off to the same side, or, once told, back */
    int side;       /* of those: 1 slower, -1 faster */
    bool off;       /* it was told */
    double sum_s;   /* of the n_off */
    double mean_s;  /* of the last CST_DRIFT_STEPS steps, when there was news last */
};

/* Start anew, against @predicted_s; 0: against what the first steps take. */
void cst_drift_init(struct cst_drift *drift, double predicted_s);

/* A step took @seconds. OFF: it was the last one of CST_DRIFT_STEPS that were off; mean_s is what
 * they took. BACK: as many were as predicted again. Each is told once. */
enum cst_drift_news cst_drift_step(struct cst_drift *drift, double seconds);

#endif
