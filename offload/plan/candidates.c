/* SPDX-License-Identifier: Apache-2.0 */
/* The points of the search: capacities of the first class, and what is tried with each. */
#include "offload/plan/search.h"

#include "offload/packing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SITES 40 /* Maximum number of capacities of the first class to try initially. */
#define MIN_SITES 6
/* Maximum number of tensors and uses to look at, over all capacities. */
#define MAX_WORK (16u << 20)
/* Number of layouts with states on accelerators that is allowed for any model. */
#define LEAST_LAYOUTS 100

static bool same_knobs(const struct cst_plan_try *a, const struct cst_plan_try *b)
{
    return memcmp(a->sizes, b->sizes, sizeof a->sizes) == 0 && a->first_class == b->first_class &&
           a->once == b->once && a->depth == b->depth && a->eviction == b->eviction &&
           memcmp(a->n_blocks, b->n_blocks, sizeof a->n_blocks) == 0 &&
           a->n_device == b->n_device && a->device_update_bytes == b->device_update_bytes &&
           a->device_states == b->device_states;
}

int cst_search_add(struct cst_search *s, struct cst_plan_try try, const struct cst_layout *layout,
                   uint32_t *number)
{
    *number = UINT32_MAX;
    if (!cst_search_fit(s, &try, layout)) {
        return CST_OK;
    }
    for (uint32_t i = 0; i < s->n_tries; i++) {
        if (same_knobs(&s->tries[i], &try)) {
            *number = i;
            return CST_OK;
        }
    }
    if (s->n_tries == s->capacity) {
        uint32_t grown = s->capacity == 0 ? 64 : 2 * s->capacity;
        struct cst_plan_try *tries = realloc(s->tries, grown * sizeof *tries);

        if (tries == NULL) {
            return CST_ENOMEM;
        }
        s->tries = tries;
        s->capacity = grown;
    }
    cst_search_bound(s, &try, layout);
    *number = s->n_tries;
    s->tries[s->n_tries++] = try;
    return CST_OK;
}

/* Reduce the capacity of the first class to what its fullest chunk needs, which does not change the
 * packing. */
static void tighten(const struct cst_layout *layout, struct cst_plan_try *try)
{
    uint64_t fullest = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        uint64_t n = layout->chunks[c].n_elems;

        fullest = layout->chunks[c].size_class == 0 && n > fullest ? n : fullest;
    }
    memset(try->sizes, 0, sizeof try->sizes);
    try->n_sizes = layout->n_classes;
    for (uint32_t i = 0; i < layout->n_classes; i++) {
        try->sizes[i] = layout->classes[i].capacity;
    }
    if (fullest > 0) {
        try->sizes[0] = cst_align_up(fullest, CST_LAYOUT_CAPACITY_STEP);
    }
}

/* A first point. If the sizes of device reservations and states on accelerators are given, they are
 * part of each layout. */
static struct cst_plan_try start(const struct cst_search *s, uint64_t elems)
{
    struct cst_plan_try try = {.sizes = {elems}, .n_sizes = 1, .block_room = UINT64_MAX};

    if (s->config->device_states != CST_PLAN_DEVICE_UPDATE_AUTO) {
        try.device_states = s->config->device_states;
        try.device_update_bytes = s->config->device_update_bytes;
    }
    return try;
}

int cst_search_find(struct cst_search *s, uint64_t elems, struct cst_plan_try *try,
                    struct cst_layout *layout, bool *found)
{
    struct cst_err err;
    int rc;

    *try = start(s, elems);
    *found = false;
    if (cst_search_stops(s)) {
        return CST_OK;
    }
    rc = cst_search_layout(s, try, layout, &err);
    if (rc != CST_OK) {
        return rc == CST_ENOMEM ? rc : CST_OK;
    }
    /* A capacity that the user gave is not reduced. */
    if (elems == 0 || s->config->chunk_elems == 0) {
        tighten(layout, try);
        cst_layout_close(layout);
        rc = cst_search_layout(s, try, layout, &err);
    } else {
        try->n_sizes = layout->n_classes;
        for (uint32_t i = 0; i < layout->n_classes; i++) {
            try->sizes[i] = layout->classes[i].capacity;
        }
    }
    *found = rc == CST_OK;
    return rc == CST_ENOMEM ? rc : CST_OK;
}

/* Bytes of a device that states may take: a share of what the smallest pool leaves. */
static uint64_t part_for_states(const struct cst_search *s, const struct cst_layout *layout,
                                uint32_t eighths)
{
    uint64_t least = 0;

    for (uint32_t i = 0; i < layout->n_classes; i++) {
        least += (uint64_t)layout->classes[i].min_blocks * 2 * layout->classes[i].capacity;
    }
    return least < s->room ? (s->room - least) / 8 * eighths : 0;
}

