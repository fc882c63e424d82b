/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/interleave_tuner.h"

/* Maximum of n_left. It bounds the shift in memory_of. */
#define MOST_LEFT 20u

static double rate_of(const struct cstd_interleave_tuner_rate *rate)
{
    double seen = cstd_rates_median_get(&rate->seen);

    return seen > 0 ? seen : rate->known;
}

struct cst_interleave cstd_interleave_tuner_machine(const struct cstd_interleave_tuner *tuner,
                                                    const struct cst_interleave *machine)
{
    struct cst_interleave m = *machine;

    m.node_elems = rate_of(&tuner->node);
    m.device_elems = rate_of(&tuner->device);
    m.up = rate_of(&tuner->up);
    m.down = rate_of(&tuner->down);
    return m;
}

/* -- expected durations ----------------------------------------------------------------------- */

/* Number of steps for which a measurement counts. The number doubles each time that its k was
 * replaced again. */
static uint64_t memory_of(const struct cstd_interleave_tuner_tried *tried)
{
    return (uint64_t)CSTD_INTERLEAVE_TUNER_MEMORY << (tried->n_left < 2 ? 0 : tried->n_left - 1);
}

/* Measured seconds of an update phase with @k; 0: there are too few measurements, or they are too
 * old. */
static double measured(const struct cstd_interleave_tuner *b, const struct cst_interleave *m,
                       uint32_t k)
{
    const struct cstd_interleave_tuner_tried *tried = &b->tried[k];

    if ((k != b->k && b->n_steps - tried->step >= memory_of(tried)) ||
        tried->phase.n < CSTD_INTERLEAVE_TUNER_PHASES) {
        return 0;
    }
    return m->n_chunks * m->chunk_elems / cstd_rates_median_get(&tried->phase);
}

/* What the measurements say about each k. Computed once per choice, because each prediction of
 * cst_interleave_seconds simulates a phase. */
struct lessons {
    /* Measured seconds of a phase by k; 0: not measured. */
    double measured[CST_INTERLEAVE_MOST + 1];
    /* Ratio of measured to predicted seconds by k. A k that was not measured gets the ratio of the
     * nearest measured k, of the lower one of two equally near ones. 1: no k was measured. */
    double stretch[CST_INTERLEAVE_MOST + 1];
};

/* Fill @l. @m must contain the rates (cstd_interleave_tuner_machine). */
static void learn(struct lessons *l, const struct cstd_interleave_tuner *b,
                  const struct cst_interleave *m)
{
    /* Nearest measured k that is not above the index; CST_INTERLEAVE_NEVER: none. */
    uint32_t below[CST_INTERLEAVE_MOST + 1];
    uint32_t above = CST_INTERLEAVE_NEVER;

    l->measured[CST_INTERLEAVE_NEVER] = measured(b, m, CST_INTERLEAVE_NEVER);
    /* Without device updates the nodes share their memory with nobody, and their rate needs no
     * correction. */
    l->stretch[CST_INTERLEAVE_NEVER] = 1;
    below[0] = CST_INTERLEAVE_NEVER;
    for (uint32_t k = 1; k <= CST_INTERLEAVE_MOST; k++) {
        l->measured[k] = measured(b, m, k);
        l->stretch[k] = l->measured[k] > 0 ? l->measured[k] / cst_interleave_seconds(m, k) : 1;
        below[k] = l->measured[k] > 0 ? k : below[k - 1];
    }
    for (uint32_t k = CST_INTERLEAVE_MOST; k > 0; k--) {
        uint32_t nearest = below[k];

        above = l->measured[k] > 0 ? k : above;
        if (above != CST_INTERLEAVE_NEVER &&
            (nearest == CST_INTERLEAVE_NEVER || above - k < k - nearest)) {
            nearest = above;
        }
        l->stretch[k] = nearest == CST_INTERLEAVE_NEVER ? 1 : l->stretch[nearest];
    }
}

/* Expected seconds of a phase with @k. @m must contain the rates. */
static double promise(const struct lessons *l, const struct cst_interleave *m, uint32_t k)
{
    /* A configured k may be larger than the table. */
    uint32_t known = k < CST_INTERLEAVE_MOST ? k : CST_INTERLEAVE_MOST;

    if (k == known && l->measured[k] > 0) {
        return l->measured[k];
    }
    return cst_interleave_seconds(m, k) * l->stretch[known];
}

double cstd_interleave_tuner_promise(const struct cstd_interleave_tuner *tuner,
                                     const struct cst_interleave *machine, uint32_t k)
{
    struct cst_interleave m = cstd_interleave_tuner_machine(tuner, machine);
    struct lessons lessons;

    learn(&lessons, tuner, &m);
    return promise(&lessons, &m, k);
}

/* -- choice of k ------------------------------------------------------------------------------ */

/* Returns the k with the shortest expected phase, the largest of several equal ones. Larger k means
 * fewer device updates. */
static uint32_t find_best(const struct lessons *l, const struct cst_interleave *m)
{
    uint32_t k = m->n_chunks < CST_INTERLEAVE_MOST ? m->n_chunks : CST_INTERLEAVE_MOST;
    uint32_t best = CST_INTERLEAVE_NEVER;
    double least = promise(l, m, CST_INTERLEAVE_NEVER);

    for (; k > 0; k--) {
        double seconds = promise(l, m, k);

        if (seconds < least * (1 - 1e-9)) {
            least = seconds;
            best = k;
        }
    }
    return best;
}

static void set(struct cstd_interleave_tuner *b, uint32_t k)
{
    b->k = k;
    b->tried[k].phase.n = 0;
}

void cstd_interleave_tuner_begin(struct cstd_interleave_tuner *tuner,
                                 const struct cst_interleave *machine)
{
    struct cst_interleave m = cstd_interleave_tuner_machine(tuner, machine);

    set(tuner, cst_interleave_choose(&m));
}

/* True if @k should replace @present. */
static bool is_better(const struct lessons *l, const struct cst_interleave *m, uint32_t k,
                      uint32_t present)
{
    double now = l->measured[present];
    double then = promise(l, m, k);

    return k == CST_INTERLEAVE_NEVER ? then < now : then < (1 - CSTD_INTERLEAVE_TUNER_MARGIN) * now;
}

bool cstd_interleave_tuner_step(struct cstd_interleave_tuner *tuner,
                                const struct cst_interleave *machine,
                                const struct cstd_interleave_tuner_phase *last)
{
    struct cstd_interleave_tuner_tried *tried = &tuner->tried[tuner->k];
    struct cst_interleave m = cstd_interleave_tuner_machine(tuner, machine);
    bool seen = last->number == tuner->phase;
    struct lessons lessons;
    uint32_t best;

    tuner->n_steps++;
    tuner->phase = last->number;
    /* Skip a phase that was counted before, and a phase that was made with an earlier k. */
    if (seen || last->k != tuner->k) {
        return false;
    }
    tried->step = tuner->n_steps;
    cstd_rates_median_add(&tried->phase, (uint64_t)(m.n_chunks * m.chunk_elems), last->ns);
    if (tried->phase.n < CSTD_INTERLEAVE_TUNER_PHASES || m.n_links == 0) {
        return false;
    }
    learn(&lessons, tuner, &m);
    best = find_best(&lessons, &m);
    if (best == tuner->k || !is_better(&lessons, &m, best, tuner->k)) {
        return false;
    }
    /* The measurement of the k that is replaced will be trusted longer than the last time.
     * Otherwise a k that is slower than its prediction would be tried again and again. */
    tried->n_left += tried->n_left < MOST_LEFT;
    set(tuner, best);
    return true;
}
