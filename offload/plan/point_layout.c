/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a point. The last layout is kept, because most points differ from the one before
 * only in what does not change the layout. */
#include "offload/plan/search.h"

#include "offload/layout/packing.h"
#include "offload/plan/drives.h"
#include "offload/plan/reservation.h"
#include "proto/round_up.h"

#include <string.h>

struct cst_layout_config cst_search_layout_config(const struct cst_search *s,
                                                  const struct cst_plan_point *point)
{
    struct cst_layout_config config = {
        .chunk_elems = point->sizes[0],
        .n_nodes = s->config->n_nodes == 0 ? 1 : s->config->n_nodes,
        .world = s->world,
        .grad_bytes = cst_layout_grad_elem_bytes(s->world, s->config->micro_batches),
        .states = s->config->states,
        .max_classes = CST_LAYOUT_MAX_CLASSES,
        .landings = s->host                  ? CST_LANDINGS_NONE
                    : cst_search_is_apart(s) ? CST_LANDINGS_SHARED
                                             : CST_LANDINGS_SINGLE,
    };

    cst_reservation_devices(s, point, &config);
    cst_drives_devices(s, &config);
    for (uint32_t i = 1; i < point->n_sizes; i++) {
        config.class_elems[i - 1] = point->sizes[i];
    }
    return config;
}

/* True if the points' layouts have the same chunks, and rows of the same formats. */
static bool has_same_chunks(const struct cst_plan_point *a, const struct cst_plan_point *b)
{
    return memcmp(a->sizes, b->sizes, sizeof a->sizes) == 0 && a->n_sizes == b->n_sizes;
}

static bool has_same_layout(const struct cst_plan_point *a, const struct cst_plan_point *b)
{
    return has_same_chunks(a, b) && a->device_states == b->device_states &&
           (a->device_states == 0 || a->device_update_bytes == b->device_update_bytes);
}

int cst_search_layout(struct cst_search *s, const struct cst_plan_point *point,
                      const struct cst_layout **out, struct cst_err *err)
{
    struct cst_layout_config config = cst_search_layout_config(s, point);
    int rc;

    *out = &s->layout;
    if (s->is_built && has_same_layout(&s->built, point)) {
        return CST_OK;
    }
    if (s->is_built) {
        cst_layout_close(&s->layout);
    }
    s->n_layouts++;
    rc = cst_layout_build(&s->layout, s->config->model, &config, err);
    s->is_built = rc == CST_OK;
    s->built = *point;
    return rc;
}

/* A layout with the point's chunks, whatever states it has on accelerators. CST_ENOMEM,
 * CST_ENOTFOUND. */
static int find_chunks(struct cst_search *s, const struct cst_plan_point *point,
                       const struct cst_layout **out)
{
    struct cst_plan_point plain = *point;
    int rc;

    if (s->is_built && has_same_chunks(&s->built, point)) {
        *out = &s->layout;
        return CST_OK;
    }
    plain.device_states = point->states_asked > 0 ? 0 : point->device_states;
    rc = cst_search_layout(s, &plain, out, NULL);
    return rc == CST_OK || rc == CST_ENOMEM ? rc : CST_ENOTFOUND;
}

/* -- capacity --------------------------------------------------------------------------------- */

/* The capacity that the fullest chunk of the first class needs, in bf16 elements. The capacity can
 * be reduced to it without a change of the chunks. */
static uint64_t fullest(const struct cst_layout *layout)
{
    uint64_t most = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        uint64_t n = cst_layout_weight_bytes(&layout->chunks[c]) / 2;

        most = layout->chunks[c].size_class == 0 && n > most ? n : most;
    }
    return most > 0 ? cst_round_up(most, CST_LAYOUT_CAPACITY_STEP) : layout->classes[0].capacity;
}

int cst_search_set_capacity(struct cst_search *s, uint64_t elems, struct cst_plan_point *point)
{
    const struct cst_layout *layout;
    int rc;

    memset(point->sizes, 0, sizeof point->sizes);
    point->sizes[0] = elems;
    point->n_sizes = 0;
    if (point->states_asked > 0) {
        point->states_asked = point->device_states;
        point->device_states = 0;
    }
    if (cst_search_stops(s)) {
        return CST_OK;
    }
    rc = cst_search_layout(s, point, &layout, NULL);
    if (rc != CST_OK) {
        return rc == CST_ENOMEM ? rc : CST_OK;
    }
    point->n_sizes = layout->n_classes;
    for (uint32_t i = 0; i < layout->n_classes; i++) {
        point->sizes[i] = layout->classes[i].capacity;
    }
    /* A capacity that the user gave is not reduced. */
    if (elems == 0 || s->config->chunk_elems == 0) {
        point->sizes[0] = fullest(layout);
    }
    point->first_class = point->first_class < point->n_sizes ? point->first_class : 0;
    point->update_classes =
        point->update_classes < point->n_sizes ? point->update_classes : point->n_sizes;
    return CST_OK;
}

/* -- states on accelerators ------------------------------------------------------------------- */

