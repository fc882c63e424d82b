#include "kernels/recovery.h"

#include "kernels/chunk.h"

#include <inttypes.h>

/* CST_ENOTFOUND: not yet; any other status: the slot is wrong. */
static int restore(struct cst_undo_slot *slot, const struct cst_segments *segments,
                   struct cst_err *err)
{
    unsigned rows = slot->kind == CST_UNDO_UPDATE ? CST_CHUNK_ROWS_ALL : CST_CHUNK_ROWS_REDUCE;
    struct cst_chunk chunk;
    int rc = cst_chunk_find(segments, slot->table, slot->chunk, rows, &chunk, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (chunk.on_device) {
        return cst_err_set(err, CST_EINVAL, "chunk %u is memory of a device", slot->chunk);
    }
    chunk.work.kernels = cst_kernels_get(NULL);
    if (cst_undo_restore(slot, &chunk.work, chunk.n_elems) != CST_OK) {
        return cst_err_set(err, CST_EINVAL, "tile %" PRIu64 " cannot be right", slot->tile);
    }
    return CST_OK;
}

uint32_t cst_recovery_try(struct cst_recovery *recovery, const struct cst_segments *segments,
                          void (*warn)(const struct cst_err *what))
{
    uint32_t n_left = 0;

    for (uint32_t i = 0; i < recovery->n_slots; i++) {
        struct cst_undo_slot *slot = &recovery->slots[i];
        struct cst_err err;
        int rc;

        if (!cst_undo_holds(slot)) {
            continue;
        }
        rc = restore(slot, segments, &err);
        if (rc == CST_ENOTFOUND) {
            n_left++;
        } else if (rc != CST_OK) {
            (void)cst_err_prefix(&err, "undo slot %u is dropped", i);
            warn(&err);
            cst_undo_drop(slot);
        }
    }
    return n_left;
}

void cst_recovery_forget(struct cst_recovery *recovery, void (*warn)(const struct cst_err *what))
{
    for (uint32_t i = 0; i < recovery->n_slots; i++) {
        struct cst_undo_slot *slot = &recovery->slots[i];
        struct cst_err err;

        if (cst_undo_holds(slot)) {
            (void)cst_err_set(&err, CST_ELOST,
                              "undo slot %u is dropped: tile %" PRIu64
                              " of table %u, whose segments were not added",
                              i, slot->tile, slot->table);
            warn(&err);
            cst_undo_drop(slot);
        }
    }
}
