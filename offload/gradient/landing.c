/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/gradient/landing.h"

#include "offload/core/core_state.h"
#include "offload/gradient/reduce_site.h"

#include <inttypes.h>
#include <stdlib.h>

int cst_landing_open(struct cst_core *core)
{
    if (core->layout->landings == NULL) {
        return CST_OK;
    }
    core->landings.readers =
        calloc((size_t)core->n_nodes * core->layout->n_landings, sizeof *core->landings.readers);
    core->landings.next = calloc(core->n_nodes, sizeof *core->landings.next);
    return core->landings.readers != NULL && core->landings.next != NULL ? CST_OK : CST_ENOMEM;
}

void cst_landing_close(struct cst_core *core)
{
    free(core->landings.readers);
    free(core->landings.next);
}

bool cst_landing_serves(const struct cst_core *core, uint32_t c)
{
    const struct cst_set *ranks = core->chunks[c].ranks;

    return core->layout->landings != NULL && core->grad_fp32 && core->chunks[c].has_states &&
           cst_set_count(ranks) == 1 &&
           cst_tier_is_apart(core->ranks[cst_set_first(ranks)].pool.tier);
}

int cst_landing_check(const struct cst_core *core, struct cst_err *err)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        for (uint32_t other = 0; other < core->world; other++) {
            const struct cst_pool *a = &core->ranks[rank].pool, *b = &core->ranks[other].pool;

            if (core->layout->lands != CST_LANDINGS_SHARED && rank != other &&
                cst_tier_is_apart(a->tier) && cst_tier_is_apart(b->tier) &&
                !cst_pool_reaches(a, b->tier)) {
                return cst_err_set(
                    err, CST_EINVAL,
                    "the accelerator of rank %" PRIu32
                    " cannot access the memory of that of rank %" PRIu32
                    ", and the layout has no landings for their gradients: it was made "
                    "when it could, or with 'peers = yes' in [gpu]",
                    rank, other);
            }
        }
    }
    return CST_OK;
}

/* Take the landing of @node whose turn it is. Returns its number in the layout. */
static uint32_t take_turn(struct cst_core *core, uint32_t node)
{
    uint32_t *next = &core->landings.next[node];
    uint32_t landing = node * core->layout->n_landings + *next;

    *next = (*next + 1) % core->layout->n_landings;
    return landing;
}

struct cst_place cst_landing_place(const struct cst_core *core,
                                   const struct cst_landing_group *group, uint32_t i)
{
    const struct cst_layout_row *row = &core->layout->landings[group->landings[i]];

    return (struct cst_place){.segment = core->arena_segments[row->segment], .offset = row->offset};
}

/* Issue the COPY of the contribution of @rank to the last landing of @group. */
static void copy_down(struct cst_core *core, uint32_t c, uint32_t rank,
                      struct cst_landing_group *group)
{
    const struct cst_pool *pool = &core->ranks[rank].pool;
    struct cst_flight flight = {.kind = CST_FLIGHT_LANDING,
                                .chunk = c,
                                .rank = rank,
                                .collection = core->collection.number};
    struct cst_command *copy = cst_core_command(core, CST_COMMAND_COPY, pool->tier, &flight);
    uint64_t *earlier = &group->copies[(group->n - 1) % CST_LANDING_AT_ONCE];

    copy->priority = CST_PRIORITY_EVICTION;
    copy->src[copy->n_src++] = cst_pool_place(pool, pool->grad_of[c]);
    copy->dst[copy->n_dst++] = cst_landing_place(core, group, group->n - 1);
    copy->bytes = cst_layout_weight_bytes(&core->layout->chunks[c]);
    cst_command_after(copy, core->landings.readers[group->landings[group->n - 1]]);
    cst_command_after(copy, *earlier);
    *earlier = copy->ticket;
}

void cst_landing_begin(struct cst_core *core, uint32_t c, const struct cst_set *blocks,
                       struct cst_landing_group *out)
{
    *out = (struct cst_landing_group){.n = 0};
    CST_SET_EACH (rank, blocks) {
        out->landings[out->n++] = take_turn(core, core->layout->chunks[c].node);
        copy_down(core, c, rank, out);
    }
}

void cst_landing_read(struct cst_core *core, const struct cst_landing_group *group,
                      struct cst_command *reduce)
{
    for (uint32_t i = 0; i < CST_LANDING_AT_ONCE; i++) {
        cst_command_after(reduce, group->copies[i]);
    }
    for (uint32_t i = 0; i < group->n; i++) {
        core->landings.readers[group->landings[i]] = reduce->ticket;
    }
    /* The next COPYs into these landings wait for the REDUCE, but must not fail with it. */
    reduce->may_fail = reduce->may_fail || group->n > 0;
}

void cst_landing_done(struct cst_core *core, const struct cst_flight *flight,
                      const struct cst_event *event)
{
    if (cst_event_engine_lost(event) && flight->collection == core->collection.number) {
        cst_fact_pools_lost(&core->facts, core->ranks[flight->rank].pool.tier, true);
    }
}
