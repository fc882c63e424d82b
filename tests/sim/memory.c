/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct cell *new_cells(size_t n, uint64_t value)
{
    struct cell *cells = calloc(n, sizeof *cells);

    if (cells == NULL) {
        abort();
    }
    for (size_t i = 0; i < n; i++) {
        cells[i].value = value;
    }
    return cells;
}

static uint32_t count_blocks(const struct cst_core_pool *pool)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < CST_LAYOUT_MAX_CLASSES; k++) {
        n += pool->parts[k].n_blocks;
    }
    return n;
}

void memory_open(struct memory *memory, const struct cst_model *model,
                 const struct cst_layout *layout, uint32_t world, const struct cst_core_pool *pools)
{
    memset(memory, 0, sizeof *memory);
    memory->model = model;
    memory->layout = layout;
    memory->world = world;
    memory->grads = new_cells(layout->n_chunks, MEMORY_ZERO_SUM);
    memory->landings = new_cells(layout->n_segments, MEMORY_GARBAGE);
    for (uint32_t r = 0; r < MEMORY_ROWS; r++) {
        memory->states[r] = new_cells(model->n_tensors, 0);
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        memory->pools[rank] = pools[rank];
        memory->blocks[rank] = new_cells(count_blocks(&pools[rank]) + 1, MEMORY_GARBAGE);
        for (uint32_t i = 0; i < 16; i++) {
            memory->segments[rank][i] = MEMORY_POOL_SEGMENT + 16 * rank + i;
        }
        memory->pools[rank].segments = memory->segments[rank];
    }
}

void memory_close(struct memory *memory)
{
    free(memory->grads);
    free(memory->landings);
    for (uint32_t r = 0; r < MEMORY_ROWS; r++) {
        free(memory->states[r]);
    }
    for (uint32_t rank = 0; rank < memory->world; rank++) {
        free(memory->blocks[rank]);
    }
}

/* A landing is the only user of its segment, so the segment's number identifies the landing. */
static struct spot find_landing(const struct memory *memory, uint32_t segment, uint64_t offset)
{
    bool is_row = segment >= memory->layout->n_segments || offset != 0;

    for (uint32_t c = 0; c < memory->layout->n_chunks; c++) {
        for (uint32_t r = 0; r < MEMORY_ROWS; r++) {
            const struct cst_layout_chunk *chunk = &memory->layout->chunks[c];

            is_row = is_row || (r == CST_ROW_WEIGHT_OTHER ? chunk->other_weight.segment
                                                          : chunk->rows[r].segment) == segment;
        }
    }
    return (struct spot){.kind = is_row ? PLACE_NOWHERE : PLACE_LANDING, .slot = segment};
}

static uint64_t elem_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk,
                           uint32_t row)
{
    if (row == CST_ROW_WEIGHT || row == CST_ROW_WEIGHT_OTHER) {
        return cst_dtype_bytes(chunk->dtype);
    }
    return row == CST_ROW_GRAD && chunk->dtype != CST_FP32 ? layout->grad_bytes : 4;
}

static struct spot find_row(const struct memory *memory, uint32_t segment, uint64_t offset)
{
    for (uint32_t c = 0; c < memory->layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &memory->layout->chunks[c];

        for (uint32_t r = 0; r < MEMORY_ROWS; r++) {
            const struct cst_layout_row *row =
                r == CST_ROW_WEIGHT_OTHER ? &chunk->other_weight : &chunk->rows[r];
            uint64_t elem = elem_bytes(memory->layout, chunk, r);
            uint64_t from = row->offset;
            struct spot spot = {.kind = PLACE_ROW, .row = (enum cst_row)r, .chunk = c};

            if (row->segment != segment || offset < from ||
                offset >= from + chunk->n_elems * elem) {
                continue;
            }
            spot.at_start = offset == from;
            spot.at = offset - from;
            for (uint32_t k = 0; k < chunk->n_tensors; k++) {
                uint32_t t = memory->layout->order[chunk->first_tensor + k];

                if ((offset - from) / elem >= memory->model->tensors[t].offset) {
                    spot.tensor = t;
                }
            }
            return spot;
        }
    }
    return find_landing(memory, segment, offset);
}

/* Number of the block that contains byte @offset of the slab; @at_out receives the offset in the
 * block. */
static uint32_t find_in_slab(const struct memory *memory, uint32_t rank, uint32_t slab,
                             uint64_t offset, uint64_t *at_out)
{
    uint32_t first = 0;

    for (uint32_t k = 0; k < memory->layout->n_classes; k++) {
        const struct cst_core_part *part = &memory->pools[rank].parts[k];
        uint64_t bytes = 2 * memory->layout->classes[k].capacity;
        uint64_t i = (uint64_t)(slab - part->first_slab) * part->blocks_per_slab + offset / bytes;

        if (slab >= part->first_slab && i < part->n_blocks &&
            offset / bytes < part->blocks_per_slab) {
            *at_out = offset % bytes;
            return first + (uint32_t)i;
        }
        first += part->n_blocks;
    }
    return UINT32_MAX;
}

uint32_t memory_block(const struct memory *memory, uint32_t rank, uint32_t slab, uint64_t offset)
{
    uint64_t at = 0;
    uint32_t block = find_in_slab(memory, rank, slab, offset, &at);

    return at == 0 ? block : UINT32_MAX;
}

static struct spot find_block(const struct memory *memory, uint32_t segment, uint64_t offset)
{
    uint32_t rank = (segment - MEMORY_POOL_SEGMENT) / 16;
    uint32_t slab = (segment - MEMORY_POOL_SEGMENT) % 16;
    struct spot spot = {.kind = PLACE_BLOCK, .rank = rank};

