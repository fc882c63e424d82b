/* SPDX-License-Identifier: Apache-2.0 */
/* Rooms of accelerators, seen by who chooses how many updates go through them: a layout and rooms
 * in, the chunks and bytes that offload/interleave.h reckons with out. Pure. */
#ifndef CST_PLAN_ROOMS_H
#define CST_PLAN_ROOMS_H

#include "offload/core.h"
#include "offload/interleave.h"
#include "offload/plan/rates.h"

/* Fill in what @layout, the @n_rooms of @rooms and the @world pools of @pools say: chunks that have
 * a choice, nodes, bytes of an element, links, buffers. Rates and `shared` stay as they are. */
void cst_rooms_describe(struct cst_interleave *out, const struct cst_layout *layout,
                        const struct cst_core_room *rooms, uint32_t n_rooms,
                        const struct cst_core_pool *pools, uint32_t world);

/* Fill in rates: of all nodes together, and of @accelerator, whose link's directions are used at
 * once. */
void cst_rooms_rates(struct cst_interleave *out, const struct cst_rates *rates,
                     const struct cst_rates_device *accelerator);

#endif
