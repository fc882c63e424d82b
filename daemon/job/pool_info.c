/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/pool_info.h"

void cstd_pool_info(const struct cstd_job *job, uint32_t rank, struct cstd_pool_info *out)
{
    const struct cst_core_pool *pool = &job->memory.pools[rank];

    for (uint32_t c = 0; c < job->layout.n_classes; c++) {
        Cistern__PoolClass *class = &out->classes[c];

        cistern__pool_class__init(class);
        class->chunk_elems = job->layout.classes[c].capacity;
        class->n_blocks = pool->parts[c].n_blocks;
        class->min_blocks = job->layout.needs[rank].min_blocks[c];
        class->blocks_per_slab = pool->parts[c].blocks_per_slab;
        class->first_slab = pool->parts[c].first_slab;
        out->pointers[c] = class;
    }
}
