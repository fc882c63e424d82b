/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/parallel/schedule_time.h"

#include "offload/parallel/schedule_check.h"

#include <stdlib.h>

struct timing {
    const struct cst_schedule *schedule;
    const struct cst_stage_cost *costs;
    double *arrival; /* Of the messages for each stage and micro-batch: activations, gradients. */
    bool *repeated;  /* For each unit: its forward pass has been repeated by an action. */
    double *free_at; /* When each rank has done its actions so far. */
    double *link_at; /* When the way between each pair of ranks has sent its messages so far. */
    double *begin;   /* When each action begins; NULL: not wanted. */
    double busy;     /* Of all ranks. */
};

static size_t unit_number(const struct timing *t, uint32_t stage, uint32_t micro)
{
    return (size_t)stage * t->schedule->n_micro + micro;
}

static double duration(const struct timing *t, struct cst_stage_action action)
{
    const struct cst_stage_cost *cost = &t->costs[action.stage];
    const bool repeats = t->schedule->recomputes[action.stage] &&
                         !t->repeated[unit_number(t, action.stage, action.micro)];
    const double again = repeats ? cost->recompute : 0;

    switch ((enum cst_stage_action_kind)action.kind) {
    case CST_STAGE_FORWARD:
        return cost->forward;
    case CST_STAGE_BACKWARD:
        return again + cost->backward + cost->weight;
    case CST_STAGE_BACKWARD_INPUT:
        return again + cost->backward;
    case CST_STAGE_BACKWARD_WEIGHT:
        return cost->weight;
    case CST_STAGE_RECOMPUTE:
        return cost->recompute;
    case CST_STAGE_ACTION_COUNT:
        break;
    }
    return 0;
}

/* Send the result of @action, which ends at @end, to stage @to. */
static void send_result(struct timing *t, struct cst_stage_action action, uint32_t to, double end)
{
    const struct cst_schedule *schedule = t->schedule;
    const bool backward = to < action.stage;
    const uint32_t a = schedule->rank_of[action.stage], b = schedule->rank_of[to];
    double *arrival = &t->arrival[2 * unit_number(t, to, action.micro) + (backward ? 1 : 0)];
    double *link = &t->link_at[(size_t)a * schedule->n_ranks + b];

    if (a == b) {
        *arrival = end;
    } else {
        *link = (*link > end ? *link : end) + t->costs[backward ? to : action.stage].send;
        *arrival = *link;
    }
}

static void visit(void *arg, uint32_t rank, uint32_t number)
{
    struct timing *t = arg;
    const struct cst_schedule *schedule = t->schedule;
    const struct cst_stage_action action = schedule->actions[number];
    const size_t unit = unit_number(t, action.stage, action.micro);
    const bool forward = action.kind == CST_STAGE_FORWARD;
    double begin = t->free_at[rank], end;
    uint32_t needed;

    if (cst_stage_action_needs(schedule, action, &needed)) {
        const double arrival = t->arrival[2 * unit + (forward ? 0 : 1)];

        begin = arrival > begin ? arrival : begin;
    }
    end = begin + duration(t, action);
    t->busy += end - begin;
    t->free_at[rank] = end;
    if (t->begin != NULL) {
        t->begin[number] = begin;
    }
    if (action.kind == CST_STAGE_RECOMPUTE) {
        t->repeated[unit] = true;
    } else if (forward && action.stage + 1U < schedule->n_stages) {
        send_result(t, action, action.stage + 1U, end);
    } else if (!forward && action.kind != CST_STAGE_BACKWARD_WEIGHT && action.stage > 0) {
        send_result(t, action, action.stage - 1U, end);
    }
}

/* -- memory ----------------------------------------------------------------------------------- */

/* Add to @bytes what @action makes its stage keep from its begin, or let go of at its @end. A
 * backward pass that repeats its forward pass has all of it in its duration. */
static uint64_t keep(const struct timing *t, struct cst_stage_action action, bool end,
                     uint64_t bytes)
{
    const struct cst_stage_cost *cost = &t->costs[action.stage];
    const bool recomputes = t->schedule->recomputes[action.stage];
    bool *repeated = &t->repeated[unit_number(t, action.stage, action.micro)];

    if (!end && action.kind == CST_STAGE_FORWARD) {
        return bytes + (recomputes ? cost->input_bytes : cost->kept_bytes);
    }
    if (!end && recomputes && !*repeated) {
        *repeated = true;
        return bytes - cost->input_bytes + cost->kept_bytes;
    }
    if (end && (action.kind == CST_STAGE_BACKWARD || action.kind == CST_STAGE_BACKWARD_WEIGHT)) {
        return bytes - cost->kept_bytes;
    }
    return bytes;
}

/* Compute the peak of each rank. What is kept depends on the order of its list alone. */
static void find_peaks(const struct timing *t, uint64_t *peak_bytes)
{
    const struct cst_schedule *schedule = t->schedule;

    for (size_t i = 0; i < (size_t)schedule->n_stages * schedule->n_micro; i++) {
        t->repeated[i] = false;
    }
    for (uint32_t rank = 0; rank < schedule->n_ranks; rank++) {
        uint64_t bytes = 0;

        peak_bytes[rank] = 0;
        for (uint32_t i = schedule->first[rank]; i < schedule->first[rank + 1]; i++) {
            bytes = keep(t, schedule->actions[i], false, bytes);
            peak_bytes[rank] = bytes > peak_bytes[rank] ? bytes : peak_bytes[rank];
            bytes = keep(t, schedule->actions[i], true, bytes);
        }
    }
}

/* -- the whole -------------------------------------------------------------------------------- */

static void timing_close(struct timing *t)
{
    free(t->arrival);
    free(t->repeated);
    free(t->free_at);
    free(t->link_at);
}

static int timing_open(struct timing *t, const struct cst_schedule *schedule, struct cst_err *err)
{
    const size_t n_units = (size_t)schedule->n_stages * schedule->n_micro;

    t->schedule = schedule;
    t->arrival = calloc(n_units, 2 * sizeof *t->arrival);
    t->repeated = calloc(n_units, sizeof *t->repeated);
    t->free_at = calloc(schedule->n_ranks, sizeof *t->free_at);
    t->link_at = calloc((size_t)schedule->n_ranks * schedule->n_ranks, sizeof *t->link_at);
    if (t->arrival == NULL || t->repeated == NULL || t->free_at == NULL || t->link_at == NULL) {
        timing_close(t);
        return cst_err_set(err, CST_ENOMEM, "the times of a schedule");
    }
    return CST_OK;
}

int cst_schedule_time(struct cst_schedule_times *out, const struct cst_schedule *schedule,
                      const struct cst_stage_cost *costs, uint64_t *peak_bytes, double *begin,
                      struct cst_err *err)
{
    struct timing t = {.costs = costs, .begin = begin};
    int rc = timing_open(&t, schedule, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = cst_schedule_run(schedule, visit, &t, err);
    if (rc == CST_OK) {
        *out = (struct cst_schedule_times){.busy = t.busy};
        for (uint32_t rank = 0; rank < schedule->n_ranks; rank++) {
            out->makespan = t.free_at[rank] > out->makespan ? t.free_at[rank] : out->makespan;
        }
        out->bubble =
            out->makespan > 0 ? 1 - t.busy / ((double)schedule->n_ranks * out->makespan) : 0;
    }
    if (rc == CST_OK && peak_bytes != NULL) {
        find_peaks(&t, peak_bytes);
    }
    timing_close(&t);
    return rc;
}
