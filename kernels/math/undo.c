/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/undo.h"

#include "kernels/math/moments.h"
#include "kernels/math/tile.h"
#include "cistern/status.h"

#include <assert.h>
#include <string.h>

_Static_assert(sizeof(struct cst_place) <= sizeof(struct cst_update_scalars),
               "cst_undo_move moves the name of a row with the scalars");

static bool is_update(uint32_t kind)
{
    return kind == CST_UNDO_UPDATE || kind == CST_UNDO_FUSED || kind == CST_UNDO_MUON;
}

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

/* Store @value after all earlier stores and before all later ones, as cst_update_undo_hold does. */
static void store_word(_Atomic uint32_t *word, uint32_t value)
{
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(word, value, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
}

void cst_undo_begin_update(struct cst_undo_slot *slot, enum cst_undo_kind kind,
                           const struct cst_tile *tile, const struct cst_update_scalars *scalars,
                           bool other_weight)
{
    write_names(slot, kind, tile);
    slot->scalars = *scalars;
    slot->other_weight = other_weight;
    slot->states.base = 0;
}

void cst_undo_begin_reduce(struct cst_undo_slot *slot, const struct cst_tile *tile,
                           const uint16_t *grad)
{
    write_names(slot, CST_UNDO_REDUCE, tile);
    memcpy(slot->grads.bf16, grad, tile->n_elems * sizeof *grad);
    store_word(&slot->grad_held, tile->n_elems);
}

void cst_undo_begin_accumulate(struct cst_undo_slot *slot, const struct cst_tile *tile,
                               const float *grad)
{
    bool named = tile->row.segment != CST_PLACE_NONE;

    write_names(slot, named ? CST_UNDO_PARTIAL : CST_UNDO_ACCUMULATE, tile);
    if (named) {
        slot->row = tile->row;
    }
    memcpy(slot->grads.fp32, grad, tile->n_elems * sizeof *grad);
    store_word(&slot->grad_held, tile->n_elems);
}

void cst_undo_begin_blocks(struct cst_undo_slot *slot, const struct cst_undo_block *blocks,
                           uint32_t n)
{
    assert(!cst_undo_holds(slot) && n <= CST_UNDO_MAX_BLOCKS);
    slot->kind = CST_UNDO_BLOCKS;
    memcpy(slot->grads.blocks, blocks, n * sizeof *blocks);
    store_word(&slot->grad_held, n);
}

/* The store is volatile and is therefore neither split nor omitted. After a kill the mark is old or
 * new. */
static void mark_reduced(const struct cst_tile *tile, uint32_t mark)
{
    *(volatile uint32_t *)&tile->entry->reduce_mark = mark;
}

static void mark_updated(const struct cst_tile *tile)
{
    *(volatile uint32_t *)&tile->entry->update_mark = (uint32_t)tile->mark;
}

void cst_undo_end(struct cst_undo_slot *slot, const struct cst_tile *tile, enum cst_undo_kind kind)
{
    atomic_signal_fence(memory_order_seq_cst);
    if (kind == CST_UNDO_FUSED) {
        /* The sum of squares in the entry was not made by a REDUCE. */
        mark_reduced(tile, CST_MARK_NONE);
    } else if (!is_update(kind)) {
        mark_reduced(tile, (uint32_t)tile->mark);
    }
    if (is_update(kind)) {
        mark_updated(tile);
    }
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

void cst_undo_move(struct cst_undo_slot *slot, struct cst_undo_slot *to)
{
    uint32_t held = atomic_load_explicit(&slot->states.held, memory_order_acquire);
    uint32_t grad_held = atomic_load_explicit(&slot->grad_held, memory_order_acquire);

    assert(!cst_undo_holds(to));
    to->states.base = slot->states.base;
    memcpy(to->states.old, slot->states.old, sizeof to->states.old);
    to->kind = slot->kind;
    to->table = slot->table;
    to->chunk = slot->chunk;
    to->tile = slot->tile;
    to->start = slot->start;
    to->mark = slot->mark;
    to->n_elems = slot->n_elems;
    to->other_weight = slot->other_weight;
    to->scalars = slot->scalars;
    to->grads = slot->grads;
    /* One of both words is set: the slot holds the tile from here on. */
    store_word(&to->states.held, held);
    store_word(&to->grad_held, grad_held);
    cst_undo_drop(slot);
}

const struct cst_undo_block *cst_undo_blocks(const struct cst_undo_slot *slot, uint32_t *n)
{
    *n = atomic_load_explicit(&slot->grad_held, memory_order_acquire);
    return slot->kind == CST_UNDO_BLOCKS && *n > 0 && *n <= CST_UNDO_MAX_BLOCKS ? slot->grads.blocks
                                                                                : NULL;
}

void cst_undo_put_back(const struct cst_undo_block *block, void *segment)
{
    memcpy((char *)segment + block->codes, block->old_codes, sizeof block->old_codes);
    ((uint8_t *)segment)[block->exponent] = block->old_exponent;
}

static bool has_rows(const struct cst_undo_slot *slot, const struct cst_rows *rows)
{
    switch (slot->kind) {
    case CST_UNDO_REDUCE:
        return rows->grad != NULL;
    case CST_UNDO_ACCUMULATE:
    case CST_UNDO_PARTIAL:
        return rows->grad_f32 != NULL;
    default:
        return (rows->master != NULL || (rows->remainder != NULL && rows->weight_in != NULL)) &&
               (rows->weight != NULL || rows->master_in != NULL) &&
               rows->moments[0].values != NULL &&
               (slot->kind == CST_UNDO_FUSED || rows->grad != NULL || rows->grad_f32 != NULL);
    }
}

/* Returns whether an update of this kind belongs to a chunk like this one. */
static bool is_rule(const struct cst_undo_slot *slot, const struct cst_tile_work *work)
{
    const struct cst_table_chunk *chunk = &cst_table_chunks(work->table)[work->chunk];
    bool muon = cst_optimizer_of_matrices(cst_table_optimizer(work->table, chunk));

    return !is_update(slot->kind) || muon == (slot->kind == CST_UNDO_MUON);
}

/* Returns whether a thread of an engine can have written the content of the slot. */
static bool plausible(const struct cst_undo_slot *slot, const struct cst_tile_work *work,
                      uint64_t chunk_elems)
{
    uint32_t word = slot->states.held;
    uint32_t first = cst_update_undo_first(word), n = cst_update_undo_n(word);
    /* With fp32 moments, an update may hold half a group. */
    uint32_t multiple =
        work->table->moments == CST_MOMENTS_FP32 ? CST_UPDATE_GROUP / 2 : CST_UPDATE_GROUP;

    if (slot->n_elems > CST_TILE_ELEMS || slot->n_elems > chunk_elems ||
        slot->start > chunk_elems - slot->n_elems || slot->tile >= work->table->n_tiles ||
        slot->kind < CST_UNDO_UPDATE ||
        (slot->kind > CST_UNDO_MUON && slot->kind != CST_UNDO_PARTIAL) || !is_rule(slot, work) ||
        !has_rows(slot, &work->rows)) {
        return false;
    }
    if (!is_update(slot->kind)) {
        return word == 0 && slot->grad_held == slot->n_elems;
    }
    return slot->grad_held == 0 && n > 0 && n <= CST_UPDATE_GROUP && first % multiple == 0 &&
           first + n <= slot->n_elems && cst_update_undo_buffer(word) < 2;
}

static void put_back_grad(const struct cst_undo_slot *slot, const struct cst_rows *rows)
{
    if (slot->kind == CST_UNDO_REDUCE) {
        memcpy(rows->grad + slot->start, slot->grads.bf16, slot->n_elems * sizeof *rows->grad);
    } else {
        memcpy(rows->grad_f32 + slot->start, slot->grads.fp32,
               slot->n_elems * sizeof *rows->grad_f32);
    }
}

static void put_back_group(const struct cst_undo_slot *slot, const struct cst_tile_work *work)
{
    const enum cst_moments format = (enum cst_moments)work->table->moments;
    const struct cst_rows *rows = &work->rows;
    uint32_t word = slot->states.held;
    uint64_t at = slot->start + cst_update_undo_first(word);
    size_t n = cst_update_undo_n(word);
    const struct cst_update_old *old = &slot->states.old[cst_update_undo_buffer(word)];

    if (rows->master != NULL) {
        memcpy(rows->master + at, old->master, n * sizeof *old->master);
    } else {
        memcpy(rows->remainder + at, old->split.remainder, n * sizeof *old->split.remainder);
    }
    /* Weights of split masters are overwritten only if the new ones go to the same row. */
    if (rows->master == NULL && rows->weight == rows->weight_in) {
        memcpy(rows->weight + at, old->split.weight, n * sizeof *old->split.weight);
    }
    /* The update writes the weights over the gradient, which is therefore restored as well. */
    if (slot->kind != CST_UNDO_FUSED && rows->weight != NULL && rows->weight == rows->grad) {
        memcpy(rows->grad + at, old->grad, n * sizeof *old->grad);
    }
    for (int k = 0; k < CST_MAX_MOMENTS && rows->moments[k].values != NULL; k++) {
        struct cst_update_moment moment = cst_moments_at(format, &rows->moments[k], at);

        memcpy(moment.values, old->moments[k], n * cst_moments_elem_bytes(format));
        if (moment.exponents != NULL) {
            *moment.exponents = old->exponents[k];
        }
    }
}

int cst_undo_restore(struct cst_undo_slot *slot, const struct cst_tile_work *work,
                     uint64_t chunk_elems)
{
    struct cst_tile tile = {
        .number = slot->tile, .start = slot->start, .mark = slot->mark, .n_elems = slot->n_elems};

    if (!cst_undo_holds(slot)) {
        return CST_OK;
    }
    if (!plausible(slot, work, chunk_elems)) {
        return CST_EINVAL;
    }
    tile.entry = &cst_table_tiles(work->table)[slot->tile];
    if (!is_update(slot->kind)) {
        /* A mark that is stored already means that the process was killed within cst_undo_end. */
        if (tile.entry->reduce_mark != (uint32_t)slot->mark) {
            put_back_grad(slot, &work->rows);
        }
        cst_undo_drop(slot);
        return CST_OK;
    }
    if (tile.entry->update_mark != (uint32_t)slot->mark) {
        put_back_group(slot, work);
        cst_tile_finish_update(work, &tile, slot);
    }
    cst_undo_end(slot, &tile, (enum cst_undo_kind)slot->kind);
    return CST_OK;
}
