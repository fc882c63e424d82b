/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of contributions: the REDUCE commands. Owns nothing: the state is in the collection. Called
 * by core.c, spill, overlap and update_end. */
#ifndef CST_SUM_H
#define CST_SUM_H

#include "offload/base/event.h"
#include "offload/base/flight.h"
#include "offload/gradient/collection.h"
#include "offload/gradient/reduce_site.h"

struct cst_core;

/* Issue a reduction of @sources, from cst_collection_next or, into an fp32 row, from
 * cst_collection_sources. */
void cst_sum_add(struct cst_core *core, uint32_t chunk, const struct cst_sources *sources);

/* How the contributions to @chunk are summed: those that a REDUCE reads now or, with @all, one of
 * each rank, from its pool. */
struct cst_reduce_site cst_sum_site(const struct cst_core *core, uint32_t chunk, bool all);

/* Make @update, which was just issued, also sum @sources. */
void cst_sum_fuse(struct cst_core *core, uint32_t chunk, const struct cst_sources *sources,
                  struct cst_command *update);

/* Handle the completion of an update that also made the sum. */
void cst_sum_fused(struct cst_core *core, const struct cst_flight *flight,
                   const struct cst_event *event);

/* Handle the completion of a REDUCE. */
void cst_sum_done(struct cst_core *core, const struct cst_flight *flight,
                  const struct cst_event *event);

#endif
