/* SPDX-License-Identifier: Apache-2.0 */
/* What memory.c and memory_pools.c need of each other. */
#ifndef CSTD_MEMORY_POOLS_H
#define CSTD_MEMORY_POOLS_H

#include "daemon/memory/memory.h"

/* Add a segment of host memory for the engines in @host_engines (one bit each) and all
 * accelerators' engines of the job. Engine @populate populates it. */
int cstd_memory_add_segment(struct cstd_memory *memory, uint64_t bytes, struct cstd_budget *budget,
                            uint32_t host_engines, int populate, struct cst_err *err);

/* Add a segment of @gpu's memory for its engine and the engines in @others (one bit each). Both
 * functions take the next segment that was kept, if the memory was kept. */
int cstd_memory_add_device_segment(struct cstd_memory *memory, uint64_t bytes, struct cstd_gpu *gpu,
                                   uint32_t others, struct cst_err *err);

/* Let the engines map @segment, which was added after cstd_memory_open. */
void cstd_memory_mount(struct cstd_memory *memory, struct cstd_segment *segment);

/* @segment was adopted: let the engines map it. */
void cstd_memory_remount(struct cstd_memory *memory, struct cstd_segment *segment);

/* Release a segment. Returns its size. */
uint64_t cstd_memory_release(struct cstd_memory *memory, struct cstd_segment *segment);

/* The engines of all NUMA nodes, one bit each. */
uint32_t cstd_memory_all_nodes(const struct cstd_memory *memory);

/* Add the slabs of @rank's pool, or only their number if the memory was kept. */
int cstd_memory_add_pool(struct cstd_memory *memory, const struct cst_layout *layout, uint32_t rank,
                         const struct cstd_memory_pool *pool, struct cst_err *err);

/* Add the edges of the model, or only their number if the memory was kept. */
int cstd_memory_add_edges(struct cstd_memory *memory, struct cst_err *err);

#endif
