/* SPDX-License-Identifier: Apache-2.0 */
/* The search. It starts from all combinations of a few values of each knob, simulates the promising
 * ones, and improves the best by coordinate descent: one knob after another gets its best value,
 * until no value of any knob is better. */
#include "offload/plan/knobs.h"

#include <math.h>
#include <stdlib.h>

#define NONE UINT32_MAX
#define LEAST_GAIN 1e-4 /* The descent ends if a round through the knobs gains less than this. */

/* -- points ----------------------------------------------------------------------------------- */

static bool is_same(const struct cst_plan_point *a, const struct cst_plan_point *b)
{
    bool same = true;

    for (uint32_t k = 0; k < CST_KNOBS && same; k++) {
        same = !cst_knob_differs(&cst_knobs[k], a, b);
    }
    return same;
}

/* Add @point if it fits and is new. *number: its number or that of an equal point; NONE: it does
 * not fit. */
static int add(struct cst_search *s, struct cst_plan_point point, uint32_t *number)
{
    const struct cst_layout *layout;
    int rc = cst_search_prepare(s, &point, &layout);

    *number = NONE;
    if (rc != CST_OK || layout == NULL || !cst_search_fit(s, &point, layout)) {
        return rc;
    }
    for (uint32_t i = 0; i < s->n_points; i++) {
        if (is_same(&s->points[i], &point)) {
            *number = i;
            return CST_OK;
        }
    }
    if (s->n_points == s->capacity) {
        uint32_t grown = s->capacity == 0 ? 64 : 2 * s->capacity;
        struct cst_plan_point *points = realloc(s->points, grown * sizeof *points);

        if (points == NULL) {
            return CST_ENOMEM;
        }
        s->points = points;
        s->capacity = grown;
    }
    cst_search_bound(s, &point, layout);
    point.estimated_cost = cst_search_cost(s, &point, point.estimate_ns);
    point.replayed = false;
    *number = s->n_points;
    s->points[s->n_points++] = point;
    return CST_OK;
}

static bool can_win(const struct cst_search *s, const struct cst_plan_point *point)
{
    return s->best == NONE ||
           cst_search_cost(s, point, point->bound_ns) <
               cst_search_cost(s, &s->points[s->best], s->points[s->best].result.step_ns);
}

/* Simulate point @i if there are events left or, with @any_price, up to a higher limit, which gives
 * CST_ETIMEDOUT. Also returns CST_OK if the point turns out to be impossible. */
static int simulate(struct cst_search *s, uint32_t i, bool any_price)
{
    struct cst_plan_point *point = &s->points[i];
    struct cst_replay_config config = {
        .n_steps = 3, .deadline_events = any_price ? s->events_most : s->events_left};
    const struct cst_layout *layout;
    struct cst_err err;
    int rc;

    if (point->replayed || (s->events_left == 0 && !any_price) || cst_search_stops(s)) {
        return CST_OK;
    }
    point->replayed = true;
    point->result.step_ns = UINT64_MAX;
    rc = cst_search_layout(s, point, &layout, &err);
    if (rc != CST_OK) {
        return rc == CST_ENOMEM ? rc : CST_OK;
    }
    rc = cst_search_simulate(s, point, layout, &config, &point->result, &err);
    if (rc != CST_OK) {
        point->result.step_ns = UINT64_MAX;
        s->events_left = rc == CST_ETIMEDOUT ? 0 : s->events_left;
        s->lack.err = rc != CST_ETIMEDOUT || any_price ? err : s->lack.err;
        return rc == CST_ENOMEM || (rc == CST_ETIMEDOUT && any_price) ? rc : CST_OK;
    }
    s->n_replayed++;
    s->n_events += point->result.n_events;
    s->events_left -=
        point->result.n_events < s->events_left ? point->result.n_events : s->events_left;
    if (s->best == NONE || cst_search_is_better(s, point, &s->points[s->best])) {
        s->best = i;
    }
    return CST_OK;
}

/* -- the starting points ---------------------------------------------------------------------- */

/* Add all points with @point's values of the first @k knobs. */
static int expand(struct cst_search *s, const struct cst_plan_point *point, uint32_t k)
{
    const struct cst_knob *knob = &cst_knobs[k];
    uint32_t number;
    int rc = CST_OK;

    if (k == CST_KNOBS) {
        return add(s, *point, &number);
    }
    if (knob->start == NULL || !cst_knob_fits(knob, s, point)) {
        return expand(s, point, k + 1);
    }
    for (uint32_t i = 0; rc == CST_OK && !s->stopped; i++) {
        struct cst_plan_point next = *point;

        rc = knob->start(s, i, &next);
        if (rc == CST_OK && next.n_sizes > 0) {
            rc = expand(s, &next, k + 1);
        }
    }
    return rc == CST_ENOTFOUND ? CST_OK : rc;
}