static bool states_may_stay(const struct cst_search *s)
{
    return !s->config->runtime_only && !s->host && s->rates.devices[0].update > 0 &&
           s->config->budget->device_bytes != CST_PLAN_NO_LIMIT;
}

/* Add all points of one layout, with a device reservation or without. */
static int add_shares(struct cst_search *s, const struct cst_plan_try *site,
                      const struct cst_layout *layout)
{
    static const uint32_t eighths[] = {0, 1, 2, 4, 6, 7, 8};
    uint32_t n_states = states_may_stay(s) && site->n_through == 0 ? 7 : 1, number;
    bool once = s->config->micro_batches > 1 && !s->config->runtime_only;
    int rc = CST_OK;

    for (uint32_t i = 0; i < n_states * (once ? 2 : 1); i++) {
        struct cst_plan_try try = *site;

        try.state_room = part_for_states(s, layout, eighths[i % n_states]);
        try.once = i >= n_states;
        for (uint32_t c = 0; c < layout->n_classes && rc == CST_OK; c++) {
            try.first_class = c;
            rc = cst_search_add(s, try, layout, &number);
        }
    }
    return rc;
}

static int add_site(struct cst_search *s, const struct cst_plan_try *site,
                    const struct cst_layout *layout)
{
    uint64_t room = s->room_request;
    struct cst_plan_try try = *site;
    int rc = CST_OK;

    if (!s->splits && (room == 0 || room == CST_PLAN_DEVICE_UPDATE_AUTO)) {
        rc = add_shares(s, &try, layout);
    }
    try.n_through = room == CST_PLAN_DEVICE_UPDATE_AUTO ? 1 : layout->n_classes;
    for (; rc == CST_OK && s->n_rooms > 0 && try.n_through <= layout->n_classes; try.n_through++) {
        rc = s->splits ? cst_search_each_split(s, &try, layout, add_shares)
                       : add_shares(s, &try, layout);
    }
    return rc;
}

static int try_capacity(struct cst_search *s, uint64_t elems)
{
    struct cst_plan_try try;
    struct cst_layout layout;
    bool found;
    int rc = cst_search_find(s, elems, &try, &layout, &found);

    if (rc == CST_OK && found) {
        rc = add_site(s, &try, &layout);
        cst_layout_close(&layout);
    }
    return rc;
}

/* Tensors and uses to look at for one layout. */
static uint64_t work_of(const struct cst_model *model)
{
    return model->n_tensors + model->n_uses + 1ull;
}

uint64_t cst_search_split_layouts(const struct cst_model *model)
{
    uint64_t n = 2 * (uint64_t)MAX_WORK / work_of(model);

    return n > LEAST_LAYOUTS ? n : LEAST_LAYOUTS;
}

/* Number of capacities to try. Half of the layouts are reserved for the climb. */
static uint32_t count_sites(const struct cst_search *s)
{
    uint64_t work = work_of(s->config->model), n = MAX_WORK / work;

    if (s->splits) {
        n = cst_search_split_layouts(s->config->model) / 2 / cst_search_layouts_of_site(s);
        return n < MAX_SITES ? (uint32_t)n : MAX_SITES;
    }
    return n < MIN_SITES ? MIN_SITES : n < MAX_SITES ? (uint32_t)n : MAX_SITES;
}

/* Capacities in geometric steps, from the smallest useful chunks to one chunk for everything. If
 * layouts are expensive and there is a plan without states on accelerators, only its capacity is
 * tried. */
int cst_search_list(struct cst_search *s)
{
    const struct cst_model *model = s->config->model;
    uint32_t n = count_sites(s);
    uint64_t low = cst_align_up(model->n_params / 2048 + 1, CST_LAYOUT_CAPACITY_STEP);
    uint64_t high = cst_align_up(model->n_params, CST_LAYOUT_CAPACITY_STEP);
    double ratio;
    int rc;

    if (s->config->chunk_elems != 0) {
        return try_capacity(s, s->config->chunk_elems);
    }
    if (n < MIN_SITES && s->best != UINT32_MAX) {
        return try_capacity(s, s->tries[s->best].sizes[0]);
    }
    high = high < CST_LAYOUT_MAX_CHUNK_ELEMS ? high : CST_LAYOUT_MAX_CHUNK_ELEMS;
    rc = try_capacity(s, 0);
    ratio = low < high ? pow((double)high / (double)low, 1.0 / (n > 0 ? n : 1)) : 1;
    for (uint32_t i = 0; i <= n && rc == CST_OK; i++) {
        double at = (double)low * pow(ratio, i);

        rc = try_capacity(s, cst_align_up((uint64_t)at, CST_LAYOUT_CAPACITY_STEP));
    }
    return rc;
}
