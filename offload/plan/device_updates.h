/* SPDX-License-Identifier: Apache-2.0 */
/* Input for offload/interleave.h: from a layout and device reservations to numbers of chunks and
 * bytes. Pure. */
#ifndef CST_PLAN_DEVICE_UPDATES_H
#define CST_PLAN_DEVICE_UPDATES_H

#include "offload/core.h"
#include "offload/interleave.h"
#include "proto/rates.h"

/* Fill in everything that follows from @layout, the @n_rooms device reservations and the @world
 * pools: chunks that can get device updates or updates by nodes, nodes, bytes per element, links,
 * buffers. Leaves the rates and `shared` unchanged. */
void cst_device_updates_describe(struct cst_interleave *out, const struct cst_layout *layout,
                                 const struct cst_core_room *rooms, uint32_t n_rooms,
                                 const struct cst_core_pool *pools, uint32_t world);

/* Fill in the rates: of all nodes together, and of @accelerator, with both directions of its link
 * in use. */
void cst_device_updates_rates(struct cst_interleave *out, const struct cst_rates *rates,
                              const struct cst_rates_device *accelerator);

#endif
