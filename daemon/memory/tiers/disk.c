/* SPDX-License-Identifier: Apache-2.0 */
/* Files of users on drives, for states alone. The drive's engine only copies, so states are updated
 * in buffers of host memory. */
#include "daemon/memory/tiers/tier.h"

#include "daemon/memory/files.h"
#include "daemon/memory/memory_pools.h"

static int create(struct cstd_memory *memory, const struct cstd_tier *tier,
                  const struct cstd_tier_piece *piece, struct cst_err *err)
{
    return cstd_memory_add_file_segment(memory, piece->bytes, tier, err);
}

/* The file system counts. */
static void count(const struct cstd_tier *tier)
{
    (void)tier;
}

static const struct cstd_tier *buffers(const struct cstd_tier *tier)
{
    return cstd_tiers_host(tier->daemon);
}

/* There are no pools, so nobody asks for the rest. */
const struct cstd_tier_kind cstd_tier_disk = {.name = "disk",
                                              .apart = true,
                                              .one_budget = true,
                                              .create = create,
                                              .count = count,
                                              .buffers = buffers};