/* If the sizes of device reservations and states on accelerators are given, they are part of each
 * layout. */
static int list_points(struct cst_search *s)
{
    struct cst_plan_point point = {.pool_limit = UINT64_MAX, .lends = s->lends};

    if (s->config->device_states != CST_PLAN_DEVICE_UPDATE_AUTO) {
        point.device_states = s->config->device_states;
        point.device_update_bytes = s->config->device_update_bytes;
    }
    return expand(s, &point, 0);
}

/* -- the promising points --------------------------------------------------------------------- */

static int by_estimate(const void *a, const void *b)
{
    const struct cst_plan_point *x = a, *y = b;

    if (x->estimated_cost != y->estimated_cost) {
        return x->estimated_cost < y->estimated_cost ? -1 : 1;
    }
    return (x->n_chunks > y->n_chunks) - (x->n_chunks < y->n_chunks);
}

/* Sort the points, the most promising ones first, and find the best again. */
static void sort(struct cst_search *s)
{
    qsort(s->points, s->n_points, sizeof *s->points, by_estimate);
    s->best = NONE;
    for (uint32_t i = 0; i < s->n_points; i++) {
        const struct cst_plan_point *point = &s->points[i];

        if (point->replayed && point->result.step_ns != UINT64_MAX &&
            (s->best == NONE || cst_search_is_better(s, point, &s->points[s->best]))) {
            s->best = i;
        }
    }
}

/* Simulate points until one is possible. If the search is stopped before that, the best is the
 * point with the shortest estimate. */
static int simulate_any(struct cst_search *s)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < s->n_points && rc == CST_OK && s->best == NONE; i++) {
        s->points[i].replayed = false;
        rc = simulate(s, i, true);
    }
    if (s->stopped && s->best == NONE && s->n_points > 0 && rc != CST_ENOMEM) {
        s->points[0].result = (struct cst_replay_result){.step_ns = s->points[0].estimate_ns};
        s->best = 0;
        rc = CST_OK;
    }
    return rc;
}

/* Simulate the promising points until half of the events are used. */
static int simulate_promising(struct cst_search *s)
{
    uint64_t keep = s->events_left / 2;
    int rc = CST_OK;

    if (s->n_points > 0) {
        sort(s);
    }
    for (uint32_t i = 0; i < s->n_points && rc == CST_OK; i++) {
        if (s->best != NONE && s->events_left < keep) {
            break;
        }
        if (can_win(s, &s->points[i]) && (!s->splits || s->points[i].device_states > 0)) {
            rc = simulate(s, i, false);
        }
    }
    return rc == CST_OK ? simulate_any(s) : rc;
}

/* -- the descent ------------------------------------------------------------------------------ */

/* Try the values of @knob near that of the best point. */
static int vary(struct cst_search *s, const struct cst_knob *knob)
{
    /* A copy, because s->points can be reallocated. */
    const struct cst_plan_point from = s->points[s->best];
    int rc = cst_knob_fits(knob, s, &from) ? CST_OK : CST_ENOTFOUND;

    for (uint32_t i = 0; rc == CST_OK && s->events_left > 0 && !s->stopped; i++) {
        struct cst_plan_point point = from;
        uint32_t number = NONE;

        rc = knob->near(s, i, &point);
        rc = rc == CST_OK ? add(s, point, &number) : rc;
        if (rc == CST_OK && number != NONE && can_win(s, &s->points[number])) {
            rc = simulate(s, number, false);
        }
    }
    return rc == CST_ENOTFOUND ? CST_OK : rc;
}

/* Cost of the best point. */
static double best_cost(const struct cst_search *s)
{
    return cst_search_cost(s, &s->points[s->best], s->points[s->best].result.step_ns);
}

static int descend(struct cst_search *s)
{
    double before = INFINITY;
    int rc = CST_OK;

    while (rc == CST_OK && best_cost(s) < before * (1 - LEAST_GAIN)) {
        before = best_cost(s);
        for (uint32_t k = 0; k < CST_KNOBS && rc == CST_OK; k++) {
            rc = vary(s, &cst_knobs[k]);
        }
    }
    return rc;
}

int cst_search_run(struct cst_search *s)
{
    int rc = list_points(s);

    rc = rc == CST_OK ? simulate_promising(s) : rc;
    return rc == CST_OK && s->best != NONE ? descend(s) : rc;
}
