/* SPDX-License-Identifier: Apache-2.0 */
/* Where the slots of edges with `on_device` are, and what they take of the budgets: on the
 * accelerator of the rank that takes, if the accelerator of the rank that puts can access it and
 * both workers can map it (slot_refusals.h), and else in host memory. memory.h allocates them. Loop
 * thread only. */
#ifndef CSTD_EDGE_SLOTS_H
#define CSTD_EDGE_SLOTS_H

#include <stdint.h>

struct cst_layout_edge;
struct cstd_job;
struct cstd_memory;
struct cstd_tier;

/* The memory of the slots of an edge. */
struct cstd_edge_slots {
    const struct cstd_tier *tier; /* Where it is. */
    uint64_t bytes;               /* Its size, a multiple of the tier's grain. */
};

/* Decide where the slots of @edge are, which has `on_device` and belongs to the job of @memory, if
 * the pool of its sender is in @from and that of its receiver in @to. @memory may be closed. */
struct cstd_edge_slots cstd_edge_slots_choose(const struct cstd_memory *memory,
                                              const struct cst_layout_edge *edge,
                                              const struct cstd_tier *from,
                                              const struct cstd_tier *to);

/* Return the bytes of the slots of @job's edges with `on_device` that are charged to the budget of
 * @tier's pools, when the job's pools exist. */
uint64_t cstd_edge_slots_bytes(const struct cstd_job *job, const struct cstd_tier *tier);

/* Return the bytes of all of @job's edges in host memory and on accelerators, words and slots, when
 * the job's pools exist. */
uint64_t cstd_edge_slots_host_bytes(const struct cstd_job *job);
uint64_t cstd_edge_slots_device_bytes(const struct cstd_job *job);

/* Write for each edge of @job with `on_device` where its slots are and why, at most @max lines.
 * Returns the number of lines. */
unsigned cstd_edge_slots_explain(const struct cstd_job *job, char lines[][192], unsigned max);

#endif
