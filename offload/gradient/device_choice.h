/* SPDX-License-Identifier: Apache-2.0 */
/* Which chunks get device updates, and in which device reservation. Changes the order of updates in
 * struct cst_device_updates. Called by update, overlap, commit and staged_update. */
#ifndef CST_DEVICE_CHOICE_H
#define CST_DEVICE_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

struct cst_core;

/* The device reservation for the updates of the tier that has the states of @chunk; CST_NONE: none
 * fits. */
uint32_t cst_device_choice_own(const struct cst_core *core, uint32_t chunk);

/* The device reservation for the next update, which is that of @chunk; CST_NONE: none. Counts the
 * update. */
uint32_t cst_device_choice_make(struct cst_core *core, uint32_t chunk);

/* True if the next update, that of @chunk, is to be made by its node; it is then counted. False: it
 * is to be a device update. */
bool cst_device_choice_pass(struct cst_core *core, uint32_t chunk);

/* All updates of a step are issued: the next update is number 1 of a new order, with the k that is
 * set then. */
void cst_device_choice_end(struct cst_core *core);

#endif
