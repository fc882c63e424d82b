/* SPDX-License-Identifier: Apache-2.0 */
/* What memory.c, memory_pools.c and memory_edges.c need of each other. */
#ifndef CSTD_MEMORY_POOLS_H
#define CSTD_MEMORY_POOLS_H

#include "daemon/memory/memory.h"
#include "proto/edge_memory.h"

/* -- memory_segments.c ---------------------------------------------------------------------- */

/* Add a segment that maps the memory of segment @of of the base job, for the engine of @node and
 * all accelerators' engines. */
int cstd_memory_add_shared(struct cstd_memory *memory, const struct cstd_segment *of, uint32_t node,
                           struct cst_err *err);
/* Add a segment that takes over the memory of segment @of of the job that this one replaces. */
int cstd_memory_add_heir(struct cstd_memory *memory, const struct cstd_segment *of,
                         struct cst_err *err);
/* Let the engines map all segments. The slabs of parked pools are NULL. */
void cstd_memory_mount_all(struct cstd_memory *memory);
/* Add a segment of host memory for the engines in @host_engines and all
 * accelerators' engines of the job. Engine @populate populates it. */
int cstd_memory_add_segment(struct cstd_memory *memory, uint64_t bytes, struct cstd_budget *budget,
                            struct cst_set host_engines, int populate, struct cst_err *err);

/* Add a segment of the memory of @tier, which is apart, for its engine and the engines in @others.
 */
int cstd_memory_add_device_segment(struct cstd_memory *memory, uint64_t bytes,
                                   const struct cstd_tier *tier, struct cst_set others,
                                   struct cst_err *err);

/* Add the next part of the job's file on the drive of @tier. The three functions take the next
 * segment that was kept, if the memory was kept. */
int cstd_memory_add_file_segment(struct cstd_memory *memory, uint64_t bytes,
                                 const struct cstd_tier *tier, struct cst_err *err);

/* Let the engines map @segment, which was added after cstd_memory_open. */
void cstd_memory_mount(struct cstd_memory *memory, struct cstd_segment *segment);

/* Let the engines map @segment, which is none of memory->segments: the memory is not ready before,
 * and no sum of bytes has it. */
void cstd_memory_mount_apart(struct cstd_memory *memory, struct cstd_segment *segment);

/* @segment was adopted after cstd_memory_open: let the engines map it. */
void cstd_memory_mount_adopted(struct cstd_memory *memory, struct cstd_segment *segment);

/* Release a segment. Returns its size. */
uint64_t cstd_memory_release(struct cstd_memory *memory, struct cstd_segment *segment);

/* The engines of the accelerators with pools of the job that can access the memory of @tier. */
struct cst_set cstd_memory_readers(const struct cstd_memory *memory, const struct cstd_tier *tier);

/* The engines of all NUMA nodes. */
struct cst_set cstd_memory_all_nodes(const struct cstd_memory *memory);

/* Add the slabs of @rank's pool, or only their number if the memory was kept. */
int cstd_memory_add_pool(struct cstd_memory *memory, const struct cst_layout *layout, uint32_t rank,
                         const struct cstd_memory_pool *pool, struct cst_err *err);

/* memory_edges.c: add the edges of the model, or only their number if the memory was kept. */
int cstd_memory_add_edges(struct cstd_memory *memory, struct cst_err *err);

/* memory_edges.c: number of segments of the edges of @model. */
uint32_t cstd_memory_n_edge_segments(const struct cst_model *model);

/* memory_edges.c: bytes of all segments of edges, from the devices of the ranks' pools. */
uint64_t cstd_memory_edge_bytes(const struct cstd_memory *memory);

/* Slots of edges that are replaced. */
struct cstd_memory_slots {
    uint32_t n;
    uint32_t at[CST_EDGE_MAX];              /* Indices in the memory's segments. */
    struct cstd_segment *old[CST_EDGE_MAX]; /* What was there. */
};

/* memory_edges.c: the pool of @rank has moved to memory->tiers[rank]. Make the slots of its edges
 * again that are on another device now, in place of the old ones, which are written to @moved.
 * Changes memory->n_segments, which the caller restores. Then one of these is called:
 * cstd_memory_mount_slots lets the engines map the new slots, and releases the old ones;
 * cstd_memory_undo_slots frees the new ones, which nobody has mapped. Statuses are those of
 * cstd_memory_open; nothing was replaced then. */
int cstd_memory_replace_slots(struct cstd_memory *memory, uint32_t rank,
                              struct cstd_memory_slots *moved, struct cst_err *err);
void cstd_memory_mount_slots(struct cstd_memory *memory, const struct cstd_memory_slots *moved);
void cstd_memory_undo_slots(struct cstd_memory *memory, struct cstd_memory_slots *moved);

/* memory_edges.c: make memory of the host for the slots of edge @i, and let the engines populate
 * it. The slots in use stay in their place. on_ready follows, and (*out)->err has the outcome. Then
 * cstd_memory_replace_edge_slots puts *out in place of the slots in use and releases those, or
 * cstd_memory_release frees it. CST_EBUDGET, CST_ENOMEM: nothing was changed. */
int cstd_memory_make_host_slots(struct cstd_memory *memory, uint32_t i, struct cstd_segment **out,
                                struct cst_err *err);
void cstd_memory_replace_edge_slots(struct cstd_memory *memory, uint32_t i,
                                    struct cstd_segment *segment);

#endif
