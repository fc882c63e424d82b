/* SPDX-License-Identifier: Apache-2.0 */
/* The search from begin to end: without states on accelerators, with them, and the answer. */
#include "offload/plan/drives.h"
#include "offload/plan/knobs.h"

#include "offload/layout/buffers.h"
#include "offload/layout/packing.h"
#include "offload/plan/reservation.h"
#include "proto/round_up.h"

#include <inttypes.h>
#include <string.h>

#define NONE UINT32_MAX

/* -- the answer ----------------------------------------------------------------------------- */

/* Compute the least memory with which a device reservation fits one chunk, and one chunk's states
 * fit. */
static void describe_least(const struct cst_search *s, const struct cst_layout *layout,
                           struct cst_plan_choice *choice)
{
    const struct cst_layout_device device = {.grain = s->grain};

    if (s->n_reservations > 0) {
        choice->least_reservation =
            cst_reservation_of_rank(s, cst_round_up(cst_buffers_least(layout), s->grain));
        choice->least_states = cst_reservation_of_rank(s, cst_layout_device_least(layout, &device));
    }
}

/* Number of chunks that the device reservation @reservation, or the pool that lends, holds at a
 * time. */
static uint32_t count_buffers(const struct cst_search *s, const struct cst_plan_point *point,
                              const struct cst_layout *layout,
                              const struct cst_core_device_reservation *reservation)
{
    struct cst_buffers buffers;

    if (reservation->lent) {
        return cst_reservation_lent_buffers(s, point, layout, reservation->rank);
    }
    cst_buffers_divide(&buffers, layout, reservation->bytes);
    return buffers.n;
}

static void describe_reservation(const struct cst_search *s, const struct cst_plan_point *point,
                                 const struct cst_layout *layout, struct cst_plan_choice *choice)
{
    struct cst_core_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];

    describe_least(s, layout, choice);
    if (cst_reservation_list(s, point, layout, reservations, &choice->interleave) > 0) {
        choice->n_buffers = count_buffers(s, point, layout, &reservations[0]);
    }
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        choice->n_staying += cst_tier_is_apart(layout->chunks[c].tier) &&
                             !cst_drives_have(s, layout->chunks[c].tier);
    }
    cst_drives_describe(s, layout, choice);
    choice->state_bytes = (layout->device_bytes - choice->drive_bytes + s->world - 1) / s->world;
}

static int make_choice(struct cst_search *s, const struct cst_plan_point *point,
                       struct cst_plan_choice *out, struct cst_err *err)
{
    struct cst_plan_choice choice = {
        .layout = cst_search_layout_config(s, point),
        .n_classes = point->n_sizes,
        .prefetch_depth = point->depth,
        .n_chunks = point->n_chunks,
        .pool_bytes = point->pool_bytes,
        .device_update_bytes = point->device_update_bytes,
        .lends = point->lends,
        .device_states = point->device_states,
        .activation_bytes = s->activation_bytes,
        .host_bytes = point->host_bytes,
        .padding_bytes = point->padding_bytes,
        .bound_ns = point->bound_ns,
        .predicted = point->result,
    };
    const struct cst_layout *layout;
    int rc = cst_search_layout(s, point, &layout, err);

    if (rc != CST_OK) {
        return rc;
    }
    memcpy(choice.n_blocks, point->n_blocks, sizeof choice.n_blocks);
    describe_reservation(s, point, layout, &choice);
    choice.binds = point == &s->points[s->best] ? cst_search_binds(s, point, layout) : "";
    *out = choice;
    return CST_OK;
}

/* True if the points differ in more than minor knobs, and their steps by more than noise. */
static bool is_other(const struct cst_plan_point *a, const struct cst_plan_point *b)
{
    double x = (double)a->result.step_ns, y = (double)b->result.step_ns;
    bool other = false;

    for (uint32_t k = 0; k < CST_KNOBS; k++) {
        other = other || (!cst_knobs[k].is_minor && cst_knob_differs(&cst_knobs[k], a, b));
    }
    return other && (x >= (1 + CST_PLAN_NOISE) * y || y >= (1 + CST_PLAN_NOISE) * x);
}

