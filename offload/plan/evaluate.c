/* SPDX-License-Identifier: Apache-2.0 */
/* Simulation of a point of the search, or of a chosen plan. */
#include "offload/plan/drives.h"
#include "offload/plan/knobs.h"
#include "offload/plan/reservation.h"

#include <stdlib.h>

int cst_search_simulate(const struct cst_search *s, const struct cst_plan_point *point,
                        const struct cst_layout *layout, struct cst_replay_config *replay,
                        struct cst_replay_result *out, struct cst_err *err)
{
    const uint32_t stands_for = cst_search_stands_for(s, point);
    uint32_t world = stands_for > 1 ? 1 : s->world;
    struct cst_core_pool *pools = calloc(world, sizeof *pools);
    struct cst_core_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];
    struct cst_core_config core = {
        .model = s->config->model,
        .layout = layout,
        .world = world,
        .pools = pools,
        .policy = {.prefetch_depth = point->depth, .overlap = s->config->overlap},
        .reservations = reservations,
        .micro_batches = s->config->micro_batches};
    int rc;

    if (pools == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to replay a plan");
    }
    cst_search_pools(s, point, layout, world, pools);
    core.n_reservations = cst_reservation_list(s, point, layout, reservations, &core.interleave);
    core.n_reservations += cst_drives_list(s, layout, reservations + core.n_reservations);
    replay->core = &core;
    replay->rates = &s->rates;
    replay->micro_batches = s->config->micro_batches;
    replay->flops_share = s->config->flops_share;
    replay->stop = s->config->stop;
    replay->stop_arg = s->config->stop_arg;
    replay->recompute = s->config->recompute;
    replay->stands_for = stands_for > 1 ? &s->stands_for : NULL;
    rc = cst_replay_run(replay, out, err);
    free(pools);
    return rc;
}

/* -- simulation of a choice ------------------------------------------------------------------- */

static struct cst_plan_point point_of(const struct cst_plan_choice *choice)
{
    struct cst_plan_point point = {
        .sizes = {choice->layout.chunk_elems},
        .n_sizes = choice->n_classes,
        .depth = choice->prefetch_depth,
        .update_classes = choice->device_update_bytes > 0,
        .lends = choice->lends,
        .device_update_bytes = choice->device_update_bytes,
        .device_states = choice->device_states,
    };

    for (uint32_t i = 0; i < choice->n_classes; i++) {
        point.n_blocks[i] = choice->n_blocks[i];
        if (i > 0) {
            point.sizes[i] = choice->layout.class_elems[i - 1];
        }
    }
    return point;
}

/* Open a search in order to simulate *point, and build the point's layout. The caller closes @s if
 * it succeeds. */
static int open_point(struct cst_search *s, const struct cst_plan_config *config,
                      struct cst_plan_point *point, const struct cst_layout **layout,
                      struct cst_err *err)
{
    int rc = cst_search_open(s, config, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = cst_search_layout(s, point, layout, err);
    if (rc != CST_OK) {
        cst_search_close(s);
    }
    return rc;
}

int cst_plan_replay(const struct cst_plan_config *config, const struct cst_plan_choice *choice,
                    uint32_t n_steps,
                    void (*interval)(void *arg, const struct cst_interval *interval), void *arg,
                    struct cst_replay_result *out, struct cst_err *err)
{
    struct cst_plan_point point = point_of(choice);
    struct cst_replay_config replay = {
        .n_steps = n_steps == 0 ? 3 : n_steps, .interval = interval, .arg = arg};
    const struct cst_layout *layout;
    struct cst_search s;
    int rc = open_point(&s, config, &point, &layout, err);

    if (rc == CST_OK) {
        replay.deadline_events = config->max_events > 0 ? s.events_most : 0;
        rc = cst_search_simulate(&s, &point, layout, &replay, out, err);
        cst_search_close(&s);
    }
    return rc;
}

/* Depths for which no time is left are not tried. */
int cst_plan_tune(const struct cst_plan_config *config, struct cst_plan_choice *choice,
                  struct cst_replay_result *predicted, struct cst_err *err)
{
    struct cst_plan_point point = point_of(choice);
    struct cst_replay_config replay = {.n_steps = 3};
    const struct cst_layout *layout;
    struct cst_search s;
    int rc = open_point(&s, config, &point, &layout, err);

    if (rc != CST_OK) {
        return rc;
    }
    replay.deadline_events = s.events_most;
    rc = cst_search_simulate(&s, &point, layout, &replay, predicted, err);
    for (uint32_t i = 0; rc == CST_OK && cst_knobs[CST_KNOB_DEPTH].near(&s, i, &point) == CST_OK;
         i++) {
        struct cst_replay_result result;

        rc = cst_search_simulate(&s, &point, layout, &replay, &result, err);
        if (rc == CST_ETIMEDOUT) {
            rc = CST_OK;
            break;
        }
        if (rc == CST_OK && result.step_ns < predicted->step_ns) {
            choice->prefetch_depth = point.depth;
            *predicted = result;
        }
    }
    cst_search_close(&s);
    return rc;
}
