/* SPDX-License-Identifier: Apache-2.0 */
/* slow_daemon: cisternd whose devices in [paced] are a tier "slow" instead of simulated
 * accelerators: memory on which states lie, and whose engine (slow_engine) only copies. The states
 * are brought to host memory for their updates. This file and one row of the daemon's kinds of
 * tiers are all that makes it one; the definition here takes the place of
 * daemon/memory/tiers/paced.c. */
#include "daemon/memory/tiers/gpu.h"

static const struct cstd_tier *buffers(const struct cstd_tier *tier)
{
    return cstd_tiers_host(tier->daemon);
}

/* There are no pools, so nobody asks for the rest. */
const struct cstd_tier_kind cstd_tier_paced = {.name = "slow",
                                               .apart = true,
                                               .one_budget = true,
                                               .create = cstd_tier_gpu_create,
                                               .count = cstd_tier_gpu_count,
                                               .buffers = buffers};