static int pick_runners_up(struct cst_search *s, struct cst_plans *plans, struct cst_err *err)
{
    uint32_t picked[CST_PLAN_RUNNERS_UP + 1] = {s->best}, n = 1;
    int rc = CST_OK;

    while (n <= CST_PLAN_RUNNERS_UP && rc == CST_OK && !cst_search_stops(s)) {
        struct cst_plan_loser *loser = &plans->runners_up[n - 1];
        uint32_t next = NONE;

        for (uint32_t i = 0; i < s->n_points; i++) {
            const struct cst_plan_point *point = &s->points[i];
            bool other = point->replayed && point->result.step_ns != UINT64_MAX;

            for (uint32_t k = 0; k < n; k++) {
                other = other && is_other(point, &s->points[picked[k]]);
            }
            if (other && (next == NONE || cst_search_is_better(s, point, &s->points[next]))) {
                next = i;
            }
        }
        if (next == NONE) {
            break;
        }
        rc = make_choice(s, &s->points[next], &loser->plan, err);
        if (rc == CST_OK) {
            cst_search_why(&s->points[next], &s->points[s->best], loser->why);
            picked[n++] = next;
            plans->n_runners_up++;
        }
    }
    return rc;
}

static int cannot_fit(const struct cst_search *s, struct cst_err *err)
{
    int rc = cst_search_tell_lack(s, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (s->lack.err.status != 0) {
        if (err != NULL) {
            *err = s->lack.err;
        }
        return s->lack.err.status;
    }
    return cst_err_set(err, CST_EINVAL,
                       "chunks of %" PRIu64 " elements: no layout of the model has them",
                       s->config->chunk_elems);
}

static int stopped(struct cst_err *err)
{
    return cst_err_set(err, CST_ETIMEDOUT, "the search was stopped before it had a plan");
}

static int answer(struct cst_search *s, struct cst_plans *out, struct cst_err *err)
{
    struct cst_plans plans = {
        .n_candidates = s->n_points, .n_replayed = s->n_replayed, .n_events = s->n_events};
    int rc;

    if (s->best == NONE) {
        return s->stopped && s->n_points == 0 ? stopped(err) : cannot_fit(s, err);
    }
    cst_search_why_update(s, plans.update_why);
    cst_search_why_states(s, plans.states_why);
    plans.n_layouts = s->n_layouts;
    plans.stopped = s->stopped;
    plans.without_states_ns = s->without_ns == UINT64_MAX ? 0 : s->without_ns;
    rc = pick_runners_up(s, &plans, err);
    if (rc == CST_OK) { /* The best plan is built last, so that the model has its layout. */
        rc = make_choice(s, &s->points[s->best], &plans.best, err);
    }
    if (rc == CST_OK) {
        *out = plans;
    }
    return rc;
}

/* Search once more with states that stay on accelerators, if the planner chooses them. */
static int search_with_states(struct cst_search *s)
{
    if (s->config->device_states == CST_PLAN_DEVICE_UPDATE_AUTO) {
        s->without_ns = s->best == NONE ? UINT64_MAX : s->points[s->best].result.step_ns;
    }
    if (!cst_reservation_may_split(s) || cst_search_stops(s)) {
        return CST_OK;
    }
    s->splits = true;
    s->most_layouts = s->n_layouts + cst_knobs_split_layouts(s->config->model);
    s->events_left = cst_search_events(s->config);
    return cst_search_run(s);
}

int cst_plan_search(struct cst_plans *out, const struct cst_plan_config *config,
                    struct cst_err *err)
{
    struct cst_search s;
    int rc = cst_search_open(&s, config, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = cst_search_run(&s);
    rc = rc == CST_OK ? search_with_states(&s) : rc;
    if (rc == CST_OK) {
        rc = answer(&s, out, err);
    } else if (rc == CST_ETIMEDOUT) {
        rc = cst_err_set(err, rc, "%s", s.lack.err.text);
    } else {
        rc = cst_err_set(err, rc, "no memory to search for a plan");
    }
    cst_search_close(&s);
    return rc;
}
