/* SPDX-License-Identifier: Apache-2.0 */
/* Spills of gradients (spill.c). Owns nothing. Called by core.c, fetch and prefetch. */
#ifndef CST_SPILL_H
#define CST_SPILL_H

#include "offload/base/event.h"
#include "offload/base/flight.h"

struct cst_core;

/* Spill a pending gradient of @rank from a block of @part: to a bf16 grad row, which can keep one
 * contribution, or into the sum in an fp32 row. False: no gradient can be moved. */
bool cst_spill_begin(struct cst_core *core, uint32_t rank, uint32_t part);

/* Handle the completion of a copy to the grad row. */
void cst_spill_done(struct cst_core *core, const struct cst_flight *flight,
                    const struct cst_event *event);

#endif
