/* SPDX-License-Identifier: Apache-2.0 */
/* Device reservations of a point, and states that stay on accelerators. Private to offload/plan/.
 */
#ifndef CST_PLAN_RESERVATION_H
#define CST_PLAN_RESERVATION_H

#include "offload/plan/search.h"

#define CST_SEARCH_GRAIN (2u << 20) /* Granularity of a GPU's memory. */

/* CST_EINVAL: impossible requests for device reservations and states on accelerators. CST_EPOOL:
 * they exceed the accelerator's memory. */
int cst_reservation_check(const struct cst_search *search, struct cst_err *err);
/* True if the planner chooses the device reservation, and there can be one. */
bool cst_reservation_is_chosen(const struct cst_search *search);
/* True if the planner can choose memory that pools lend instead of a device reservation. Not with
 * more ranks than can lend: each would need its own simulation. */
bool cst_reservation_may_lend(const struct cst_search *search);
/* True if the planner chooses the states that stay on accelerators, and there can be some. */
bool cst_reservation_may_split(const struct cst_search *search);
/* True if the planner can choose a device reservation that keeps gradients: each is the only
 * contribution. */
bool cst_reservation_may_keep(const struct cst_search *search);
/* The share of a rank if each accelerator has @bytes, rounded up. */
uint64_t cst_reservation_of_rank(const struct cst_search *search, uint64_t bytes);
/* Memory of an accelerator if ranks compute on the processor. UINT64_MAX: they do not, or it is not
 * known. */
uint64_t cst_reservation_memory(const struct cst_search *search);
/* Bytes of each rank's accelerator for the point's device reservation. */
uint64_t cst_reservation_bytes(const struct cst_search *search, const struct cst_plan_point *point,
                               const struct cst_layout *layout);
/* Fill in the accelerators with states, for a layout. */
void cst_reservation_devices(const struct cst_search *search, const struct cst_plan_point *point,
                             struct cst_layout_config *config);
/* The pools of the point's first @world ranks. Their segments are NULL. */
void cst_search_pools(const struct cst_search *search, const struct cst_plan_point *point,
                      const struct cst_layout *layout, uint32_t world, struct cst_core_pool *pools);
/* Number of chunks for which the pool of @rank lends memory at a time. */
uint32_t cst_reservation_lent_buffers(const struct cst_search *search,
                                      const struct cst_plan_point *point,
                                      const struct cst_layout *layout, uint32_t rank);
/* The device reservations of the point: returns their number, and k in *interleave. */
uint32_t cst_reservation_list(const struct cst_search *search, const struct cst_plan_point *point,
                              const struct cst_layout *layout,
                              struct cst_core_device_reservation list[CST_CORE_MAX_UPDATE_DEVICES],
                              uint32_t *interleave);

#endif
