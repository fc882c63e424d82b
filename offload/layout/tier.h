/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of tiers, the kinds of memory in which rows and blocks lie: host memory, memory of an
 * accelerator. A tier that is apart has an engine of its own, whose number is the tier's. */
#ifndef CST_TIER_H
#define CST_TIER_H

#include <stdbool.h>
#include <stdint.h>

#define CST_TIER_HOST 0 /* Host memory of all NUMA nodes, which all engines map. */

/* True if the memory of tier @number is apart from host memory: its engine brings rows and blocks
 * there and back, and it is lost with its device. */
static inline bool cst_tier_is_apart(uint32_t number)
{
    return number != CST_TIER_HOST;
}

#endif