/* Bytes of the smallest pool or, with @most, of the largest useful one. */
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
static uint64_t free_bytes(const struct cst_search *s, const struct cst_plan_point *point,
                           const struct cst_layout *layout, bool most)
{
    uint64_t reserved = cst_reservation_bytes(s, point, layout), memory = cst_reservation_memory(s);
    uint64_t all = s->host ? memory / s->world * s->n_reservations +
                                 memory % s->world * s->n_reservations / s->world
                           : s->device_left;
    uint64_t taken = reserved + (s->host ? 0 : pool_bytes(layout, most));

    return reserved > 0 && all > taken ? all - taken : 0;
}

/* A rank's share of all states, plus those of the largest chunk, because chunks are not divided. */
static uint64_t all_states(const struct cst_search *s, const struct cst_layout *layout)
{
    uint64_t sum = 0, largest = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];
        uint64_t bytes = 0;

        for (int row = CST_ROW_MASTER; row < CST_ROW_COUNT; row++) {
            bytes += cst_layout_chunk_row_bytes(layout, chunk, row, chunk->n_elems);
        }
        bytes = cst_layout_states_may_leave(layout, chunk) ? bytes : 0;
        largest = bytes > largest ? bytes : largest;
        sum += bytes;
    }
    sum += sum / 32; /* Segments are rounded up, including the last one of each accelerator. */
    return (sum + s->world - 1) / s->world + largest + CST_SEARCH_GRAIN;
}

/* The first way fills what the largest useful pool leaves, the others are quarters of what the
 * smallest pool leaves. */
int cst_search_split(struct cst_search *s, const struct cst_plan_point *point, uint32_t i,
                     uint64_t *bytes)
{
    const struct cst_layout *layout;
    uint64_t all, left;
    int rc = find_chunks(s, point, &layout);

    if (rc != CST_OK || i >= CST_SEARCH_SPLITS) {
        return rc == CST_OK ? CST_ENOTFOUND : rc;
    }
    all = all_states(s, layout);
    left = free_bytes(s, point, layout, i == 0);
    left = left < all ? left : all;
    *bytes = i == 0 ? left : left / (CST_SEARCH_SPLITS - 1) * i;
    return CST_OK;
}

/* Least bytes per rank that give each accelerator what it has in @layout. */
static uint64_t want(const struct cst_search *s, const struct cst_plan_point *point,
                     const struct cst_layout *layout)
{
    struct cst_layout_config config = {0};
    uint64_t most = 0;

    cst_reservation_devices(s, point, &config);
    for (uint32_t i = 0; i < config.n_devices; i++) {
        uint64_t bytes = cst_layout_device_want(layout, &config.devices[i]);

        most = bytes > most ? bytes : most;
    }
    return cst_reservation_of_rank(s, most);
}

/* The states of a point that asks for as much as @point and is otherwise laid out like it: every
 * amount between what one point asked for and what it got gives the same layout. 0: unknown. */
static uint64_t known_states(const struct cst_search *s, const struct cst_plan_point *point)
{
    for (uint32_t i = 0; i < s->n_points; i++) {
        const struct cst_plan_point *p = &s->points[i];

        if (p->device_states > 0 && has_same_chunks(p, point) &&
            p->device_update_bytes == point->device_update_bytes &&
            p->device_states <= point->states_asked && point->states_asked <= p->states_asked) {
            return p->device_states;
        }
    }
    return 0;
}

/* Compute device_states: those of whole chunks that fit states_asked and the device. 0: no chunk's
 * states fit, or enough layouts were built. */
static int settle_states(struct cst_search *s, struct cst_plan_point *point)
{
    const struct cst_layout *layout;
    uint64_t most;
    int rc = find_chunks(s, point, &layout);

    point->device_states = 0;
    if (rc != CST_OK) {
        return rc;
    }
    most = free_bytes(s, point, layout, false);
    point->states_asked = point->states_asked < most ? point->states_asked : most;
    point->device_update_bytes = cst_reservation_bytes(s, point, layout);
    point->device_states = known_states(s, point);
    if (point->device_states > 0 || point->states_asked == 0 || s->n_layouts >= s->most_layouts ||
        cst_search_stops(s)) {
        return CST_OK;
    }
    point->device_states = point->states_asked;
    rc = cst_search_layout(s, point, &layout, NULL);
    point->device_states = rc == CST_OK ? want(s, point, layout) : 0;
    s->built.device_states = point->device_states; /* The layout is the same with no more. */
    return rc;
}

int cst_search_prepare(struct cst_search *s, struct cst_plan_point *point,
                       const struct cst_layout **out)
{
    int rc = CST_OK;

    *out = NULL;
    if (point->n_sizes == 0) {
        return CST_OK;
    }
    if (point->states_asked > 0) {
        rc = settle_states(s, point);
        if (rc != CST_OK || point->device_states == 0) {
            return rc == CST_ENOMEM ? rc : CST_OK;
        }
    }
    rc = cst_search_layout(s, point, out, NULL);
    if (rc != CST_OK) {
        *out = NULL;
    }
    return rc == CST_ENOMEM ? rc : CST_OK;
}
