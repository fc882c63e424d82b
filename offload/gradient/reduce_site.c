/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/gradient/reduce_site.h"

#include <stdbool.h>

static bool is_on_gpu(uint32_t engine)
{
    return engine != CST_REDUCE_SITE_HOST_MEMORY && engine != CST_REDUCE_SITE_NOTHING;
}

/* The engines of the GPUs that have contributions, one bit each. Numbers of 64 and more occur in
 * simulations only, and have no bit. */
static uint64_t find_gpus(uint32_t world, const uint32_t *engines)
{
    uint64_t gpus = 0;

    for (uint32_t rank = 0; rank < world; rank++) {
        gpus |= is_on_gpu(engines[rank]) && engines[rank] < 64 ? UINT64_C(1) << engines[rank] : 0;
    }
    return gpus;
}

/* The engine of the first GPU, from rank @first on, that can access the memory of all @gpus.
 * CST_REDUCE_SITE_HOST_MEMORY: none can. */
static uint32_t first_gpu(uint32_t first, uint32_t world, const uint32_t *engines,
                          const uint64_t *unreachable, uint64_t gpus)
{
    for (uint32_t i = 0; i < world; i++) {
        uint32_t rank = (first + i) % world;

        if (is_on_gpu(engines[rank]) && (unreachable[rank] & gpus) == 0) {
            return engines[rank];
        }
    }
    return CST_REDUCE_SITE_HOST_MEMORY;
}

struct cst_reduce_site cst_reduce_site_choose(uint32_t home, uint32_t chunk, uint32_t world,
                                              const uint32_t *engines, const uint64_t *unreachable)
{
    struct cst_reduce_site site = {
        .engine = first_gpu(chunk % world, world, engines, unreachable, find_gpus(world, engines))};

    for (uint32_t rank = 0; rank < world; rank++) {
        if (engines[rank] == CST_REDUCE_SITE_NOTHING) {
            continue;
        }
        site.n_host += engines[rank] == CST_REDUCE_SITE_HOST_MEMORY;
        site.n_own += is_on_gpu(engines[rank]) && engines[rank] == site.engine;
        site.n_peers += is_on_gpu(engines[rank]) && engines[rank] != site.engine;
    }
    if (site.engine == CST_REDUCE_SITE_HOST_MEMORY) {
        site.engine = home;
        site.kind = site.n_peers > 0 ? CST_REDUCE_SITE_LANDED : CST_REDUCE_SITE_HOST;
    } else {
        site.kind = site.n_peers > 0 ? CST_REDUCE_SITE_PEER : CST_REDUCE_SITE_DEVICE;
    }
    return site;
}
