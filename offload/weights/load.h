/* SPDX-License-Identifier: Apache-2.0 */
/* Loads of weights into blocks. Owns nothing. Called by core.c, fetch and prefetch. */
#ifndef CST_LOAD_H
#define CST_LOAD_H

#include "offload/base/event.h"
#include "offload/base/flight.h"

struct cst_core;

/* Handle CST_EV_PREFETCH. */
void cst_load_prefetch(struct cst_core *core, const struct cst_event *event);

/* Load the weights of @chunk into block @b, which was just taken for them. */
void cst_load_weights(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b,
                      enum cst_priority priority);

/* Load weights that nobody has asked for. Evicts only blocks that are used again after @time.
 * False: no block is available. */
bool cst_load_ahead(struct cst_core *core, uint32_t rank, uint32_t chunk, uint64_t time);

/* Handle the completion of a load. */
void cst_load_done(struct cst_core *core, const struct cst_flight *flight,
                   const struct cst_event *event);

#endif
