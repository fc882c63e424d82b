/* SPDX-License-Identifier: Apache-2.0 */
/* The search from begin to end: check, candidates, simulations of the promising ones, neighbours of
 * the best, answer. */
#include "offload/plan/search.h"

#include "offload/buffers.h"
#include "offload/packing.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* -- the answer ----------------------------------------------------------------------------- */

/* Bytes that each rank must request so that each accelerator has @bytes. */
static uint64_t of_rank(const struct cst_search *s, uint64_t bytes)
{
    return (bytes * s->n_rooms + s->world - 1) / s->world;
}

/* Compute the least memory with which a device reservation fits one chunk, and one chunk's states
 * fit. */
static void describe_least(const struct cst_search *s, const struct cst_layout *layout,
                           struct cst_plan_choice *choice)
{
    const struct cst_layout_device device = {.grain = s->grain};

    if (s->n_rooms > 0) {
        choice->least_room = of_rank(s, cst_align_up(cst_buffers_least(layout), s->grain));
        choice->least_states = of_rank(s, cst_layout_device_least(layout, &device));
    }
}

static void describe_room(const struct cst_search *s, const struct cst_plan_try *try,
                          const struct cst_layout *layout, struct cst_plan_choice *choice)
{
    struct cst_core_room rooms[CST_CORE_MAX_UPDATE_DEVICES];
    struct cst_buffers buffers;

    describe_least(s, layout, choice);
    if (cst_search_rooms(s, try, layout, rooms, &choice->interleave) > 0) {
        cst_buffers_divide(&buffers, layout, rooms[0].bytes);
        choice->n_buffers = buffers.n;
    }
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        choice->n_staying += layout->chunks[c].device != 0;
    }
    choice->state_bytes += (layout->device_bytes + s->world - 1) / s->world;
}

static int make_choice(struct cst_search *s, const struct cst_plan_try *try,
                       struct cst_plan_choice *out, struct cst_err *err)
{
    struct cst_plan_choice choice = {
        .layout = cst_search_layout_config(s, try),
        .n_classes = try->n_sizes,
        .prefetch_depth = try->depth,
        .eviction = try->eviction,
        .grad = try->over ? CST_PLAN_GRAD_OVER : CST_PLAN_GRAD_BESIDE,
        .reduce_each = s->config->micro_batches > 1 && !try->once,
        .n_chunks = try->n_chunks,
        .pool_bytes = try->pool_bytes,
        .state_bytes = try->state_bytes,
        .device_update_bytes = try->device_update_bytes,
        .device_states = try->device_states,
        .activation_bytes = s->activation_bytes,
        .host_bytes = try->host_bytes,
        .disk_bytes = try->disk_bytes,
        .padding_bytes = try->padding_bytes,
        .bound_ns = try->bound_ns,
        .predicted = try->result,
    };
    struct cst_layout layout;
    int rc = cst_search_layout(s, try, &layout, err);

    if (rc != CST_OK) {
        return rc;
    }
    memcpy(choice.n_blocks, try->n_blocks, sizeof choice.n_blocks);
    describe_room(s, try, &layout, &choice);
    choice.device_rows = malloc(try->n_chunks);
    choice.disk_rows = malloc(try->n_chunks);
    if (choice.device_rows == NULL || choice.disk_rows == NULL) {
        free(choice.device_rows);
        free(choice.disk_rows);
        cst_layout_close(&layout);
        return cst_err_set(err, CST_ENOMEM, "no memory for a plan");
    }
    for (uint32_t c = 0; c < try->n_chunks; c++) {
        choice.device_rows[c] = cst_search_device_rows(try, &layout, c);
        choice.disk_rows[c] = cst_search_disk_rows(try, &layout, c);
    }
    choice.binds = try == &s->tries[s->best] ? cst_search_binds(s, try, &layout) : "";
    cst_layout_close(&layout);
    *out = choice;
    return CST_OK;
}

static void close_choice(struct cst_plan_choice *choice)
{
    free(choice->device_rows);
    free(choice->disk_rows);
    *choice = (struct cst_plan_choice){0};
}

void cst_plans_close(struct cst_plans *plans)
{
    close_choice(&plans->best);
    for (uint32_t i = 0; i < CST_PLAN_RUNNERS_UP; i++) {
        close_choice(&plans->runners_up[i].plan);
    }
    plans->n_runners_up = 0;
}

