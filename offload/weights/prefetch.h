/* SPDX-License-Identifier: Apache-2.0 */
/* Loads that nobody has asked for yet. Owns nothing: the horizons are in
 * offload/books/lookahead.h. Called by fetch. */
#ifndef CST_PREFETCH_H
#define CST_PREFETCH_H

#include "offload/base/event.h"

struct cst_core;

/* Start the loads that can be started. */
void cst_prefetch_look_ahead(struct cst_core *core, uint32_t rank);

#endif
