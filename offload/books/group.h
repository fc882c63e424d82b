/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a chunk, and error messages about them. Owns nothing. Every part of the core may
 * call this. */
#ifndef CST_GROUP_H
#define CST_GROUP_H

#include "offload/base/event.h"

struct cst_core;

/* True if @event's rank may fetch @event's chunk and, with @grad, its gradient. Else the request is
 * refused with a message about the group, the pool or the pattern. */
bool cst_group_admit(struct cst_core *core, const struct cst_event *event, bool grad);

/* Write the ranks *ranks into @out and return it: "rank 3", "ranks 0, 2", "ranks 0, 1, 2, 3, 4, 5,
 * 6, 7 and 56 more". */
#define CST_GROUP_TEXT 80
const char *cst_group_words(const struct cst_set *ranks, char out[CST_GROUP_TEXT]);

/* Number of the group of @chunk's tensors in the model. */
uint32_t cst_group_number(const struct cst_core *core, uint32_t chunk);

#endif
