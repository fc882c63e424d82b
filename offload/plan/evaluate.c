/* SPDX-License-Identifier: Apache-2.0 */
/* Simulation of a point of the search, or of a chosen plan. */
#include "offload/plan/search.h"

#include <stdlib.h>

struct cst_layout_config cst_search_layout_config(const struct cst_search *s,
                                                  const struct cst_plan_try *try)
{
    struct cst_layout_config config = {
        .chunk_elems = try->sizes[0],
        .n_nodes = s->config->n_nodes == 0 ? 1 : s->config->n_nodes,
        .world = s->world,
        .grad_bytes = s->config->micro_batches > 1 && !try->once ? 4 : 2,
        .states = s->config->states,
        .max_classes = CST_LAYOUT_MAX_CLASSES,
        .landings = !s->host,
    };

    config.states.grad_over_weight |= try->over;
    cst_search_devices(s, try, &config);
    for (uint32_t i = 1; i < try->n_sizes; i++) {
        config.class_elems[i - 1] = try->sizes[i];
    }
    return config;
}

int cst_search_layout(struct cst_search *s, const struct cst_plan_try *try, struct cst_layout *out,
                      struct cst_err *err)
{
    struct cst_layout_config config = cst_search_layout_config(s, try);

    s->n_layouts++;
    return cst_layout_build(out, s->config->model, &config, err);
}

static int fill_rows(const struct cst_plan_try *try, const struct cst_layout *layout,
                     uint8_t *device, uint8_t *disk)
{
    if (device == NULL || disk == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        device[c] = cst_search_device_rows(try, layout, c);
        disk[c] = cst_search_disk_rows(try, layout, c);
    }
    return CST_OK;
}

static void fill_pools(const struct cst_search *s, const struct cst_plan_try *try,
                       const struct cst_layout *layout, uint32_t world, struct cst_core_pool *pools)
{
    uint32_t n_nodes = s->config->n_nodes == 0 ? 1 : s->config->n_nodes;

    for (uint32_t rank = 0; rank < world; rank++) {
        pools[rank] =
            (struct cst_core_pool){.engine = s->host ? 0 : n_nodes + rank,
                                   .worker_copies = !s->host && s->config->worker_copies &&
                                                    !layout->states.grad_over_weight};
        for (uint32_t i = 0; i < layout->n_classes; i++) {
            pools[rank].parts[i].n_blocks = try->n_blocks[i];
        }
    }
}

int cst_search_play(const struct cst_search *s, const struct cst_plan_try *try,
                    const struct cst_layout *layout, struct cst_replay_config *replay,
                    struct cst_replay_result *out, struct cst_err *err)
{
    uint32_t world = s->stands_for > 1 ? 1 : s->world;
    struct cst_core_pool *pools = calloc(world, sizeof *pools);
    uint8_t *device = calloc(layout->n_chunks, 1), *disk = calloc(layout->n_chunks, 1);
    struct cst_core_room rooms[CST_CORE_MAX_UPDATE_DEVICES];
    struct cst_core_config core = {.model = s->config->model,
                                   .layout = layout,
                                   .world = world,
                                   .pools = pools,
                                   .policy = {.prefetch_depth = try->depth,
                                              .eviction = try->eviction,
                                              .overlap = s->config->overlap},
                                   .rooms = rooms,
                                   .micro_batches = try->once ? 1 : s->config->micro_batches};
    int rc = pools == NULL ? CST_ENOMEM : fill_rows(try, layout, device, disk);

    if (rc != CST_OK) {
        (void)cst_err_set(err, rc, "no memory to replay a plan");
        goto out;
    }
    fill_pools(s, try, layout, world, pools);
    core.n_rooms = cst_search_rooms(s, try, layout, rooms, &core.interleave);
    replay->core = &core;
    replay->rates = &s->rates;
    replay->micro_batches = s->config->micro_batches;
    replay->reduce_once = try->once;
    replay->flops_share = s->config->flops_share;
    replay->stop = s->config->stop;
    replay->stop_arg = s->config->stop_arg;
    replay->recompute = s->config->recompute;
    replay->stands_for = s->stands_for > 1 ? &s->stands_for : NULL;
    replay->device_rows = try->n_device > 0 ? device : NULL;
    replay->disk_rows = try->n_moments + try->n_masters > 0 ? disk : NULL;
    rc = cst_replay_run(replay, out, err);
out:
    free(pools);
    free(device);
    free(disk);
    return rc;
}

/* -- simulation of a choice ------------------------------------------------------------------- */

/* The chunks on a device are the first ones, those on disk the last ones. Frozen chunks between
 * them have no such rows, so they are included. */
static uint32_t count_first(const uint8_t *rows, uint32_t n, enum cst_row row)
{
    uint32_t count = 0;

    for (uint32_t c = 0; rows != NULL && c < n; c++) {
        count = (rows[c] & 1u << row) != 0 ? c + 1 : count;
    }
    return count;
}

static uint32_t count_last(const uint8_t *rows, uint32_t n, enum cst_row row)
{
    uint32_t c = 0;

    while (rows != NULL && c < n && (rows[c] & 1u << row) == 0) {
        c++;
    }
    return rows == NULL ? 0 : n - c;
}

static struct cst_plan_try try_of(const struct cst_plan_choice *choice)
{
    struct cst_plan_try try = {
        .sizes = {choice->layout.chunk_elems},
        .n_sizes = choice->n_classes,
        .once = choice->layout.grad_bytes == 2 && !choice->reduce_each,
        .over = choice->grad == CST_PLAN_GRAD_OVER,
        .depth = choice->prefetch_depth,
        .eviction = choice->eviction,
        .n_through = choice->device_update_bytes > 0,
        .device_update_bytes = choice->device_update_bytes,
        .device_states = choice->device_states,
        .n_device = count_first(choice->device_rows, choice->n_chunks, CST_ROW_WEIGHT),
        .n_moments = count_last(choice->disk_rows, choice->n_chunks, CST_ROW_EXP_AVG),
        .n_masters = count_last(choice->disk_rows, choice->n_chunks, CST_ROW_MASTER),
    };

    for (uint32_t i = 0; i < choice->n_classes; i++) {
        try.n_blocks[i] = choice->n_blocks[i];
        if (i > 0) {
            try.sizes[i] = choice->layout.class_elems[i - 1];
        }
    }
    return try;
}

int cst_plan_replay(const struct cst_plan_config *config, const struct cst_plan_choice *choice,
                    uint32_t n_steps,
                    void (*interval)(void *arg, const struct cst_interval *interval), void *arg,
                    struct cst_replay_result *out, struct cst_err *err)
{
    struct cst_plan_try try = try_of(choice);
    struct cst_replay_config replay = {
        .n_steps = n_steps == 0 ? 3 : n_steps, .interval = interval, .arg = arg};
    struct cst_layout layout;
    struct cst_search s;
    int rc = cst_search_open(&s, config, err);

    if (rc != CST_OK) {
        return rc;
    }
    replay.deadline_events = config->max_events > 0 ? s.events_most : 0;
    try.once = try.once && config->micro_batches > 1;
    rc = cst_search_layout(&s, &try, &layout, err);
    if (rc == CST_OK) {
        rc = cst_search_play(&s, &try, &layout, &replay, out, err);
        cst_layout_close(&layout);
    }
    return rc;
}
