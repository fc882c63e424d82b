/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/update/landing.h"

#include "offload/core/core_state.h"
#include "offload/update/reduce_site.h"

#include <assert.h>
#include <stdlib.h>

int cst_landing_open(struct cst_core *core)
{
    if (core->layout->landings == NULL) {
        return CST_OK;
    }
    core->landings.readers =
        calloc((size_t)core->n_nodes * CST_LAYOUT_LANDINGS, sizeof *core->landings.readers);
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
    uint64_t ranks = core->chunks[c].ranks;

    return core->layout->landings != NULL && core->chunks[c].has_states &&
           __builtin_popcountll(ranks) == 1 &&
           core->ranks[__builtin_ctzll(ranks)].pool.engine != CST_REDUCE_SITE_HOST_MEMORY;
}

static uint32_t landing_of(const struct cst_core *core, uint32_t c)
{
    uint32_t node = core->layout->chunks[c].node;

    return node * CST_LAYOUT_LANDINGS + core->landings.next[node];
}

uint64_t cst_landing_begin(struct cst_core *core, uint32_t c, struct cst_place *place)
{
    uint32_t rank = (uint32_t)__builtin_ctzll(core->chunks[c].ranks), landing;
    const struct cst_pool *pool = &core->ranks[rank].pool;
    struct cst_flight flight = {.kind = CST_FLIGHT_LANDING,
                                .chunk = c,
                                .rank = rank,
                                .collection = core->collection.number};
    const struct cst_layout_row *row;
    struct cst_command *copy;

    landing = landing_of(core, c);
    row = &core->layout->landings[landing];
    *place =
        (struct cst_place){.segment = core->arena_segments[row->segment], .offset = row->offset};
    copy = cst_core_command(core, CST_COMMAND_COPY, pool->engine, &flight);
    copy->priority = CST_PRIORITY_EVICTION;
    copy->src[copy->n_src++] = cst_pool_place(pool, pool->grad_of[c]);
    copy->dst[copy->n_dst++] = *place;
    copy->bytes = cst_layout_weight_bytes(&core->layout->chunks[c]);
    cst_command_after(copy, core->landings.readers[landing]);
    return copy->ticket;
}

void cst_landing_read(struct cst_core *core, uint32_t c, struct cst_command *reduce,
                      uint64_t ticket, struct cst_place place)
{
    uint32_t *next = &core->landings.next[core->layout->chunks[c].node];

    assert(reduce->n_src == 1);
    reduce->src[0] = place;
    /* The next COPY into this landing waits for the REDUCE, but must not fail with it. */
    reduce->may_fail = true;
    cst_command_after(reduce, ticket);
    core->landings.readers[landing_of(core, c)] = reduce->ticket;
    *next = (*next + 1) % CST_LAYOUT_LANDINGS;
}

void cst_landing_done(struct cst_core *core, const struct cst_flight *flight,
                      const struct cst_event *event)
{
    if (cst_event_engine_lost(event) && flight->collection == core->collection.number) {
        cst_fact_pools_lost(&core->facts, core->ranks[flight->rank].pool.engine, true);
    }
}
