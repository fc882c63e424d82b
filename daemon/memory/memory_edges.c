/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of edges: making it, and replacing slots whose accelerator was lost, or which a worker
 * cannot map. */
#include "daemon/memory/memory_pools.h"

#include "daemon/base/daemon_state.h"
#include "daemon/memory/edge_slots.h"
#include "offload/layout/edge.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engines.h"
#include "daemon/memory/memory.h"
#include "daemon/memory/tiers/tier.h"

/* Add memory of @tier for @edge. In host memory it lies on the node of the rank that takes. */
static int add_in(struct cstd_memory *memory, const struct cstd_tier *tier,
                  const struct cst_layout_edge *edge, uint64_t bytes, struct cst_err *err)
{
    const struct cstd_tier_piece piece = {.use = CSTD_TIER_SLOTS,
                                          .bytes = bytes,
                                          .node = edge->to % memory->daemon->engines->n_nodes};

    return tier->kind->create(memory, tier, &piece, err);
}

static struct cstd_edge_slots slots_of(const struct cstd_memory *memory,
                                       const struct cst_layout_edge *edge)
{
    return cstd_edge_slots_choose(memory, edge, memory->tiers[edge->from], memory->tiers[edge->to]);
}

/* Add the segment of the slots of @edge. */
static int add_slots(struct cstd_memory *memory, const struct cst_layout_edge *edge,
                     struct cst_err *err)
{
    struct cstd_edge_slots slots = slots_of(memory, edge);

    return add_in(memory, slots.tier, edge, slots.bytes, err);
}

/* Add the segment with the words of @edge, and the slots if they have no memory of their own. */
static int add_words(struct cstd_memory *memory, const struct cst_layout_edge *edge,
                     struct cst_err *err)
{
    int rc =
        add_in(memory, cstd_tiers_host(memory->daemon), edge, cst_layout_edge_bytes(edge), err);

    /* Nobody waits in an edge of all ranks. */
    return rc == CST_OK && !cst_layout_edge_is_shared(edge)
               ? cstd_shared_heads_add(&memory->heads, memory->segments[memory->n_segments - 1]->fd,
                                       err)
               : rc;
}

int cstd_memory_add_edges(struct cstd_memory *memory, struct cst_err *err)
{
    const struct cst_model *model = memory->model;
    int rc = CST_OK;

    memory->first_edge = memory->n_segments;
    if (memory->kept != NULL) { /* The edges are parked with the pools. */
        memory->n_segments += cstd_memory_n_edge_segments(model);
        return CST_OK;
    }
    for (uint32_t i = 0; i < 2 * model->n_edges && rc == CST_OK; i++) {
        const struct cst_layout_edge *edge = &model->edges[i % model->n_edges];

        if (i < model->n_edges) {
            rc = add_words(memory, edge, err);
        } else if (edge->on_device) {
            rc = add_slots(memory, edge, err);
        }
        rc = rc == CST_OK ? CST_OK : cst_err_prefix(err, "edge '%s'", edge->name);
    }
    return rc;
}

uint32_t cstd_memory_n_edge_segments(const struct cst_model *model)
{
    return model->n_edges + cst_model_edges_on_device(model, model->n_edges);
}

uint64_t cstd_memory_edge_bytes(const struct cstd_memory *memory)
{
    const struct cst_model *model = memory->model;
    uint64_t bytes = cst_model_edge_bytes(model);

    for (uint32_t i = 0; i < model->n_edges; i++) {
        bytes += model->edges[i].on_device ? slots_of(memory, &model->edges[i]).bytes : 0;
    }
    return bytes;
}

/* -- replacing slots -------------------------------------------------------------------------- */

/* Index in memory->segments of the slots of edge @i. */
static uint32_t place_of(const struct cstd_memory *memory, uint32_t i)
{
    return memory->first_edge + memory->model->n_edges +
           cst_model_edges_on_device(memory->model, i);
}

/* Return whether the slots of edge @i, an edge of @rank, have to be made again. They are not if
 * their accelerator stays: should it be lost, they are made again when the receiver's pool moves.
 */
static bool is_replaced(const struct cstd_memory *memory, uint32_t i, uint32_t rank)
{
    const struct cst_layout_edge *edge = &memory->model->edges[i];
    const struct cstd_segment *segment;

    if (!edge->on_device || !cst_layout_edge_has(edge, rank)) {
        return false;
    }
    segment = memory->segments[place_of(memory, i)];
    return segment->err.status != CST_OK ||
           cstd_tiers_of_segment(memory->daemon, segment) != slots_of(memory, edge).tier;
}

void cstd_memory_undo_slots(struct cstd_memory *memory, struct cstd_memory_slots *moved)
{
    while (moved->n > 0) {
        uint32_t at = moved->at[--moved->n];

        cstd_segment_unref(memory->segments[at]);
        memory->segments[at] = moved->old[moved->n];
        memory->ids[at] = memory->segments[at]->id;
    }
}

