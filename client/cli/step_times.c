/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/step_times.h"

#include <math.h>
#include <stdlib.h>

const char *const cli_step_part_names[CLI_STEP_PARTS + 1] = {
    "compute", "wait for weights", "exposed update", "wait for gradients or commit", "other", NULL};

/* What a rank can be doing, the first that holds counts. */
enum state { COMMITS, WAITS, WAITS_GRAD, COMPUTES, N_STATES };

/* A state of the rank begins (change 1) or ends (-1). */
struct edge {
    uint64_t at;
    enum state state;
    int change;
};

/* False: @i is not what a rank was doing. */
static bool state_of(const Cistern__TraceInterval *i, enum state *out)
{
    if (i->kind == CISTERN__TRACE_INTERVAL__KIND__COMMIT) {
        *out = COMMITS;
    } else if (i->kind == CISTERN__TRACE_INTERVAL__KIND__LEASE) {
        *out = COMPUTES;
    } else if (i->kind == CISTERN__TRACE_INTERVAL__KIND__WAIT && !i->ahead) {
        *out = i->grad ? WAITS_GRAD : WAITS;
    } else {
        return false;
    }
    return true;
}

/* Write what @rank did between @from and @to to @out, in which there is room for two edges of each
 * interval. */
static size_t get_edges(const struct cli_intervals *intervals, uint32_t rank, uint64_t from,
                        uint64_t to, struct edge *out)
{
    size_t n = 0;

    for (size_t k = 0; k < intervals->n; k++) {
        const Cistern__TraceInterval *i = &intervals->v[k];
        const uint64_t end = i->began_ns + i->ns;
        enum state state;

        if (state_of(i, &state) && i->number == rank && end > from && i->began_ns < to) {
            out[n++] = (struct edge){i->began_ns > from ? i->began_ns : from, state, 1};
            out[n++] = (struct edge){end < to ? end : to, state, -1};
        }
    }
    return n;
}

static int compare(const void *a, const void *b)
{
    const struct edge *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

/* Add up the time of each state. */
static void sum(struct edge *edges, size_t n, double out[N_STATES])
{
    int active[N_STATES] = {0};

    qsort(edges, n, sizeof *edges, compare);
    for (size_t i = 0; i < n; i++) {
        active[edges[i].state] += edges[i].change;
        for (int s = 0; s < N_STATES && i + 1 < n; s++) {
            if (active[s] > 0) {
                out[s] += (double)(edges[i + 1].at - edges[i].at) * 1e-9;
                break;
            }
        }
    }
}

/* The exposed update time is in the waits of the step. */
static void divide(const double states[N_STATES], double exposed, struct cli_step_time *out)
{
    const double of_weights = fmin(exposed, states[WAITS]);
    const double of_commit = fmin(exposed - of_weights, states[COMMITS]);
    double *parts = out->parts;

    parts[CLI_STEP_COMPUTE] = states[COMPUTES];
    parts[CLI_STEP_WEIGHTS] = states[WAITS] - of_weights;
    parts[CLI_STEP_UPDATE] = of_weights + of_commit;
    parts[CLI_STEP_COMMIT] = states[WAITS_GRAD] + states[COMMITS] - of_commit;
    parts[CLI_STEP_OTHER] = out->seconds;
    for (int p = 0; p < CLI_STEP_OTHER; p++) {
        parts[CLI_STEP_OTHER] -= parts[p];
    }
    if (parts[CLI_STEP_OTHER] < 0) {
        parts[CLI_STEP_OTHER] = 0; /* A rounding error. */
    }
}

bool cli_step_is_whole(const struct cli_intervals *intervals, const Cistern__TraceInterval *step)
{
    const Cistern__TraceInterval *first = &intervals->v[0];

    return step->kind == CISTERN__TRACE_INTERVAL__KIND__STEP &&
           (!intervals->lost || step->began_ns >= first->began_ns + first->ns);
}

static size_t count_steps(const struct cli_intervals *intervals)
{
    size_t n = 0;

    for (size_t i = 0; i < intervals->n; i++) {
        n += cli_step_is_whole(intervals, &intervals->v[i]);
    }
    return n;
}

static void add_step(const struct cli_intervals *intervals, const Cistern__TraceInterval *step,
                     uint32_t n_ranks, struct edge *edges, struct cli_step_time *out)
{
    for (uint32_t r = 0; r < n_ranks; r++) {
        double states[N_STATES] = {0};

        out[r] = (struct cli_step_time){
            .step = step->step, .rank = r, .seconds = (double)step->ns * 1e-9};
        sum(edges, get_edges(intervals, r, step->began_ns, step->began_ns + step->ns, edges),
            states);
        divide(states, (double)step->exposed_ns * 1e-9, &out[r]);
    }
}

struct cli_step_time *cli_step_times(const struct cli_intervals *intervals, uint32_t n_ranks,
                                     size_t most, size_t *n, bool *failed)
{
    size_t n_steps = count_steps(intervals), skip = n_steps > most ? n_steps - most : 0;
    struct cli_step_time *out = calloc((n_steps - skip) * n_ranks + 1, sizeof *out);
    struct edge *edges = calloc(2 * intervals->n + 1, sizeof *edges);

    *n = 0;
    *failed = out == NULL || edges == NULL;
    for (size_t i = 0; i < intervals->n && !*failed; i++) {
        if (!cli_step_is_whole(intervals, &intervals->v[i])) {
            continue;
        }
        if (skip > 0) {
            skip--;
            continue;
        }
        add_step(intervals, &intervals->v[i], n_ranks, edges, out + *n);
        *n += n_ranks;
    }
    free(edges);
    if (*failed) {
        free(out);
        out = NULL;
    }
    return out;
}