/* True if the points differ in more than the prefetch depth, and their steps by more than noise. */
static bool is_other(const struct cst_plan_try *a, const struct cst_plan_try *b)
{
    double x = (double)a->result.step_ns, y = (double)b->result.step_ns;

    if (x < (1 + CST_PLAN_NOISE) * y && y < (1 + CST_PLAN_NOISE) * x) {
        return false;
    }
    return a->sizes[0] != b->sizes[0] || a->n_device != b->n_device || a->once != b->once ||
           a->device_update_bytes != b->device_update_bytes || a->device_states != b->device_states;
}

static int pick_runners_up(struct cst_search *s, struct cst_plans *plans, struct cst_err *err)
{
    uint32_t picked[CST_PLAN_RUNNERS_UP + 1] = {s->best}, n = 1;
    int rc = CST_OK;

    while (n <= CST_PLAN_RUNNERS_UP && rc == CST_OK && !cst_search_stops(s)) {
        struct cst_plan_loser *loser = &plans->runners_up[n - 1];
        uint32_t next = NONE;

        for (uint32_t i = 0; i < s->n_tries; i++) {
            const struct cst_plan_try *try = &s->tries[i];
            bool other = try->replayed && try->result.step_ns != UINT64_MAX;

            for (uint32_t k = 0; k < n; k++) {
                other = other && is_other(try, &s->tries[picked[k]]);
            }
            if (other && (next == NONE || cst_search_is_better(try, &s->tries[next]))) {
                next = i;
            }
        }
        if (next == NONE) {
            break;
        }
        rc = make_choice(s, &s->tries[next], &loser->plan, err);
        if (rc == CST_OK) {
            cst_search_why(&s->tries[next], &s->tries[s->best], loser->why);
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
        .n_candidates = s->n_tries, .n_replayed = s->n_replayed, .n_events = s->n_events};
    int rc;

    if (s->best == NONE) {
        return s->stopped && s->n_tries == 0 ? stopped(err) : cannot_fit(s, err);
    }
    s->best = cst_search_thriftiest(s);
    cst_search_why_states(s, plans.states_why);
    plans.n_layouts = s->n_layouts;
    plans.stopped = s->stopped;
    plans.without_states_ns = s->without_ns == UINT64_MAX ? 0 : s->without_ns;
    rc = pick_runners_up(s, &plans, err);
    if (rc == CST_OK) { /* The best plan is built last, so that the model has its layout. */
        rc = make_choice(s, &s->tries[s->best], &plans.best, err);
    }
    if (rc != CST_OK) {
        cst_plans_close(&plans);
        return rc;
    }
    *out = plans;
    return CST_OK;
}

static int look(struct cst_search *s)
{
    int rc = cst_search_list(s);

    rc = rc == CST_OK ? cst_search_replay(s) : rc;
    return rc == CST_OK ? cst_search_climb(s) : rc;
}

/* Search once more with states that stay on accelerators, if the planner chooses them. */
static int look_with_states(struct cst_search *s)
{
    if (s->config->device_states == CST_PLAN_DEVICE_UPDATE_AUTO) {
        s->without_ns = s->best == NONE ? UINT64_MAX : s->tries[s->best].result.step_ns;
    }
    if (!cst_search_may_split(s) || cst_search_stops(s)) {
        return CST_OK;
    }
    s->splits = true;
    s->most_layouts = s->n_layouts + cst_search_split_layouts(s->config->model);
    s->events_left = cst_search_events(s->config);
    return look(s);
}

int cst_plan_search(struct cst_plans *out, const struct cst_plan_config *config,
                    struct cst_err *err)
{
    struct cst_search s;
    int rc = cst_search_open(&s, config, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = look(&s);
    rc = rc == CST_OK ? look_with_states(&s) : rc;
    if (rc == CST_OK) {
        rc = answer(&s, out, err);
    } else if (rc == CST_ETIMEDOUT) {
        rc = cst_err_set(err, rc, "%s", s.lack.err.text);
    } else {
        rc = cst_err_set(err, rc, "no memory to search for a plan");
    }
    free(s.tries);
    return rc;
}
