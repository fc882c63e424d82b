/* SPDX-License-Identifier: Apache-2.0 */
/* Loss of engines: the attempt ends, and ranks get the cause until they attach again. Owns nothing.
 * Called by core.c. */
#ifndef CST_DEVICE_LOSS_H
#define CST_DEVICE_LOSS_H

#include "offload/base/event.h"

struct cst_core;

/* A command of @engine for a pool in its accelerator's memory was returned because the engine is
 * lost. The attempt ends, and the ranks whose pools are there get the cause until they attach
 * again. @needed: the closing step cannot be committed without the command; else it is committed
 * first. */
void cst_device_loss_of_pools(struct cst_core *core, uint32_t engine, const struct cst_event *event,
                              bool needed);

/* Handle CST_EV_NODE_DOWN: the attempt ends, and all ranks get the cause until they attach
 * again. */
void cst_device_loss_of_node(struct cst_core *core, const struct cst_event *event);

#endif
