#include "kernels/undo.h"

#include "kernels/tile.h"
#include "proto/status.h"

#include <assert.h>
#include <string.h>

/* All stores before it are made before any store after it. */
static void order_stores(void)
{
    atomic_thread_fence(memory_order_release);
}

static void set_held(struct cst_undo_slot *slot, uint32_t held)
{
    order_stores();
    atomic_store_explicit(&slot->held, held, memory_order_relaxed);
    order_stores();
}

void cst_undo_begin(struct cst_undo_slot *slot, enum cst_undo_kind kind,
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

void cst_undo_save(struct cst_undo_slot *slot, const struct cst_rows *rows, uint32_t n)
{
    uint32_t held = atomic_load_explicit(&slot->held, memory_order_relaxed);
    uint64_t at = slot->start + held;

    assert(held + n <= slot->n_elems && slot->n_elems <= CST_TILE_ELEMS);
    if (slot->kind == CST_UNDO_UPDATE) {
        memcpy(slot->old.states[0] + held, rows->master + at, n * sizeof(float));
        memcpy(slot->old.states[1] + held, rows->exp_avg + at, n * sizeof(float));
        memcpy(slot->old.states[2] + held, rows->exp_avg_sq + at, n * sizeof(float));
    } else {
        memcpy(slot->old.grad + held, rows->grad + at, n * sizeof(uint16_t));
    }
    set_held(slot, held + n);
}

void cst_undo_clear(struct cst_undo_slot *slot)
{
    set_held(slot, 0);
}

bool cst_undo_holds(const struct cst_undo_slot *slot)
{
    return atomic_load_explicit(&slot->held, memory_order_acquire) != 0;
}

/* Can a thread of ours have written this? */
static bool plausible(const struct cst_undo_slot *slot, uint32_t held, uint64_t chunk_elems,
                      uint64_t n_tiles)
{
    return (slot->kind == CST_UNDO_UPDATE || slot->kind == CST_UNDO_REDUCE) &&
           slot->n_elems <= CST_TILE_ELEMS && held <= slot->n_elems &&
           slot->n_elems <= chunk_elems && slot->start <= chunk_elems - slot->n_elems &&
           slot->tile < n_tiles;
}

static void put_back(const struct cst_undo_slot *slot, uint32_t held, const struct cst_rows *rows)
{
    if (slot->kind == CST_UNDO_UPDATE) {
        memcpy(rows->master + slot->start, slot->old.states[0], held * sizeof(float));
        memcpy(rows->exp_avg + slot->start, slot->old.states[1], held * sizeof(float));
        memcpy(rows->exp_avg_sq + slot->start, slot->old.states[2], held * sizeof(float));
    } else {
        memcpy(rows->grad + slot->start, slot->old.grad, held * sizeof(uint16_t));
    }
}

int cst_undo_restore(struct cst_undo_slot *slot, const struct cst_rows *rows, uint64_t chunk_elems,
                     const struct cst_table_tile *tiles, uint64_t n_tiles)
{
    uint32_t held = atomic_load_explicit(&slot->held, memory_order_acquire);
    uint32_t mark;

    if (held == 0) {
        return CST_OK;
    }
    if (!plausible(slot, held, chunk_elems, n_tiles)) {
        return CST_EINVAL;
    }
    mark = slot->kind == CST_UNDO_UPDATE ? tiles[slot->tile].update_mark
                                         : tiles[slot->tile].reduce_mark;
    if (mark != (uint32_t)slot->mark) {
        put_back(slot, held, rows);
    }
    cst_undo_clear(slot);
    return CST_OK;
}
