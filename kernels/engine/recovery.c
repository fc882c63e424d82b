/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/recovery.h"

#include "kernels/engine/chunk.h"

#include <inttypes.h>

/* Returns the rows that restoring the slot needs. */
static unsigned rows_of(const struct cst_undo_slot *slot)
{
    unsigned states = CSTE_CHUNK_ROWS_STATES | CSTE_CHUNK_ROW(CST_ROW_WEIGHT) |
                      CSTE_CHUNK_ROW(CST_ROW_WEIGHT_OTHER);

    switch (slot->kind) {
    case CST_UNDO_UPDATE:
    case CST_UNDO_MUON:
        return states | CSTE_CHUNK_ROW(CST_ROW_GRAD);
    case CST_UNDO_FUSED:
        return states;
    default:
        return CSTE_CHUNK_ROWS_REDUCE;
    }
}

/* Of two weight rows, one is written. Master weights of which the weights are a part are read from
 * the other one. */
static void choose_weights(struct cste_chunk *chunk, bool second_is_written)
{
    struct cste_addr at = chunk->rows[CST_ROW_WEIGHT_OTHER];
    void *second = at.mem == NULL ? NULL : cste_addr_host(at);
    struct cst_rows *rows = &chunk->work.rows;

    if (cst_tile_dtype(&chunk->work) == CST_FP32 && second != NULL) {
        if (second_is_written) {
            rows->master = second;
        } else {
            rows->master_in = second;
        }
    } else if (second_is_written) {
        rows->weight = second;
    } else if (rows->weight_in != NULL && second != NULL) {
        rows->weight_in = second;
    }
}

/* Put @blocks back. The result is that of `restore`. */
static int restore_blocks(const struct cst_undo_block *blocks, uint32_t n,
                          const struct cste_segments *segments, struct cst_err *err)
{
    struct cste_segment *found[CST_UNDO_MAX_BLOCKS];
    int rc = CST_OK;

    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        const uint32_t id = blocks[i].segment;
        const struct cst_place codes = {.segment = id, .offset = blocks[i].codes},
                               exponent = {.segment = id, .offset = blocks[i].exponent};

        rc = cste_segments_find(segments, codes, sizeof blocks[i].old_codes, 1, "codes of a block",
                                &found[i], err);
        if (rc == CST_OK) {
            rc = cste_segments_find(segments, exponent, 1, 1, "the exponent of a block", &found[i],
                                    err);
        }
        if (rc == CST_OK && found[i]->mem.base == NULL) {
            rc = cst_err_set(err, CST_EINVAL, "segment %" PRIu32 " is memory of a device", id);
        }
    }
    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        cst_undo_put_back(&blocks[i], found[i]->mem.base);
    }
    return rc;
}

/* Let the grad row of @chunk be the row that @slot names. */
static int find_partial(const struct cst_undo_slot *slot, const struct cste_segments *segments,
                        struct cste_chunk *chunk, struct cst_err *err)
{
    struct cste_segment *segment;
    int rc = cste_segments_find(segments, slot->row, chunk->n_elems * sizeof(float), sizeof(float),
                                "row of a partial", &segment, err);

    if (rc == CST_OK && segment->mem.base == NULL) {
        rc = cst_err_set(err, CST_EINVAL, "segment %u is memory of a device", slot->row.segment);
    }
    if (rc == CST_OK) {
        chunk->work.rows.grad = NULL;
        chunk->work.rows.grad_f32 = (float *)(void *)((char *)segment->mem.base + slot->row.offset);
    }
    return rc;
}

/* Restore what @slot holds, and make it EMPTY. CST_ENOTFOUND: a segment is not added yet. Other
 * failures mean that the slot is implausible. */
static int restore(struct cst_undo_slot *slot, const struct cste_segments *segments,
                   struct cst_err *err)
{
    struct cste_chunk chunk;
    uint32_t n;
    const struct cst_undo_block *blocks = cst_undo_blocks(slot, &n);
    int rc;

    if (blocks != NULL) {
        rc = restore_blocks(blocks, n, segments, err);
        if (rc == CST_OK) {
            cst_undo_drop(slot);
        }
        return rc;
    }
    rc = cste_chunk_find(segments, slot->table, slot->chunk, rows_of(slot), &chunk, err);
    if (rc != CST_OK) {
        return rc;
    }
    /* A slot never names device memory; the table or the slot is wrong. */
    if (chunk.on_device) {
        return cst_err_set(err, CST_EINVAL, "chunk %u is memory of a device", slot->chunk);
    }
    chunk.work.kernels = cst_kernels_get(NULL);
    choose_weights(&chunk, slot->other_weight != 0);
    if (slot->kind == CST_UNDO_PARTIAL) {
        rc = find_partial(slot, segments, &chunk, err);
        if (rc != CST_OK) {
            return rc;
        }
    }
    if (cst_undo_restore(slot, &chunk.work, chunk.n_elems) != CST_OK) {
        return cst_err_set(err, CST_EINVAL, "tile %" PRIu64 " cannot be right", slot->tile);
    }
    return CST_OK;
}

static uint32_t first_slot(const struct cste_recovery *recovery)
{
    return recovery->parked ? recovery->n_team : 0;
}

uint32_t cste_recovery_try(struct cste_recovery *recovery, const struct cste_segments *segments,
                           void (*warn)(const struct cst_err *what))
{
    uint32_t n_left = 0;

    for (uint32_t i = first_slot(recovery); i < recovery->n_slots; i++) {
        struct cst_undo_slot *slot = &recovery->slots[i];
        struct cst_err err;
        int rc;

        if (!cst_undo_holds(slot)) {
            continue;
        }
        rc = restore(slot, segments, &err);
        /* The segments may still be added. Recovery tries again then. */
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

bool cste_recovery_park(struct cste_recovery *recovery)
{
    uint32_t to = recovery->n_team;

    for (uint32_t i = 0; i < recovery->n_team && !recovery->parked; i++) {
        struct cst_undo_slot *slot = &recovery->slots[i];

        if (!cst_undo_holds(slot)) {
            continue;
        }
        while (to < recovery->n_slots && cst_undo_holds(&recovery->slots[to])) {
            to++;
        }
        if (to == recovery->n_slots) {
            return false;
        }
        cst_undo_move(slot, &recovery->slots[to]);
    }
    recovery->parked = true;
    return true;
}

void cste_recovery_forget(struct cste_recovery *recovery, void (*warn)(const struct cst_err *what))
{
    for (uint32_t i = first_slot(recovery); i < recovery->n_slots; i++) {
        struct cst_undo_slot *slot = &recovery->slots[i];
        const struct cst_undo_block *blocks;
        struct cst_err err;
        uint32_t n;

        if (cst_undo_holds(slot)) {
            blocks = cst_undo_blocks(slot, &n);
            if (blocks != NULL) {
                (void)cst_err_set(&err, CST_ELOST,
                                  "undo slot %u is dropped: %u blocks of segment %u, which is not "
                                  "mapped",
                                  i, n, blocks[0].segment);
            } else {
                (void)cst_err_set(&err, CST_ELOST,
                                  "undo slot %u is dropped: tile %" PRIu64
                                  " of table %u, whose segments are not mapped",
                                  i, slot->tile, slot->table);
            }
            warn(&err);
            cst_undo_drop(slot);
        }
    }
}
