/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory: memfds that the engine of a NUMA node populates, and that workers map. */
#include "daemon/memory/tiers/tier.h"

#include "daemon/base/daemon_state.h"
#include "daemon/engine/engines.h"
#include "daemon/engine/gpus.h"
#include "daemon/memory/memory_pools.h"
#include "daemon/settings/settings.h"

#include <stdio.h>

/* No worker gets a descriptor of the segment that was added last. */
static int keep_private(struct cstd_memory *memory, int rc)
{
    if (rc == CST_OK) {
        cstd_segment_keep_private(memory->segments[memory->n_segments - 1]);
    }
    return rc;
}

/* The node's engine populates the slots and has no other use for them. */
static int create_slots(struct cstd_memory *memory, const struct cstd_tier_piece *piece,
                        struct cst_err *err)
{
    int rc = cstd_memory_add_segment(memory, piece->bytes, memory->daemon->host,
                                     (struct cst_set){{0}}, (int)piece->node, err);

    if (rc == CST_OK) {
        memory->segments[memory->n_segments - 1]->engines = cst_set_of(piece->node);
    }
    return rc;
}

static int create(struct cstd_memory *memory, const struct cstd_tier *tier,
                  const struct cstd_tier_piece *piece, struct cst_err *err)
{
    const struct cst_set all = cstd_memory_all_nodes(memory);
    const int node = (int)piece->node;

    switch (piece->use) {
    case CSTD_TIER_STATES:
        return keep_private(memory,
                            cstd_memory_add_segment(memory, piece->bytes,
                                                    piece->sparse ? NULL : memory->daemon->host,
                                                    cst_set_of(piece->node), node, err));
    case CSTD_TIER_SLOTS:
        return create_slots(memory, piece, err);
    case CSTD_TIER_RESERVATION:
        return keep_private(
            memory, cstd_memory_add_segment(memory, piece->bytes, tier->budget, all, node, err));
    case CSTD_TIER_POOL:
        break;
    }
    return cstd_memory_add_segment(memory, piece->bytes, tier->budget, all, node, err);
}

/* The budget is what the configuration says. */
static void count(const struct cstd_tier *tier)
{
    (void)tier;
}

static struct cst_set unreachable(const struct cstd_tier *tier)
{
    (void)tier;
    return (struct cst_set){{0}};
}

/* The ranks take turns on the simulated accelerators. */
static unsigned n_updaters(const struct cstd_tier *tier)
{
    return tier->daemon->gpus->paced.n;
}

static const struct cstd_tier *updater(const struct cstd_tier *tier, uint32_t rank)
{
    struct cstd_gpu_list *paced = &tier->daemon->gpus->paced;

    return paced->n == 0 ? tier : cstd_tiers_of_gpu(tier->daemon, &paced->v[rank % paced->n]);
}

static const struct cstd_tier *buffers(const struct cstd_tier *tier)
{
    return tier;
}

static void rates(const struct cstd_tier *tier, const struct cst_rates_node *node,
                  struct cst_rates_device *out)
{
    *out = (struct cst_rates_device){.memory_bytes = tier->daemon->config->memory_bytes,
                                     .up = node->copy,
                                     .down = node->copy,
                                     .update = node->update,
                                     .memory = node->pass,
                                     .products = node->products};
    (void)snprintf(out->name, sizeof out->name, "%s", tier->product);
}

/* The core says everything. */
static unsigned explain(const struct cstd_tier *tier, uint32_t rank, char lines[][192],
                        unsigned max)
{
    (void)tier;
    (void)rank;
    (void)lines;
    (void)max;
    return 0;
}

const struct cstd_tier_kind cstd_tier_host = {.name = "host",
                                              .create = create,
                                              .count = count,
                                              .unreachable = unreachable,
                                              .n_updaters = n_updaters,
                                              .updater = updater,
                                              .buffers = buffers,
                                              .rates = rates,
                                              .explain = explain};
