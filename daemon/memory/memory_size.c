/* SPDX-License-Identifier: Apache-2.0 */
/* The questions of memory.h that need no struct cstd_memory: sizes, and the budgets of devices. */
#include "daemon/memory/memory.h"

#include "daemon/daemon.h"

void cstd_memory_size_table(const struct cst_layout *layout, struct cst_table_header *header)
{
    cst_table_size(header, layout->n_chunks, layout->n_spans, layout->n_tiles);
}

uint64_t cstd_memory_host_bytes(const struct cst_layout *layout)
{
    struct cst_table_header header;

    cstd_memory_size_table(layout, &header);
    return layout->arena_bytes + header.total_bytes;
}

uint64_t cstd_memory_grain(const struct cstd_daemon *daemon, const struct cstd_gpu *gpu)
{
    return gpu != NULL ? daemon->engines.v[gpu->engine].granularity : 1;
}

bool cstd_memory_worker_copies(const struct cstd_daemon *daemon, const struct cstd_gpu *gpu,
                               const struct cst_layout_states *states)
{
    return gpu != NULL && !gpu->paced && !states->grad_over_weight &&
           daemon->config->gpu_copies == CSTD_COPIES_WORKER;
}

struct cstd_budget *cstd_memory_budget(struct cstd_daemon *daemon, struct cstd_gpu *gpu)
{
    return gpu != NULL ? &gpu->pool : &daemon->pool;
}
