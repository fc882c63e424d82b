#include "daemon/balance.h"

#define MOST_LEFT 20u /* often enough */

static double rate_of(const struct cst_balance_rate *rate)
{
    double seen = cst_rates_median_get(&rate->seen);

    return seen > 0 ? seen : rate->known;
}

struct cst_interleave cst_balance_machine(const struct cst_balance *balance,
                                          const struct cst_interleave *machine)
{
    struct cst_interleave m = *machine;

    m.node_elems = rate_of(&balance->node);
    m.device_elems = rate_of(&balance->device);
    m.up = rate_of(&balance->up);
    m.down = rate_of(&balance->down);
    return m;
}

/* -- promises --------------------------------------------------------------------------------- */

/* Steps for which what was measured counts. */
static uint64_t memory_of(const struct cst_balance_tried *tried)
{
    return (uint64_t)CST_BALANCE_MEMORY << (tried->n_left < 2 ? 0 : tried->n_left - 1);
}

/* Seconds that phases with @k took; 0: too few are known, or it was too long ago. */
static double measured(const struct cst_balance *b, const struct cst_interleave *m, uint32_t k)
{
    const struct cst_balance_tried *tried;

    if (k > CST_INTERLEAVE_MOST) { /* as configured */
        return 0;
    }
    tried = &b->tried[k];
    if ((k != b->k && b->n_steps - tried->step >= memory_of(tried)) ||
        tried->phase.n < CST_BALANCE_PHASES) {
        return 0;
    }
    return m->n_chunks * m->chunk_elems / cst_rates_median_get(&tried->phase);
}

static uint32_t distance(uint32_t a, uint32_t b)
{
    return a < b ? b - a : a - b;
}

/* By how much phases with @k will be longer than predicted: as those with the k next to it that was
 * in force lately were. 1: there is none. */
static double stretch(const struct cst_balance *b, const struct cst_interleave *m, uint32_t k)
{
    uint32_t nearest = CST_INTERLEAVE_NEVER;

    for (uint32_t other = 1; other <= CST_INTERLEAVE_MOST; other++) {
        if (measured(b, m, other) > 0 &&
            (nearest == CST_INTERLEAVE_NEVER || distance(other, k) < distance(nearest, k))) {
            nearest = other;
        }
    }
    return nearest == CST_INTERLEAVE_NEVER
               ? 1
               : measured(b, m, nearest) / cst_interleave_seconds(m, nearest);
}

/* @m has its rates. The nodes alone share their memory with nobody: they take what is predicted, at
 * most. */
static double promise(const struct cst_balance *b, const struct cst_interleave *m, uint32_t k)
{
    double took = measured(b, m, k);

    if (took > 0) {
        return took;
    }
    return cst_interleave_seconds(m, k) * (k == CST_INTERLEAVE_NEVER ? 1 : stretch(b, m, k));
}

double cst_balance_promise(const struct cst_balance *balance, const struct cst_interleave *machine,
                           uint32_t k)
{
    struct cst_interleave m = cst_balance_machine(balance, machine);

    return promise(balance, &m, k);
}

/* -- the choice ------------------------------------------------------------------------------- */

/* The k that promises most; the largest of those that are alike. */
static uint32_t find_best(const struct cst_balance *b, const struct cst_interleave *m)
{
    uint32_t k = m->n_chunks < CST_INTERLEAVE_MOST ? m->n_chunks : CST_INTERLEAVE_MOST;
    uint32_t best = CST_INTERLEAVE_NEVER;
    double least = promise(b, m, CST_INTERLEAVE_NEVER);

    for (; k > 0; k--) {
        double seconds = promise(b, m, k);

        if (seconds < least * (1 - 1e-9)) {
            least = seconds;
            best = k;
        }
    }
    return best;
}

static void set(struct cst_balance *b, uint32_t k)
{
    b->k = k;
    b->tried[k].phase.n = 0;
}

void cst_balance_begin(struct cst_balance *balance, const struct cst_interleave *machine)
{
    struct cst_interleave m = cst_balance_machine(balance, machine);

    set(balance, cst_interleave_choose(&m));
}

static bool is_better(const struct cst_balance *b, const struct cst_interleave *m, uint32_t k)
{
    double now = measured(b, m, b->k);
    double then = promise(b, m, k);

    return k == CST_INTERLEAVE_NEVER ? then < now : then < (1 - CST_BALANCE_MARGIN) * now;
}

bool cst_balance_step(struct cst_balance *balance, const struct cst_interleave *machine,
                      const struct cst_balance_phase *last)
{
    struct cst_balance_tried *tried = &balance->tried[balance->k];
    struct cst_interleave m = cst_balance_machine(balance, machine);
    bool seen = last->number == balance->phase;
    uint32_t best;

    balance->n_steps++;
    balance->phase = last->number;
    if (seen || last->k != balance->k) { /* what is set was not in force yet */
        return false;
    }
    tried->step = balance->n_steps;
    cst_rates_median_add(&tried->phase, (uint64_t)(m.n_chunks * m.chunk_elems), last->ns);
    if (tried->phase.n < CST_BALANCE_PHASES || m.n_links == 0) {
        return false;
    }
    best = find_best(balance, &m);
    if (best == balance->k || !is_better(balance, &m, best)) {
        return false;
    }
    tried->n_left += tried->n_left < MOST_LEFT;
    set(balance, best);
    return true;
}
