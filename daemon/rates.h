/* SPDX-License-Identifier: Apache-2.0 */
/* Rates that engines were seen to reach, as medians, and whether the times of a job's steps drift
 * from the prediction. Loop thread only. */
#ifndef CST_DAEMON_RATES_H
#define CST_DAEMON_RATES_H

#include "offload/plan/rates.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_RATES_SAMPLES 15 /* Number of samples of which the median is taken; odd. */

/* Median of the last samples of one rate. */
struct cst_rates_median {
    double samples[CST_RATES_SAMPLES]; /* Ring of samples, amounts per second of work. */
    uint32_t n;                        /* Number of samples ever added. */
};

/* Add a sample: @amount was done in @ns of work. Periods of less than a millisecond are ignored,
 * because they are too imprecise. */
void cst_rates_median_add(struct cst_rates_median *median, uint64_t amount, uint64_t ns);

/* Return the median; 0: there are no samples yet. */
double cst_rates_median_get(const struct cst_rates_median *median);

/* Rates of one engine, per time in which it did this work. Times at which two commands did the work
 * count once. */
struct cst_rates_seen {
    struct cst_rates_median copy;     /* Copies, bytes/s. */
    struct cst_rates_median update;   /* Updates, elements/s. */
    struct cst_rates_median reduce;   /* Gradient sums, elements/s. */
    struct cst_rates_median up, down; /* Copies to and from a GPU, bytes/s. */
    /* Bytes/s that updates and gradient sums read and write. */
    struct cst_rates_median update_bytes, reduce_bytes;
};

struct cst_engine_counters;

/* Add the differences of an engine's counters between @before and @after as samples. A counter that
 * went back is ignored: a new engine process began at 0. */
void cst_rates_see(struct cst_rates_seen *seen, const struct cst_engine_counters *before,
                   const struct cst_engine_counters *after);

/* -- a job's steps ---------------------------------------------------------------------------- */

#define CST_DRIFT_STEPS 8   /* Steps in a row that must be off before it is reported. */
#define CST_DRIFT_SHARE 0.2 /* Deviation from the prediction that counts as off, as a fraction. */
/* Number of steps whose median becomes the prediction if there is no plan's prediction. */
#define CST_DRIFT_LEARN 5
#define CST_DRIFT_SKIP 3 /* Number of steps at the start that are not considered. */

enum cst_drift_news { CST_DRIFT_NONE, CST_DRIFT_OFF, CST_DRIFT_BACK };

struct cst_drift {
    double predicted_s; /* Predicted time of a step; 0: still to be learned. */
    bool learned;       /* predicted_s was learned from steps, and is not a plan's. */
    uint32_t n_seen;    /* Number of steps seen. */
    /* Times of the steps from which predicted_s is learned, seconds. */
    double first[CST_DRIFT_LEARN];
    /* Number of steps in a row that are off to the same side; after the drift was reported, number
     * of steps in a row that are as predicted again. */
    uint32_t n_off;
    int side;      /* Side of the steps that n_off counts: 1 slower, -1 faster, 0 as predicted. */
    bool off;      /* The drift was reported. */
    double sum_s;  /* Sum of the times of the steps that n_off counts. */
    double mean_s; /* Mean time of CST_DRIFT_STEPS steps at the last report. */
};

/* Start anew with the prediction @predicted_s; 0: learn the prediction from the first steps. */
void cst_drift_init(struct cst_drift *drift, double predicted_s);

/* Add a step that took @seconds. OFF: the last CST_DRIFT_STEPS steps were off, and mean_s is their
 * mean. BACK: as many steps were as predicted again. Each change is reported once. */
enum cst_drift_news cst_drift_step(struct cst_drift *drift, double seconds);

#endif
