#include "kernels/undo.h"

#include "kernels/tile.h"
#include "proto/status.h"

#include <assert.h>
#include <string.h>

static void write_names(struct cst_undo_slot *slot, enum cst_undo_kind kind,
                        const struct cst_tile *tile)
{
    assert(!cst_undo_holds(slot));
    slot->kind = (uint32_t)kind;
    slot->table = tile->table;
    slot->chunk = tile->chunk;
    slot->tile = tile->number;
    slot->start = tile->start;
    slot->mark = tile->mark;
    slot->n_elems = tile->n_elems;
}

/* All earlier stores, then the word, then later ones: as in cst_adamw_undo_hold. */
static void store_word(_Atomic uint32_t *word, uint32_t value)
{
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(word, value, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
}

void cst_undo_begin_update(struct cst_undo_slot *slot, const struct cst_tile *tile,
                           const struct cst_adamw *hyper)
{
    write_names(slot, CST_UNDO_UPDATE, tile);
    slot->hyper = *hyper;
    slot->states.base = 0;
}

void cst_undo_begin_reduce(struct cst_undo_slot *slot, const struct cst_tile *tile,
                           const uint16_t *grad)
{
    write_names(slot, CST_UNDO_REDUCE, tile);
    memcpy(slot->old.bf16, grad, tile->n_elems * sizeof *grad);
    store_word(&slot->grad_held, tile->n_elems);
}

void cst_undo_begin_accumulate(struct cst_undo_slot *slot, const struct cst_tile *tile,
                               const float *grad)
{
    write_names(slot, CST_UNDO_ACCUMULATE, tile);
    memcpy(slot->old.fp32, grad, tile->n_elems * sizeof *grad);
    store_word(&slot->grad_held, tile->n_elems);
}

void cst_undo_end(struct cst_undo_slot *slot, const struct cst_tile *tile, enum cst_undo_kind kind)
{
    uint32_t *mark =
        kind == CST_UNDO_UPDATE ? &tile->entry->update_mark : &tile->entry->reduce_mark;

    atomic_signal_fence(memory_order_seq_cst);
    *(volatile uint32_t *)mark = (uint32_t)tile->mark;
    if (slot != NULL) {
        cst_undo_drop(slot);
    }
}

bool cst_undo_holds(const struct cst_undo_slot *slot)
{
    return atomic_load_explicit(&slot->states.held, memory_order_acquire) != 0 ||
           atomic_load_explicit(&slot->grad_held, memory_order_acquire) != 0;
}

void cst_undo_drop(struct cst_undo_slot *slot)
{
    store_word(&slot->states.held, 0);
    store_word(&slot->grad_held, 0);
}

/* Can a thread of ours have written this? */
static bool plausible(const struct cst_undo_slot *slot, const struct cst_tile_work *work,
                      uint64_t chunk_elems)
{
    uint32_t word = slot->states.held;
    uint32_t n = cst_adamw_undo_n(word);

    if (slot->n_elems > CST_TILE_ELEMS || slot->n_elems > chunk_elems ||
        slot->start > chunk_elems - slot->n_elems || slot->tile >= work->table->n_tiles) {
        return false;
    }
    if (slot->kind == CST_UNDO_REDUCE || slot->kind == CST_UNDO_ACCUMULATE) {
        const void *row = slot->kind == CST_UNDO_REDUCE ? (const void *)work->rows.grad
                                                        : (const void *)work->rows.grad_f32;

        return word == 0 && slot->grad_held == slot->n_elems && row != NULL;
    }
    return slot->kind == CST_UNDO_UPDATE && slot->grad_held == 0 && n > 0 && n <= CST_ADAMW_GROUP &&
           cst_adamw_undo_first(word) + n <= slot->n_elems && cst_adamw_undo_buffer(word) < 2;
}

static void put_back_grad(const struct cst_undo_slot *slot, const struct cst_rows *rows)
{
    if (slot->kind == CST_UNDO_REDUCE) {
        memcpy(rows->grad + slot->start, slot->old.bf16, slot->n_elems * sizeof *rows->grad);
    } else {
        memcpy(rows->grad_f32 + slot->start, slot->old.fp32,
               slot->n_elems * sizeof *rows->grad_f32);
    }
}

static void put_back_group(struct cst_undo_slot *slot, const struct cst_rows *rows)
{
    uint32_t word = slot->states.held;
    uint64_t at = slot->start + cst_adamw_undo_first(word);
    size_t bytes = cst_adamw_undo_n(word) * sizeof(float);
    float(*old)[CST_ADAMW_GROUP] = slot->states.old[cst_adamw_undo_buffer(word)];

    memcpy(rows->master + at, old[0], bytes);
    memcpy((float *)rows->moments[0].values + at, old[1], bytes);
    memcpy((float *)rows->moments[1].values + at, old[2], bytes);
}

/* From the group in hand to the end of the tile. */
static void finish_update(struct cst_undo_slot *slot, const struct cst_tile_work *work)
{
    const struct cst_rows *rows = &work->rows;
    uint32_t first = cst_adamw_undo_first(slot->states.held);
    uint64_t at = slot->start + first;

    slot->states.base = first;
    if (rows->grad_f32 != NULL) {
        work->kernels->adamw_undo_f32(&slot->hyper, slot->n_elems - first, rows->grad_f32 + at,
                                      rows->master + at, (float *)rows->moments[0].values + at,
                                      (float *)rows->moments[1].values + at, rows->weight + at,
                                      &slot->states);
        return;
    }
    work->kernels->adamw_undo(&slot->hyper, slot->n_elems - first, rows->grad + at,
                              rows->master + at, (float *)rows->moments[0].values + at,
                              (float *)rows->moments[1].values + at, rows->weight + at,
                              &slot->states);
}

int cst_undo_restore(struct cst_undo_slot *slot, const struct cst_tile_work *work,
                     uint64_t chunk_elems)
{
    struct cst_tile tile = {.mark = slot->mark};

    if (!cst_undo_holds(slot)) {
        return CST_OK;
    }
    if (!plausible(slot, work, chunk_elems)) {
        return CST_EINVAL;
    }
    tile.entry = &cst_table_tiles(work->table)[slot->tile];
    if (slot->kind != CST_UNDO_UPDATE) {
        if (tile.entry->reduce_mark != (uint32_t)slot->mark) {
            put_back_grad(slot, &work->rows);
        }
        cst_undo_drop(slot);
        return CST_OK;
    }
    if (tile.entry->update_mark != (uint32_t)slot->mark) {
        put_back_group(slot, &work->rows);
        finish_update(slot, work);
    }
    cst_undo_end(slot, &tile, CST_UNDO_UPDATE);
    return CST_OK;
}
