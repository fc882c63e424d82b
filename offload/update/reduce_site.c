/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/update/reduce_site.h"

static uint32_t first_gpu(uint32_t chunk, uint32_t world, const uint32_t *engines)
{
    for (uint32_t i = 0; i < world; i++) {
        uint32_t engine = engines[(chunk + i) % world];

        if (engine != CST_REDUCE_SITE_HOST_MEMORY && engine != CST_REDUCE_SITE_NOTHING) {
            return engine;
        }
    }
    return CST_REDUCE_SITE_HOST_MEMORY;
}

struct cst_reduce_site cst_reduce_site_choose(uint32_t home, uint32_t chunk, uint32_t world,
                                              const uint32_t *engines)
{
    struct cst_reduce_site site = {.engine = first_gpu(chunk % world, world, engines)};

    for (uint32_t rank = 0; rank < world; rank++) {
        if (engines[rank] == CST_REDUCE_SITE_NOTHING) {
            continue;
        }
        site.n_host += engines[rank] == CST_REDUCE_SITE_HOST_MEMORY;
        site.n_own += engines[rank] != CST_REDUCE_SITE_HOST_MEMORY && engines[rank] == site.engine;
        site.n_peers +=
            engines[rank] != CST_REDUCE_SITE_HOST_MEMORY && engines[rank] != site.engine;
    }
    if (site.engine == CST_REDUCE_SITE_HOST_MEMORY) {
        site.engine = home;
        site.kind = CST_REDUCE_SITE_HOST;
    } else {
        site.kind = site.n_peers > 0 ? CST_REDUCE_SITE_PEER : CST_REDUCE_SITE_DEVICE;
    }
    return site;
}
