/* SPDX-License-Identifier: Apache-2.0 */
/* Simulations of the promising points, then of the neighbours of the best. plan.c calls them. */
#include "offload/plan/search.h"

#include "offload/packing.h"

#include <stdlib.h>

#define NONE UINT32_MAX
#define MAX_CLIMBS 24    /* Maximum number of rounds of neighbours. */
#define MAX_PADDING 0.02 /* Default of max_padding. */
#define HAIR 400         /* A step that is longer by at most one part in this many is as good. */
/* A step that is longer by at most one part in this many is good enough to search around it, or to
 * replace a plan with half-empty chunks. */
#define LOCK 50
#define MAX_LAVISH 0.5 /* Share of the weights from which on padding counts as too much. */

/* -- simulations ------------------------------------------------------------------------------ */

/* Simulate point @i if there are events left or, with @any_price, up to a higher limit, which gives
 * CST_ETIMEDOUT. Also returns CST_OK if the point turns out to be impossible. */
static int replay(struct cst_search *s, uint32_t i, bool any_price)
{
    struct cst_plan_try *try = &s->tries[i];
    struct cst_replay_config config = {
        .n_steps = 3, .deadline_events = any_price ? s->events_most : s->events_left};
    struct cst_layout layout;
    struct cst_err err;
    int rc;

    if (try->replayed || (s->events_left == 0 && !any_price) || cst_search_stops(s)) {
        return CST_OK;
    }
    try->replayed = true;
    /* Until its simulation has succeeded the point cannot be the best. */
    try->result.step_ns = UINT64_MAX;
    rc = cst_search_layout(s, try, &layout, &err);
    if (rc != CST_OK) {
        return rc == CST_ENOMEM ? rc : CST_OK;
    }
    rc = cst_search_play(s, try, &layout, &config, &try->result, &err);
    cst_layout_close(&layout);
    if (rc == CST_ETIMEDOUT) {
        s->events_left = 0;
        s->lack.err = any_price ? err : s->lack.err;
        return any_price ? rc : CST_OK;
    }
    if (rc != CST_OK) {
        s->lack.err = err;
        try->result.step_ns = UINT64_MAX;
        return rc == CST_ENOMEM ? rc : CST_OK;
    }
    s->n_replayed++;
    s->n_events += try->result.n_events;
    s->events_left -= try->result.n_events < s->events_left ? try->result.n_events : s->events_left;
    if (s->best == NONE || cst_search_is_better(try, &s->tries[s->best])) {
        s->best = i;
    }
    return CST_OK;
}

static int by_estimate(const void *a, const void *b)
{
    const struct cst_plan_try *x = a, *y = b;

    if (x->estimate_ns != y->estimate_ns) {
        return x->estimate_ns < y->estimate_ns ? -1 : 1;
    }
    return (x->n_chunks > y->n_chunks) - (x->n_chunks < y->n_chunks);
}

static bool can_win(const struct cst_search *s, const struct cst_plan_try *try)
{
    return s->best == NONE || try->bound_ns < s->tries[s->best].result.step_ns;
}

/* Padding as a share of the weights. */
static double padding_of(const struct cst_search *s, const struct cst_plan_try *try)
{
    return (double)try->padding_bytes / (2 * (double)s->config->model->n_params);
}

static double max_padding(const struct cst_search *s)
{
    return s->config->max_padding > 0 ? s->config->max_padding : MAX_PADDING;
}

static bool is_thrifty(const struct cst_search *s, const struct cst_plan_try *try)
{
    return padding_of(s, try) <= max_padding(s);
}

/* The search was stopped before any point was simulated: take the one with the shortest estimate,
 * of those with little padding if there are any. */
static void take_estimate(struct cst_search *s)
{
    uint32_t found = 0;

    while (found < s->n_tries && !is_thrifty(s, &s->tries[found])) {
        found++;
    }
    found = found < s->n_tries ? found : 0;
    s->tries[found].result = (struct cst_replay_result){.step_ns = s->tries[found].estimate_ns};
    s->best = found;
}

/* Simulate points until one is possible, those with little padding first. */
static int replay_any(struct cst_search *s)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < 2 * s->n_tries && rc == CST_OK && s->best == NONE; i++) {
        uint32_t number = i % s->n_tries;

        if (is_thrifty(s, &s->tries[number]) == (i < s->n_tries)) {
            s->tries[number].replayed = false;
            rc = replay(s, number, true);
        }
    }
    if (s->stopped && s->best == NONE && s->n_tries > 0 && rc != CST_ENOMEM) {
        take_estimate(s);
        rc = CST_OK;
    }
    return rc;
}

/* Sort the points, the most promising ones first, and find the best again. */
static void sort(struct cst_search *s)
{
    qsort(s->tries, s->n_tries, sizeof *s->tries, by_estimate);
    s->best = NONE;
    for (uint32_t i = 0; i < s->n_tries; i++) {
        const struct cst_plan_try *try = &s->tries[i];

        if (try->replayed && try->result.step_ns != UINT64_MAX &&
            (s->best == NONE || cst_search_is_better(try, &s->tries[s->best]))) {
            s->best = i;
        }
    }
}