    if (rank >= memory->world) {
        return (struct spot){.kind = PLACE_NOWHERE};
    }
    spot.block = find_in_slab(memory, rank, slab, offset, &spot.at);
    if (spot.block == UINT32_MAX) {
        spot.kind = PLACE_NOWHERE;
    }
    return spot;
}

struct spot memory_find(const struct memory *memory, struct cst_place place)
{
    if (place.segment >= MEMORY_ARENA_SEGMENT && place.segment < MEMORY_POOL_SEGMENT) {
        return find_row(memory, place.segment - MEMORY_ARENA_SEGMENT, place.offset);
    }
    if (place.segment >= MEMORY_POOL_SEGMENT && place.segment < MEMORY_STAGING_SEGMENT) {
        return find_block(memory, place.segment, place.offset);
    }
    if (place.segment == MEMORY_STAGING_SEGMENT &&
        place.offset / MEMORY_SLOT_BYTES < MEMORY_STAGING_SLOTS) {
        return (struct spot){.kind = PLACE_STAGING,
                             .slot = (uint32_t)(place.offset / MEMORY_SLOT_BYTES)};
    }
    if (place.segment >= MEMORY_RESERVATION_SEGMENT) {
        return (struct spot){.kind = PLACE_RESERVATION};
    }
    return (struct spot){.kind = PLACE_NOWHERE};
}

uint64_t memory_mix(uint64_t sum, uint64_t next)
{
    uint64_t x = (sum ^ next) + 0x9e3779b97f4a7c15ull + (sum << 6);

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    return x ^ (x >> 27);
}

uint64_t memory_weights(const struct memory *memory, const struct cell *cells, uint32_t chunk)
{
    const struct cst_layout_chunk *at = &memory->layout->chunks[chunk];
    uint64_t value = chunk + 1;

    for (uint32_t k = 0; k < at->n_tensors; k++) {
        const struct cell *cell = &cells[memory->layout->order[at->first_tensor + k]];

        if (memory_read(cell) == MEMORY_GARBAGE) {
            return MEMORY_GARBAGE;
        }
        value = memory_mix(value, cell->value);
    }
    return value;
}

uint64_t memory_newest(const struct memory *memory, uint32_t t)
{
    uint64_t one = memory->states[CST_ROW_WEIGHT][t].value;
    uint64_t other = memory->states[CST_ROW_WEIGHT_OTHER][t].value;

    if (!memory->layout->states.two_weights || other == MEMORY_GARBAGE) {
        return one;
    }
    return one == MEMORY_GARBAGE || other > one ? other : one;
}

uint64_t memory_changes(const struct memory *memory, const struct cell *cells, uint32_t chunk)
{
    const struct cst_layout_chunk *at = &memory->layout->chunks[chunk];
    uint64_t n = 0;

    for (uint32_t k = 0; k < at->n_tensors; k++) {
        n += cells[memory->layout->order[at->first_tensor + k]].changes;
    }
    return n;
}

uint64_t memory_read(const struct cell *cell)
{
    return cell->writers > 0 ? MEMORY_GARBAGE : cell->value;
}

void memory_begin(struct cell *cell)
{
    cell->writers++;
    cell->changes++;
    /* A write of the whole cell ends its division into parts. */
    cell->n_pieces = 0;
}

void memory_end(struct cell *cell, uint64_t value)
{
    assert(cell->writers > 0);
    cell->writers--;
    cell->changes++;
    cell->value = value;
}

static struct piece *find_piece(const struct cell *cell, uint64_t first)
{
    for (unsigned i = 0; i < cell->n_pieces; i++) {
        if (cell->pieces[i].first == first) {
            return (struct piece *)&cell->pieces[i];
        }
    }
    return NULL;
}

uint64_t memory_read_piece(const struct cell *cell, uint64_t first, uint64_t bytes)
{
    const struct piece *piece = find_piece(cell, first);

    return piece == NULL || piece->bytes != bytes || piece->writers > 0 || cell->writers > 0
               ? MEMORY_GARBAGE
               : piece->value;
}

/* Drop parts that overlap the new part. */
static void forget_others(struct cell *cell, uint64_t first, uint64_t bytes)
{
    unsigned n = 0;

    for (unsigned i = 0; i < cell->n_pieces; i++) {
        const struct piece *p = &cell->pieces[i];

        if (p->first + p->bytes <= first || first + bytes <= p->first) {
            cell->pieces[n++] = *p;
        }
    }
    cell->n_pieces = n;
}

bool memory_begin_piece(struct cell *cell, uint64_t first, uint64_t bytes)
{
    const struct piece *there = find_piece(cell, first);

    if (cell->writers > 0 || (there != NULL && there->writers > 0)) {
        return false;
    }
    forget_others(cell, first, bytes);
    assert(cell->n_pieces < MEMORY_MAX_PIECES);
    cell->pieces[cell->n_pieces++] =
        (struct piece){.first = first, .bytes = bytes, .value = MEMORY_GARBAGE, .writers = 1};
    cell->value = MEMORY_GARBAGE;
    cell->changes++;
    return true;
}

void memory_end_piece(struct cell *cell, uint64_t first, uint64_t value, uint64_t whole)
{
    struct piece *piece = find_piece(cell, first);
    uint64_t bytes = 0;

    assert(piece != NULL && piece->writers == 1);
    piece->value = value;
    piece->writers = 0;
    cell->changes++;
    for (unsigned i = 0; i < cell->n_pieces; i++) {
        bytes += cell->pieces[i].value == value ? cell->pieces[i].bytes : 0;
    }
    if (bytes == whole) {
        cell->value = value;
    }
}
