/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/committed.h"

#include "daemon/job/job.h"
#include "daemon/ledger/ledger.h"

/* Fill in the pool of @rank by size class. */
static void fill_pool(const struct cstd_job *job, uint32_t rank, struct cstd_committed *out)
{
    cstd_pool_info(job, rank, &out->pool);
    out->message.n_classes = job->layout.n_classes;
    out->message.classes = out->pool.pointers;
    for (uint32_t c = 0; c < job->layout.n_classes; c++) {
        out->message.pool_bytes +=
            out->pool.classes[c].n_blocks * out->pool.classes[c].chunk_elems * 2;
    }
}

void cstd_committed_fill(const struct cstd_job *job, uint32_t rank,
                         const struct cst_core_stats *stats, struct cstd_committed *out)
{
    const struct cst_core_pool *pool = &job->memory.pools[rank];
    Cistern__Committed *message = &out->message;

    cistern__committed__init(message);
    fill_pool(job, rank, out);
    message->n_chunks = job->layout.n_chunks;
    message->n_slabs = cstd_memory_n_slabs(&job->memory, rank);
    message->n_params = job->model.n_params;
    message->arena_bytes = job->memory.arena_bytes;
    message->step = stats->step;
    message->has_n_arenas = pool->worker_copies;
    message->n_arenas = pool->worker_copies ? job->memory.n_arenas : 0;
    message->has_device_states = job->layout.device_bytes > 0;
    message->device_states = job->layout.device_bytes > 0;
    message->has_initialised = message->initialised = stats->initialised;
    message->has_kept = true;
    message->kept = cstd_ledger_keeps(job);
}