int cstd_memory_replace_slots(struct cstd_memory *memory, uint32_t rank,
                              struct cstd_memory_slots *moved, struct cst_err *err)
{
    int rc = CST_OK;

    moved->n = 0;
    for (uint32_t i = 0; i < memory->model->n_edges && rc == CST_OK; i++) {
        const struct cst_layout_edge *edge = &memory->model->edges[i];

        if (is_replaced(memory, i, rank)) {
            uint32_t at = place_of(memory, i);
            struct cstd_segment *old = memory->segments[at];

            memory->n_segments = at; /* The place of the next segment. */
            rc = add_slots(memory, edge, err);
            if (rc == CST_OK) {
                moved->at[moved->n] = at;
                moved->old[moved->n++] = old;
            } else {
                (void)cst_err_prefix(err, "edge '%s'", edge->name);
            }
        }
    }
    if (rc != CST_OK) {
        cstd_memory_undo_slots(memory, moved);
    }
    return rc;
}

void cstd_memory_mount_slots(struct cstd_memory *memory, const struct cstd_memory_slots *moved)
{
    memory->slots_replaced += moved->n > 0;
    for (uint32_t i = 0; i < moved->n; i++) {
        memory->pool_bytes -= cstd_memory_release(memory, moved->old[i]);
        cstd_memory_mount(memory, memory->segments[moved->at[i]]);
    }
}

/* Add the memory of edge @i again, and put it in place of the old one. */
static int renew(struct cstd_memory *memory, uint32_t i, struct cstd_memory_slots *moved,
                 struct cst_err *err)
{
    const struct cst_layout_edge *edge = &memory->model->edges[i];
    const uint32_t at = memory->first_edge + i;
    struct cstd_segment *old = memory->segments[at];
    int rc;

    memory->n_segments = at; /* The place of the next segment. */
    rc = add_words(memory, edge, err);
    if (rc != CST_OK) {
        return cst_err_prefix(err, "edge '%s'", edge->name);
    }
    /* Ranks use it while the engine populates it: the engine's death must not empty it. */
    memory->segments[at]->population = NULL;
    moved->at[moved->n] = at;
    moved->old[moved->n++] = old;
    return CST_OK;
}

int cstd_memory_renew_edges(struct cstd_memory *memory, struct cst_err *err)
{
    const uint32_t n_all = memory->n_segments;
    struct cstd_memory_slots moved;
    int rc = CST_OK;

    if (memory->parked || memory->n_waiting > 0 || memory->ready.queued) {
        return CST_EAGAIN;
    }
    moved.n = 0;
    for (uint32_t i = 0; i < memory->model->n_edges && rc == CST_OK; i++) {
        if (cst_layout_edge_is_shared(&memory->model->edges[i])) {
            rc = renew(memory, i, &moved, err);
        }
    }
    memory->n_segments = n_all;
    if (rc != CST_OK) {
        cstd_memory_undo_slots(memory, &moved);
        return rc;
    }
    memory->err = (struct cst_err){0};
    cstd_memory_mount_slots(memory, &moved);
    return CST_OK;
}

/* -- slots that a worker cannot map ----------------------------------------------------------- */

int cstd_memory_make_host_slots(struct cstd_memory *memory, uint32_t i, struct cstd_segment **out,
                                struct cst_err *err)
{
    const struct cst_layout_edge *edge = &memory->model->edges[i];
    const uint32_t at = place_of(memory, i), n_all = memory->n_segments;
    struct cstd_segment *old = memory->segments[at];
    int rc;

    memory->n_segments = at; /* The place of the next segment. */
    rc = add_in(memory, cstd_tiers_host(memory->daemon), edge,
                cst_edge_slots_bytes(edge->slot_bytes, edge->n_slots), err);
    memory->n_segments = n_all;
    if (rc == CST_OK) {
        *out = memory->segments[at];
        memory->segments[at] = old; /* Until the new slots are populated. */
        memory->ids[at] = old->id;
        /* Otherwise err is about segments that on_ready has not reported yet. */
        if (memory->n_waiting == 0 && !memory->ready.queued) {
            memory->err = (struct cst_err){0};
        }
        cstd_memory_mount(memory, *out);
    }
    return rc;
}

void cstd_memory_replace_edge_slots(struct cstd_memory *memory, uint32_t i,
                                    struct cstd_segment *segment)
{
    const uint32_t at = place_of(memory, i);

    memory->pool_bytes -= cstd_memory_release(memory, memory->segments[at]);
    memory->segments[at] = segment;
    memory->ids[at] = segment->id;
    memory->slots_replaced++;
}

/* -- questions ------------------------------------------------------------------------------ */

struct cstd_segment *cstd_memory_edge(const struct cstd_memory *memory, uint32_t i)
{
    return memory->segments[memory->first_edge + i];
}

struct cstd_segment *cstd_memory_edge_slots(const struct cstd_memory *memory, uint32_t i)
{
    return memory->model->edges[i].on_device ? memory->segments[place_of(memory, i)] : NULL;
}
