/* SPDX-License-Identifier: Apache-2.0 */
/* Units of work, as requests: a rank asks for the next one, and waits for it in the rank. What may
 * run is decided by the schedule. Called by core.c. Owns nothing. */
#ifndef CST_NEXT_H
#define CST_NEXT_H

#include "offload/base/event.h"

struct cst_core;

/* Handle CST_EV_NEXT. */
void cst_next_ask(struct cst_core *core, const struct cst_event *event);

/* Give units to the ranks that wait for one. Called at the end of each event. */
void cst_next_pump(struct cst_core *core);

#endif