/* Simulate the promising points until half of the events are used. */
int cst_search_replay(struct cst_search *s)
{
    uint64_t keep = s->events_left / 2;
    int rc = CST_OK;

    if (s->n_tries > 0) {
        sort(s);
    }
    for (uint32_t i = 0; i < s->n_tries && rc == CST_OK; i++) {
        if (s->best != NONE && s->events_left < keep) {
            break;
        }
        if (can_win(s, &s->tries[i]) && (!s->splits || s->tries[i].device_states > 0)) {
            rc = replay(s, i, false);
        }
    }
    return rc == CST_OK ? replay_any(s) : rc;
}

static uint64_t step_limit(const struct cst_search *s, uint64_t part)
{
    const struct cst_plan_try *best = &s->tries[s->best];

    return best->result.step_ns + best->result.step_ns / part;
}

/* The best point with little padding that is not slower than the best by more than one part in
 * @hair; or the best point. */
static uint32_t thriftiest(const struct cst_search *s, uint64_t hair)
{
    uint64_t limit = step_limit(s, hair);
    uint32_t found = NONE;

    for (uint32_t i = 0; i < s->n_tries; i++) {
        const struct cst_plan_try *try = &s->tries[i];

        if (try->replayed && try->result.step_ns <= limit && is_thrifty(s, try) &&
            (found == NONE || cst_search_is_better(try, &s->tries[found]))) {
            found = i;
        }
    }
    return found == NONE ? s->best : found;
}

/* Of the points that are not much slower than the best, the one with the least padding. */
static uint32_t least_wasteful(const struct cst_search *s)
{
    uint64_t limit = step_limit(s, LOCK);
    uint32_t found = s->best;

    for (uint32_t i = 0; i < s->n_tries; i++) {
        const struct cst_plan_try *try = &s->tries[i];

        if (try->replayed && try->result.step_ns <= limit &&
            try->padding_bytes < s->tries[found].padding_bytes) {
            found = i;
        }
    }
    return found;
}

/* -- neighbours ----------------------------------------------------------------------------- */

static int visit(struct cst_search *s, const struct cst_plan_try *try,
                 const struct cst_layout *layout)
{
    uint32_t number;
    int rc = cst_search_add(s, *try, layout, &number);

    return rc == CST_OK && number != NONE && can_win(s, &s->tries[number])
               ? replay(s, number, false)
               : rc;
}

static bool may_have_room(const struct cst_search *s, const struct cst_plan_try *try)
{
    return s->room_request == CST_PLAN_DEVICE_UPDATE_AUTO && s->n_rooms > 0 && try->state_room == 0;
}

/* Visit @try with its states on accelerators reduced to whole chunks that fit. @layout has no such
 * states. */
static int visit_settled(struct cst_search *s, struct cst_plan_try try,
                         const struct cst_layout *layout)
{
    struct cst_layout with;
    struct cst_err err;
    bool found;
    int rc;

    if (!s->splits || try.device_states == 0) {
        return visit(s, &try, layout);
    }
    rc = cst_search_settle(s, &try, layout, &with, &found, &err);
    if (rc != CST_OK || !found) {
        return rc == CST_ENOMEM ? rc : CST_OK;
    }
    rc = visit(s, &try, &with);
    cst_layout_close(&with);
    return rc;
}

/* Try device reservations for other classes, and other amounts of states on accelerators, with the
 * same layout. If the planner chooses these states, @layout has none. */
static int climb_rooms(struct cst_search *s, const struct cst_plan_try *from,
                       const struct cst_layout *layout)
{
    static const double shares[] = {0.8, 0.95, 1.05, 1.25};
    bool is_auto = s->room_request == CST_PLAN_DEVICE_UPDATE_AUTO,
         splits = s->splits && from->state_room == 0;
    struct cst_plan_try try = *from;
    int rc = CST_OK;

    try.replayed = false;
    for (uint32_t n = 0; n <= layout->n_classes && may_have_room(s, from) && rc == CST_OK; n++) {
        try.n_through = n;
        rc = visit_settled(s, try, layout);
    }
    try.n_through = from->n_through;
    for (uint32_t i = 0; i < 4 && splits && from->device_states > 0 && rc == CST_OK; i++) {
        try.device_states = (uint64_t)((double)from->device_states * shares[i]);
        rc = visit_settled(s, try, layout);
    }
    for (uint32_t n = is_auto ? 1 : layout->n_classes;
         n <= layout->n_classes && splits && rc == CST_OK; n++) {
        try.n_through = n;
        rc = cst_search_each_split(s, &try, layout, visit);
    }
    return rc;
}

static int climb_eviction(struct cst_search *s, const struct cst_plan_try *from,
                          const struct cst_layout *own)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < 2 && rc == CST_OK; i++) {
        struct cst_plan_try try = *from;

        try.replayed = false;
        try.eviction = i == 0 ? CST_EVICT_LRU : CST_EVICT_NEXT_USE;
        rc = visit(s, &try, own);
    }
    return rc;
}

