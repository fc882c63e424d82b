/* SPDX-License-Identifier: Apache-2.0 */
/* States on drives in a plan: where they are, and the buffers of host memory in which they are
 * updated. Private to offload/plan/. */
#ifndef CST_PLAN_DRIVES_H
#define CST_PLAN_DRIVES_H

#include "offload/plan/search.h"

/* CST_EINVAL: a rate of drives is not known; there are more drives, and accelerators with updates,
 * than a job can have; or gradients take the place of weights. */
int cst_drives_check(const struct cst_search *search, struct cst_err *err);

/* True if @tier is that of a drive. */
bool cst_drives_have(const struct cst_search *search, uint32_t tier);

/* Add the drives to the places of states in @config, after those of accelerators. */
void cst_drives_devices(const struct cst_search *search, struct cst_layout_config *config);

/* Fill in the fields of @point about drives, which follow from @layout. */
void cst_drives_fit(const struct cst_search *search, const struct cst_layout *layout,
                    struct cst_plan_point *point);

/* Bytes of the files on all drives. */
uint64_t cst_drives_bytes(const struct cst_search *search, const struct cst_layout *layout);

/* Bytes of host memory in which the states of all drives are updated. */
uint64_t cst_drives_window_bytes(const struct cst_search *search, const struct cst_layout *layout);

/* Write a reservation of host memory for each drive to @list. Returns their number. */
uint32_t cst_drives_list(const struct cst_search *search, const struct cst_layout *layout,
                         struct cst_core_device_reservation *list);

/* Least time, in seconds, in which the drives read and write the states of @layout once. */
double cst_drives_least_s(const struct cst_search *search, const struct cst_layout *layout);

/* Fill in what @choice says about drives. */
void cst_drives_describe(const struct cst_search *search, const struct cst_layout *layout,
                         struct cst_plan_choice *choice);

#endif
