/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/rates.h"

#include "daemon/engine/engine.h"

#include <stdlib.h>
#include <string.h>

enum { MIN_WINDOW_NS = 1000000 };

/* -- medians ---------------------------------------------------------------------------------- */

void cstd_rates_median_add(struct cstd_rates_median *median, uint64_t amount, uint64_t ns)
{
    if (ns >= MIN_WINDOW_NS && amount > 0) {
        median->samples[median->n++ % CSTD_RATES_SAMPLES] = (double)amount / ((double)ns * 1e-9);
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Return the median of @values, which are sorted in place. */
static double median_of(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, compare);
    return values[n / 2];
}

double cstd_rates_median_get(const struct cstd_rates_median *median)
{
    double sorted[CSTD_RATES_SAMPLES];
    uint32_t n = median->n < CSTD_RATES_SAMPLES ? median->n : CSTD_RATES_SAMPLES;

    memcpy(sorted, median->samples, sizeof sorted);
    return n > 0 ? median_of(sorted, n) : 0;
}

static void see(struct cstd_rates_median *median, uint64_t before, uint64_t after,
                uint64_t before_ns, uint64_t after_ns)
{
    if (after >= before && after_ns >= before_ns) {
        cstd_rates_median_add(median, after - before, after_ns - before_ns);
    }
}

void cstd_rates_see(struct cstd_rates_seen *seen, const struct cstd_engine_counters *before,
                    const struct cstd_engine_counters *after)
{
    see(&seen->copy, before->copy_bytes, after->copy_bytes, before->copy_ns, after->copy_ns);
    see(&seen->update, before->update_elems, after->update_elems, before->update_ns,
        after->update_ns);
    see(&seen->reduce, before->reduce_elems, after->reduce_elems, before->reduce_ns,
        after->reduce_ns);
    see(&seen->up, before->up_bytes, after->up_bytes, before->up_ns, after->up_ns);
    see(&seen->down, before->down_bytes, after->down_bytes, before->down_ns, after->down_ns);
    see(&seen->update_bytes, before->update_bytes, after->update_bytes, before->update_ns,
        after->update_ns);
    see(&seen->reduce_bytes, before->reduce_bytes, after->reduce_bytes, before->reduce_ns,
        after->reduce_ns);
    see(&seen->products, before->product_flops, after->product_flops, before->product_ns,
        after->product_ns);
}

/* -- drift ------------------------------------------------------------------------------------ */

void cstd_drift_init(struct cstd_drift *drift, double predicted_s)
{
    *drift = (struct cstd_drift){.predicted_s = predicted_s};
}

/* The first steps are skipped, because the order of requests is learned in them. */
static void learn(struct cstd_drift *drift, double seconds)
{
    uint32_t i = drift->n_seen - CSTD_DRIFT_SKIP - 1;

    if (drift->n_seen > CSTD_DRIFT_SKIP) {
        drift->first[i] = seconds;
        if (i + 1 == CSTD_DRIFT_LEARN) {
            drift->predicted_s = median_of(drift->first, CSTD_DRIFT_LEARN);
            drift->learned = true;
        }
    }
}

/* Return 1 if @seconds is slower than predicted by more than CSTD_DRIFT_SHARE, -1 if faster by
 * more, else 0. */
static int side_of(const struct cstd_drift *drift, double seconds)
{
    if (seconds > drift->predicted_s * (1 + CSTD_DRIFT_SHARE)) {
        return 1;
    }
    return seconds < drift->predicted_s * (1 - CSTD_DRIFT_SHARE) ? -1 : 0;
}

/* Count steps towards the next report. After OFF was reported, only steps as predicted count. */
static void count(struct cstd_drift *drift, int side, double seconds)
{
    bool wanted = drift->off ? side == 0 : side != 0;

    if (!wanted || (side != drift->side && drift->n_off > 0)) {
        drift->n_off = 0;
        drift->sum_s = 0;
    }
    if (wanted) {
        drift->n_off++;
        drift->side = side;
        drift->sum_s += seconds;
    }
}

enum cstd_drift_news cstd_drift_step(struct cstd_drift *drift, double seconds)
{
    drift->n_seen++;
    if (drift->predicted_s == 0) {
        learn(drift, seconds);
        return CSTD_DRIFT_NONE;
    }
    if (!drift->learned && drift->n_seen <= CSTD_DRIFT_SKIP) {
        return CSTD_DRIFT_NONE;
    }
    count(drift, side_of(drift, seconds), seconds);
    if (drift->n_off < CSTD_DRIFT_STEPS) {
        return CSTD_DRIFT_NONE;
    }
    drift->mean_s = drift->sum_s / drift->n_off;
    drift->off = !drift->off;
    drift->n_off = 0;
    drift->sum_s = 0;
    return drift->off ? CSTD_DRIFT_OFF : CSTD_DRIFT_BACK;
}
