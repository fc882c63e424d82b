/* SPDX-License-Identifier: Apache-2.0 */
/* Rates that engines were seen to reach, as medians, and whether the times of a job's steps drift
 * from the prediction. Loop thread only. */
#ifndef CST_DAEMON_RATES_H
#define CST_DAEMON_RATES_H

#include "proto/rates.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CSTD_RATES_SAMPLES 15 /* Number of samples of which the median is taken; odd. */

/* Median of the last samples of one rate. */
struct cstd_rates_median {
    double samples[CSTD_RATES_SAMPLES]; /* Ring of samples, amounts per second of work. */
    uint32_t n;                         /* Number of samples ever added. */
};

/* Add a sample: @amount was done in @ns of work. Periods of less than a millisecond are ignored,
 * because they are too imprecise. */
void cstd_rates_median_add(struct cstd_rates_median *median, uint64_t amount, uint64_t ns);

/* Return the median; 0: there are no samples yet. */
double cstd_rates_median_get(const struct cstd_rates_median *median);

/* Rates of one engine, per time in which it did this work. Times at which two commands did the work
 * count once. */
struct cstd_rates_seen {
    struct cstd_rates_median copy;     /* Copies, bytes/s. */
    struct cstd_rates_median update;   /* Updates, elements/s. */
    struct cstd_rates_median reduce;   /* Gradient sums, elements/s. */
    struct cstd_rates_median up, down; /* Copies to and from a GPU, bytes/s. */
    /* Bytes/s that updates and gradient sums read and write. */
    struct cstd_rates_median update_bytes, reduce_bytes;
    struct cstd_rates_median products; /* Products of Muon, flop/s. */
};

struct cstd_engine_counters;

/* Add the differences of an engine's counters between @before and @after as samples. A counter that
 * went back is ignored: a new engine process began at 0. */
void cstd_rates_see(struct cstd_rates_seen *seen, const struct cstd_engine_counters *before,
                    const struct cstd_engine_counters *after);

/* -- a job's steps ---------------------------------------------------------------------------- */

#define CSTD_DRIFT_STEPS 8 /* Steps in a row that must be off before it is reported. */
/* Deviation from the prediction that counts as off, as a fraction. */
#define CSTD_DRIFT_SHARE 0.2
/* Number of steps whose median becomes the prediction if there is no plan's prediction. */
#define CSTD_DRIFT_LEARN 5
#define CSTD_DRIFT_SKIP 3 /* Number of steps at the start that are not considered. */

enum cstd_drift_news { CSTD_DRIFT_NONE, CSTD_DRIFT_OFF, CSTD_DRIFT_BACK };

struct cstd_drift {
    double predicted_s; /* Predicted time of a step; 0: still to be learned. */
    bool learned;       /* predicted_s was learned from steps, and is not a plan's. */
    uint32_t n_seen;    /* Number of steps seen. */
    /* Times of the steps from which predicted_s is learned, seconds. */
    double first[CSTD_DRIFT_LEARN];
    /* Number of steps in a row that are off to the same side; after the drift was reported, number
     * of steps in a row that are as predicted again. */
    uint32_t n_off;
    int side;      /* Side of the steps that n_off counts: 1 slower, -1 faster, 0 as predicted. */
    bool off;      /* The drift was reported. */
    double sum_s;  /* Sum of the times of the steps that n_off counts. */
    double mean_s; /* Mean time of CSTD_DRIFT_STEPS steps at the last report. */
};

/* Start anew with the prediction @predicted_s; 0: learn the prediction from the first steps. */
void cstd_drift_init(struct cstd_drift *drift, double predicted_s);

/* Add a step that took @seconds. OFF: the last CSTD_DRIFT_STEPS steps were off, and mean_s is their
 * mean. BACK: as many steps were as predicted again. Each change is reported once. */
enum cstd_drift_news cstd_drift_step(struct cstd_drift *drift, double seconds);

#endif
