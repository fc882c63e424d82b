/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/gradient/reduce_site.h"

#include <stdbool.h>

static bool is_on_gpu(uint32_t tier)
{
    return cst_tier_is_apart(tier) && tier != CST_REDUCE_SITE_NOTHING;
}

/* The engines of the GPUs that have contributions. */
static struct cst_set find_gpus(uint32_t world, const uint32_t *tiers)
{
    struct cst_set gpus = {{0}};

    for (uint32_t rank = 0; rank < world; rank++) {
        if (is_on_gpu(tiers[rank])) {
            cst_set_add(&gpus, tiers[rank]);
        }
    }
    return gpus;
}

/* The engine of the first GPU, from rank @first on, that can access the memory of all @gpus.
 * CST_TIER_HOST: none can. */
static uint32_t first_gpu(uint32_t first, uint32_t world, const uint32_t *tiers,
                          const struct cst_set *const *unreachable, const struct cst_set *gpus)
{
    for (uint32_t i = 0; i < world; i++) {
        uint32_t rank = (first + i) % world;

        if (is_on_gpu(tiers[rank]) && !cst_set_meet(unreachable[rank], gpus)) {
            return tiers[rank];
        }
    }
    return CST_TIER_HOST;
}

struct cst_reduce_site cst_reduce_site_choose(uint32_t home, uint32_t chunk, uint32_t world,
                                              const uint32_t *tiers,
                                              const struct cst_set *const *unreachable)
{
    const struct cst_set gpus = find_gpus(world, tiers);
    struct cst_reduce_site site = {.engine =
                                       first_gpu(chunk % world, world, tiers, unreachable, &gpus)};

    for (uint32_t rank = 0; rank < world; rank++) {
        if (tiers[rank] == CST_REDUCE_SITE_NOTHING) {
            continue;
        }
        site.n_host += tiers[rank] == CST_TIER_HOST;
        site.n_own += is_on_gpu(tiers[rank]) && tiers[rank] == site.engine;
        site.n_peers += is_on_gpu(tiers[rank]) && tiers[rank] != site.engine;
    }
    if (site.engine == CST_TIER_HOST) {
        site.engine = home;
        site.kind = site.n_peers > 0 ? CST_REDUCE_SITE_LANDED : CST_REDUCE_SITE_HOST;
    } else {
        site.kind = site.n_peers > 0 ? CST_REDUCE_SITE_PEER : CST_REDUCE_SITE_DEVICE;
    }
    return site;
}
