/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of memory, questions about it, and the handing over of arenas. */
#include "daemon/memory/memory.h"
#include "daemon/memory/tiers/tier.h"

#include "daemon/base/daemon_state.h"
#include "daemon/budget/arena.h"
#include "daemon/settings/settings.h"

#include <sys/stat.h>

void cstd_memory_size_table(const struct cst_layout *layout, struct cst_table_header *header)
{
    cst_layout_size_table(layout, header);
}

uint64_t cstd_memory_host_bytes(const struct cst_layout *layout)
{
    struct cst_table_header header;

    cstd_memory_size_table(layout, &header);
    return layout->arena_bytes + header.total_bytes;
}

bool cstd_memory_worker_copies(const struct cstd_tier *tier, const struct cst_layout_states *states)
{
    return tier->kind->workers_copy && !states->grad_over_weight &&
           tier->daemon->config->gpu_copies == CSTD_COPIES_WORKER;
}

void cstd_memory_inherit(struct cstd_memory *memory, struct cstd_memory *from)
{
    for (uint32_t i = 0; i < memory->n_arenas; i++) {
        cstd_segment_inherit(memory->segments[i], from->segments[i]);
    }
}

uint32_t cstd_memory_n_slabs(const struct cstd_memory *memory, uint32_t rank)
{
    const struct cst_core_pool *pool = &memory->pools[rank];
    uint32_t n = 0;

    for (uint32_t c = 0; c < CST_LAYOUT_MAX_CLASSES && pool->parts[c].blocks_per_slab > 0; c++) {
        const struct cst_core_part *part = &pool->parts[c];

        n += (part->n_blocks + part->blocks_per_slab - 1) / part->blocks_per_slab;
    }
    return n;
}

struct cstd_segment *cstd_memory_slab(const struct cstd_memory *memory, uint32_t rank, uint32_t i)
{
    return memory->segments[(size_t)(memory->pools[rank].segments - memory->ids) + i];
}

bool cstd_memory_is_leaving(const struct cstd_memory *memory)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < memory->n_segments; i++) {
        n += memory->segments[i] != NULL;
    }
    return memory->parked && memory->n_open > n;
}

static bool same_file(const struct cstd_segment *a, const struct cstd_segment *b)
{
    struct stat one, other;

    return fstat(a->fd, &one) == 0 && fstat(b->fd, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

void cstd_memory_disown(struct cstd_memory *from, const struct cstd_memory *heir)
{
    uint32_t n = from->n_arenas < heir->n_arenas ? from->n_arenas : heir->n_arenas;

    for (uint32_t i = 0; i < n; i++) { /* The layouts are the same, if files are. */
        struct cstd_segment *of = from->segments[i];

        if (of->budget != NULL && same_file(of, heir->segments[i])) {
            cstd_budget_give(of->budget, of->account, of->bytes);
            of->budget = NULL;
        }
    }
}