/* Try other depths, other amounts of states on devices, and fewer blocks. */
static int climb_depth(struct cst_search *s, const struct cst_plan_try *from,
                       const struct cst_layout *own)
{
    static const uint32_t depths[] = {0, 1, 2, 3, 4, 8};
    static const double shares[] = {0.5, 0.8, 0.95, 1.05, 1.25, 2};
    int rc = CST_OK;

    for (uint32_t i = 0; i < 6 && rc == CST_OK; i++) {
        struct cst_plan_try try = *from;

        try.replayed = false;
        try.depth = depths[i];
        rc = visit(s, &try, own);
        try.depth = from->depth;
        if (rc == CST_OK && from->state_room > 0) {
            try.state_room = (uint64_t)((double)from->state_room * shares[i]);
            try.state_room = try.state_room < s->room ? try.state_room : s->room;
            rc = visit(s, &try, own);
            try.state_room = from->state_room;
        }
        if (rc == CST_OK && shares[i] < 1) {
            try.block_room = (uint64_t)((double)from->pool_bytes * shares[i]);
            rc = visit(s, &try, own);
        }
    }
    return rc;
}

/* Try other parameters with the same capacities. The point's own layout can be used for all changes
 * that do not affect states on accelerators. */
static int climb_knobs(struct cst_search *s, const struct cst_plan_try *from)
{
    bool stay = s->splits && from->device_states > 0;
    struct cst_plan_try plain = *from;
    struct cst_layout layout, with;
    const struct cst_layout *own = stay ? &with : &layout;
    struct cst_err err;
    int rc;

    /* Whether gradients must be in weight rows is decided for each point anew. */
    plain.over = false;
    if (stay) {
        rc = cst_search_layout(s, &plain, &with, &err);
        if (rc != CST_OK) {
            return rc;
        }
        plain.device_states = 0;
    }
    rc = cst_search_layout(s, &plain, &layout, &err);
    if (rc == CST_OK) {
        rc = climb_eviction(s, from, own);
        rc = rc == CST_OK ? climb_rooms(s, from, &layout) : rc;
        rc = rc == CST_OK ? climb_depth(s, from, own) : rc;
        cst_layout_close(&layout);
    }
    if (stay) {
        cst_layout_close(&with);
    }
    return rc;
}

/* Try other capacities with the same shares. */
static int climb_capacity(struct cst_search *s, const struct cst_plan_try *from)
{
    static const double factors[] = {0.5, 0.7, 0.85, 0.93, 1.08, 1.2, 1.5, 2};
    int rc = CST_OK;

    for (uint32_t i = 0; i < 8 && rc == CST_OK && s->config->chunk_elems == 0; i++) {
        uint64_t elems =
            cst_align_up((uint64_t)((double)from->sizes[0] * factors[i]), CST_LAYOUT_CAPACITY_STEP);
        struct cst_plan_try try;
        struct cst_layout layout;
        bool found;

        rc = cst_search_find(s, elems, &try, &layout, &found);
        if (rc != CST_OK || !found) {
            continue;
        }
        try.state_room = from->state_room;
        try.device_states = from->device_states;
        try.holds = from->holds;
        try.first_class = from->first_class < layout.n_classes ? from->first_class : 0;
        try.once = from->once;
        try.n_through = from->n_through < layout.n_classes ? from->n_through : layout.n_classes;
        try.depth = from->depth;
        try.eviction = from->eviction;
        rc = visit_settled(s, try, &layout);
        cst_layout_close(&layout);
    }
    return rc;
}

int cst_search_climb(struct cst_search *s)
{
    int rc = CST_OK;

    if (cst_search_stops(s)) {
        return CST_OK;
    }
    for (uint32_t round = 0; round < MAX_CLIMBS && rc == CST_OK && s->best != NONE; round++) {
        uint32_t before = s->best;
        /* A copy, because s->tries can be reallocated. */
        struct cst_plan_try from = s->tries[before];

        rc = climb_knobs(s, &from);
        if (rc == CST_OK) {
            from = s->tries[s->best];
            rc = climb_capacity(s, &from);
        }
        if (s->best == before || s->events_left == 0 || s->stopped) {
            break;
        }
    }
    /* The best point can be wasteful: also search around one that wastes little. */
    if (rc == CST_OK && s->best != NONE && s->events_left > 0 && !s->stopped) {
        struct cst_plan_try from = s->tries[thriftiest(s, LOCK)];

        rc = climb_knobs(s, &from);
        rc = rc == CST_OK ? climb_capacity(s, &from) : rc;
    }
    return rc;
}

uint32_t cst_search_thriftiest(const struct cst_search *s)
{
    uint32_t found = thriftiest(s, HAIR);
    double padding = padding_of(s, &s->tries[found]);

    if (padding <= MAX_LAVISH || padding <= max_padding(s)) {
        return found;
    }
    found = thriftiest(s, LOCK);
    return is_thrifty(s, &s->tries[found]) ? found : least_wasteful(s);
}
