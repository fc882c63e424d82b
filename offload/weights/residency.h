/* SPDX-License-Identifier: Apache-2.0 */
/* Which weights are in which blocks, after they were loaded: release, eviction by request, expiry,
 * and the end of leases. Owns nothing: the blocks are in the ranks' pools. Called by core.c, ranks,
 * the parts that load weights, and the parts that write them. */
#ifndef CST_RESIDENCY_H
#define CST_RESIDENCY_H

#include "offload/base/event.h"

struct cst_core;

/* Handle CST_EV_RELEASE and EVICT. */
void cst_residency_release(struct cst_core *core, const struct cst_event *event);
void cst_residency_evict(struct cst_core *core, const struct cst_event *event);

/* What block @b of @rank waited for has happened: answer the fetches that wait for it. */
void cst_residency_end_load(struct cst_core *core, uint32_t rank, uint32_t b,
                            const struct cst_event *event);

/* The command @ticket, which completes the weights of @chunk, ended with the status of @event:
 * workers that copy themselves may now read the row. */
void cst_residency_updated(struct cst_core *core, uint32_t chunk, uint64_t ticket,
                           const struct cst_event *event);

/* Workers that copy themselves and wait for update @from of @chunk now wait for @to. */
void cst_residency_replaced(struct cst_core *core, uint32_t chunk, uint64_t from, uint64_t to);

/* The arena has, or will have, newer weights of @chunk: no copy in a block is current any more. */
void cst_residency_expire(struct cst_core *core, uint32_t chunk);

/* End all leases of the rank. @quarantine: its process may still use the blocks; else they become
 * free or cached. */
void cst_residency_end_leases(struct cst_core *core, uint32_t rank, bool quarantine);

/* Free the rank's blocks with weights that nobody has leased. */
void cst_residency_drop(struct cst_core *core, uint32_t rank);

/* The rank's process is gone: free its blocks, except contributions and blocks that are being
 * copied. */
void cst_residency_reclaim(struct cst_core *core, uint32_t rank);

#endif
