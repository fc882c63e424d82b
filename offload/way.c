/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/way.h"

static uint32_t first_gpu(uint32_t chunk, uint32_t world, const uint32_t *engines)
{
    for (uint32_t i = 0; i < world; i++) {
        uint32_t engine = engines[(chunk + i) % world];

        if (engine != CST_WAY_HOST_MEMORY && engine != CST_WAY_NOTHING) {
            return engine;
        }
    }
    return CST_WAY_HOST_MEMORY;
}

struct cst_way cst_way_choose(uint32_t home, uint32_t chunk, uint32_t world,
                              const uint32_t *engines)
{
    struct cst_way way = {.engine = first_gpu(chunk % world, world, engines)};

    for (uint32_t rank = 0; rank < world; rank++) {
        if (engines[rank] == CST_WAY_NOTHING) {
            continue;
        }
        way.n_host += engines[rank] == CST_WAY_HOST_MEMORY;
        way.n_own += engines[rank] != CST_WAY_HOST_MEMORY && engines[rank] == way.engine;
        way.n_peers += engines[rank] != CST_WAY_HOST_MEMORY && engines[rank] != way.engine;
    }
    if (way.engine == CST_WAY_HOST_MEMORY) {
        way.engine = home;
        way.kind = CST_WAY_HOST;
    } else {
        way.kind = way.n_peers > 0 ? CST_WAY_PEER : CST_WAY_DEVICE;
    }
    return way;
}
