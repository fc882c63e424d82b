/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of simulated accelerators: memfds that the accelerator's engine allocates. */
#include "daemon/memory/tiers/gpu.h"

#include "daemon/base/daemon_state.h"
#include "daemon/settings/settings.h"

#include <stdio.h>

static double limited(double rate, uint64_t limit)
{
    return limit > 0 ? (double)limit : rate;
}

/* A simulated accelerator keeps the rates that the configuration sets. */
static void rates(const struct cstd_tier *tier, const struct cst_rates_node *node,
                  struct cst_rates_device *out)
{
    const struct cstd_settings *config = tier->daemon->config;

    *out = (struct cst_rates_device){.memory_bytes = config->paced_memory,
                                     .up = limited(node->copy, config->paced_up),
                                     .down = limited(node->copy, config->paced_down),
                                     .update = limited(node->update, config->paced_update),
                                     .memory = node->pass,
                                     .products = node->products};
    (void)snprintf(out->name, sizeof out->name, "%s", tier->product);
}

const struct cstd_tier_kind cstd_tier_paced = {.name = "paced",
                                               .apart = true,
                                               .one_budget = true,
                                               .create = cstd_tier_gpu_create,
                                               .count = cstd_tier_gpu_count,
                                               .unreachable = cstd_tier_gpu_unreachable,
                                               .n_updaters = cstd_tier_gpu_n_updaters,
                                               .updater = cstd_tier_gpu_updater,
                                               .buffers = cstd_tier_gpu_buffers,
                                               .rates = rates,
                                               .explain = cstd_tier_gpu_explain};
