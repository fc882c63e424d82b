/* SPDX-License-Identifier: Apache-2.0 */
/* The pipeline of device updates: the description of a machine by which
 * offload/books/interleave.h chooses which chunks get device updates. The chunks and bytes are
 * counted in a layout, device reservations and pools; the rates are measured ones. The searches for
 * plans and daemon/job/updates.c call these functions.
 *
 * The functions are pure: they write only *out, keep no pointers and may be called by any
 * thread. */
#ifndef CST_PIPELINE_H
#define CST_PIPELINE_H

#include "offload/core/core.h"
#include "offload/books/interleave.h"
#include "proto/rates.h"

/* Fill in all members of *out except the rates and `shared`, which stay as they are. Counted are
 * the chunks of @layout whose states lie in host memory, because only their updates are divided
 * between nodes and accelerators. `n_links` counts the device reservations with buffers, and
 * `buffers` is the least number of buffers that any of these has; without such a device reservation
 * both are 0. @reservations are the @n_reservations device reservations, and @pools the pools
 * of the @world ranks. */
void cst_pipeline_describe(struct cst_interleave *out, const struct cst_layout *layout,
                           const struct cst_core_device_reservation *reservations,
                           uint32_t n_reservations, const struct cst_core_pool *pools,
                           uint32_t world);

/* Fill in the rates of *out, which is described: those of updates include the products of Muon. Of
 * @rates only the nodes count: node_elems is the sum of their rates.
 * The other rates are those of @accelerator; those of its link were measured with both directions
 * in use, if there is such a measurement, and otherwise with one. */
void cst_pipeline_rates(struct cst_interleave *out, const struct cst_rates *rates,
                        const struct cst_rates_device *accelerator);

#endif
