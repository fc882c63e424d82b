/* SPDX-License-Identifier: Apache-2.0 */
/* The amount of states that stay on accelerators, if the planner chooses it. What the smallest pool
 * and the device reservation leave of a device is divided between blocks and states in a few ways,
 * and the search simulates them. */
#include "offload/plan/search.h"

#include "offload/packing.h"

#define SPLITS 5

bool cst_search_may_split(const struct cst_search *s)
{
    return s->config->device_states == CST_PLAN_DEVICE_UPDATE_AUTO && s->n_rooms > 0 &&
           s->rates.devices[s->accelerator].update > 0;
}

bool cst_search_may_hold(const struct cst_search *s)
{
    return cst_search_may_split(s) && s->room_request == CST_PLAN_DEVICE_UPDATE_AUTO &&
           s->stands_for == 1 && !s->host;
}

/* Share of a rank if an accelerator has @bytes. */
static uint64_t of_rank(const struct cst_search *s, uint64_t bytes)
{
    return bytes / s->world * s->n_rooms + bytes % s->world * s->n_rooms / s->world;
}

static uint64_t pool_bytes(const struct cst_layout *layout, bool most)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < layout->n_classes; i++) {
        const struct cst_layout_class *class = &layout->classes[i];

        bytes += (uint64_t)(most ? class->max_blocks : class->min_blocks) * 2 * class->capacity;
    }
    return bytes;
}

/* Bytes of each rank's accelerator that a pool and the device reservation leave: the smallest pool
 * or, with @most, the largest useful one. If ranks compute on the processor, accelerators have no
 * pools. */
static uint64_t free_bytes(const struct cst_search *s, const struct cst_plan_try *try,
                           const struct cst_layout *layout, bool most)
{
    uint64_t room = cst_search_room_bytes(s, try, layout);
    uint64_t all = s->host ? of_rank(s, cst_search_accelerator_bytes(s)) : s->room;
    uint64_t taken = room + (s->host ? 0 : pool_bytes(layout, most));

    return room > 0 && all > taken ? all - taken : 0;
}

/* A rank's share of all states, plus those of the largest chunk, because chunks are not divided. */
static uint64_t all_states(const struct cst_search *s, const struct cst_layout *layout)
{
    uint64_t sum = 0, largest = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];
        uint64_t bytes = 0;

        for (int row = CST_ROW_MASTER; row <= CST_ROW_EXP_AVG_SQ; row++) {
            bytes += cst_layout_row_bytes(&layout->states, layout->grad_bytes, row, chunk->n_elems);
        }
        bytes = cst_pattern(chunk->pattern)->has_states ? bytes : 0;
        largest = bytes > largest ? bytes : largest;
        sum += bytes;
    }
    sum += sum / 32; /* Segments are rounded up, including the last one of each accelerator. */
    return (sum + s->world - 1) / s->world + largest + CST_SEARCH_GRAIN;
}

/* Bytes of each rank's accelerator for states, in the @i-th way to divide what the device
 * reservation of @try leaves. @layout has no states on accelerators. 0: nothing is left. */
static uint64_t split(const struct cst_search *s, const struct cst_plan_try *try,
                      const struct cst_layout *layout, uint32_t i)
{
    uint64_t all = all_states(s, layout);
    uint64_t most = free_bytes(s, try, layout, false), spare = free_bytes(s, try, layout, true);

    most = most < all ? most : all;
    spare = spare < all ? spare : all;
    return i == 0 ? spare : most / (SPLITS - 1) * i;
}

/* Least bytes per rank that give each accelerator what it has in @layout. */
static uint64_t want(const struct cst_search *s, const struct cst_plan_try *try,
                     const struct cst_layout *layout)
{
    struct cst_layout_config config = {0};
    uint64_t most = 0;

    cst_search_devices(s, try, &config);
    for (uint32_t i = 0; i < config.n_devices; i++) {
        uint64_t bytes = cst_layout_device_want(layout, &config.devices[i]);

        most = bytes > most ? bytes : most;
    }
    return (most * s->n_rooms + s->world - 1) / s->world;
}

int cst_search_settle(struct cst_search *s, struct cst_plan_try *try,
                      const struct cst_layout *layout, struct cst_layout *out, bool *found,
                      struct cst_err *err)
{
    uint64_t most = free_bytes(s, try, layout, false);
    struct cst_layout with;
    int rc;

    *found = false;
    try->device_states = try->device_states < most ? try->device_states : most;
    if (try->device_states == 0 || s->n_layouts >= s->most_layouts || cst_search_stops(s)) {
        return CST_OK;
    }
    try->device_update_bytes = cst_search_room_bytes(s, try, layout);
    rc = cst_search_layout(s, try, &with, err);
    if (rc != CST_OK) {
        return rc;
    }
    try->device_states = want(s, try, &with);
    if (try->device_states == 0) {
        cst_layout_close(&with);
        return CST_OK;
    }
    *found = true;
    *out = with;
    return CST_OK;
}

/* Requested amounts with one device reservation, and what they were reduced to: every amount in
 * between gives the same layout. */
struct settled {
    uint64_t asked[SPLITS], got[SPLITS];
    uint32_t n;
};

static bool is_settled(const struct settled *settled, uint64_t bytes)
{
    bool is = false;

    for (uint32_t i = 0; i < settled->n; i++) {
        is = is || bytes == settled->asked[i] ||
             (bytes >= settled->got[i] && bytes < settled->asked[i]);
    }
    return is;
}

static int visit_splits(struct cst_search *s, struct cst_plan_try site,
                        const struct cst_layout *layout, cst_search_visit_fn visit)
{
    struct settled settled = {.n = 0};
    int rc = CST_OK;

    for (uint32_t i = 0; i < SPLITS && rc == CST_OK; i++) {
        uint64_t asked = split(s, &site, layout, i);
        struct cst_plan_try try = site;
        struct cst_layout with;
        struct cst_err err;
        bool found;

        if (asked == 0 || is_settled(&settled, asked)) {
            continue;
        }
        try.device_states = asked;
        rc = cst_search_settle(s, &try, layout, &with, &found, &err);
        if (rc == CST_OK && found) {
            rc = visit(s, &try, &with);
            cst_layout_close(&with);
        } else if (rc != CST_ENOMEM) {
            rc = CST_OK;
            try.device_states = asked;
        }
        settled.asked[settled.n] = asked;
        settled.got[settled.n++] = try.device_states;
    }
    return rc;
}

int cst_search_each_split(struct cst_search *s, const struct cst_plan_try *site,
                          const struct cst_layout *layout, cst_search_visit_fn visit)
{
    struct cst_plan_try try = *site;
    int rc;

    try.holds = false;
    rc = visit_splits(s, try, layout, visit);
    try.holds = true;
    return rc == CST_OK && cst_search_may_hold(s) ? visit_splits(s, try, layout, visit) : rc;
}

uint32_t cst_search_layouts_of_site(const struct cst_search *s)
{
    uint32_t rooms = s->room_request == CST_PLAN_DEVICE_UPDATE_AUTO ? CST_LAYOUT_MAX_CLASSES : 1;

    return 2 + rooms * SPLITS * (cst_search_may_hold(s) ? 2 : 1);
}
