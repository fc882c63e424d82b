/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of contributions: the REDUCE commands. Owns nothing: the state is in the collection. Called
 * by core.c, spill, overlap and update_end. */
#ifndef CST_SUM_H
#define CST_SUM_H

#include "offload/base/event.h"
#include "offload/base/flight.h"
#include "offload/gradient/reduce_site.h"

struct cst_core;

/* Issue a reduction of the next contributions in rank order, up to the first rank whose
 * contribution is not known yet. Needs fp32 rows, or all contributions. */
void cst_sum_add(struct cst_core *core, uint32_t chunk);

/* How the contributions to @chunk are summed: those that a REDUCE reads now or, with @all, one of
 * each rank, from its pool. */
struct cst_reduce_site cst_sum_site(const struct cst_core *core, uint32_t chunk, bool all);

/* Make @update, which was just issued, also sum the next contributions in rank order. */
void cst_sum_fuse(struct cst_core *core, uint32_t chunk, struct cst_command *update);

/* Handle the completion of an update that also made the sum. */
void cst_sum_fused(struct cst_core *core, const struct cst_flight *flight,
                   const struct cst_event *event);

/* Handle the completion of a REDUCE. */
void cst_sum_done(struct cst_core *core, const struct cst_flight *flight,
                  const struct cst_event *event);

#endif
