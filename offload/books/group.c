/* SPDX-License-Identifier: Apache-2.0 */
/* The group of a chunk: which ranks may fetch it, and error messages for the others. */
#include "offload/books/group.h"

#include "offload/core/core_state.h"

#include <inttypes.h>
#include <stdio.h>

#define NAMED_RANKS 8

const char *cst_group_words(const struct cst_set *ranks, char out[CST_GROUP_TEXT])
{
    const uint32_t n = cst_set_count(ranks);
    size_t used = (size_t)snprintf(out, CST_GROUP_TEXT, n == 1 ? "rank" : "ranks");
    uint32_t named = 0;

    CST_SET_EACH (rank, ranks) {
        if (named == NAMED_RANKS) {
            break;
        }
        used += (size_t)snprintf(out + used, CST_GROUP_TEXT - used, "%s %" PRIu32,
                                 named++ > 0 ? "," : "", rank);
    }
    if (n > named) {
        (void)snprintf(out + used, CST_GROUP_TEXT - used, " and %" PRIu32 " more", n - named);
    }
    return out;
}

uint32_t cst_group_number(const struct cst_core *core, uint32_t chunk)
{
    uint32_t tensor = core->layout->order[core->layout->chunks[chunk].first_tensor];

    return core->model->tensors[tensor].group;
}

bool cst_group_admit(struct cst_core *core, const struct cst_event *event, bool grad)
{
    const struct cst_chunk *chunk = &core->chunks[event->chunk];
    char text[CST_GROUP_TEXT];

    if (!cst_set_has(chunk->ranks, event->rank)) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "chunk %" PRIu32 " is of group %" PRIu32 " (%s): rank %" PRIu32
                        " is not in it",
                        event->chunk, cst_group_number(core, event->chunk),
                        cst_group_words(chunk->ranks, text), event->rank);
        return false;
    }
    if (cst_pool_part(&core->ranks[event->rank].pool, event->chunk)->n_blocks == 0) {
        cst_core_refuse(core, event->tag, CST_EPOOL,
                        "pool of rank %" PRIu32 " has no blocks for chunks like %" PRIu32
                        ": none of its operators uses one",
                        event->rank, event->chunk);
        return false;
    }
    if (grad && !chunk->has_states) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "chunk %" PRIu32 " is frozen: it has no gradient", event->chunk);
        return false;
    }
    return true;
}
