/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for weights and gradients. Owns nothing: offload/books/waiting.h has those that
 * wait. Called by core.c. */
#ifndef CST_FETCH_H
#define CST_FETCH_H

#include "offload/base/event.h"

struct cst_core;

/* Handle CST_EV_FETCH_WEIGHT, FETCH_GRAD and WANT. */
void cst_fetch_weight(struct cst_core *core, const struct cst_event *event);
void cst_fetch_grad(struct cst_core *core, const struct cst_event *event);
void cst_fetch_want(struct cst_core *core, const struct cst_event *event);

/* Serve waiting fetches and start prefetches. Called at the end of each event. */
void cst_fetch_pump(struct cst_core *core);

#endif
