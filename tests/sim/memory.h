/* SPDX-License-Identifier: Apache-2.0 */
/* Symbolic memory: what a row, a block or a staging slot holds is one number. Copies that overlap a
 * write bring GARBAGE, and so does reading what is being written: whoever shows such a value to a
 * client has been caught. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "offload/core.h"

#define MEMORY_GARBAGE 0xdeadull
#define MEMORY_ZERO_SUM 0x5eedull /* a reduction of nothing */

#define MEMORY_ARENA_SEGMENT 1000 /* + layout segment */
#define MEMORY_POOL_SEGMENT 2000  /* + 16 x rank + slab */
#define MEMORY_STAGING_SEGMENT 3000
#define MEMORY_TABLE_SEGMENT 4000
#define MEMORY_ROOM_SEGMENT 5000 /* + room */
#define MEMORY_STAGING_SLOTS 64
#define MEMORY_SLOT_BYTES (1u << 26)

#define MEMORY_ROWS (CST_ROW_COUNT + 1) /* CST_ROW_WEIGHT_OTHER is the last */

/* What a copy of a part of a row brought into a block. */
struct piece {
    uint64_t first, bytes; /* of the block */
    uint64_t value;        /* of the whole row that it is a part of */
    unsigned writers;      /* under way */
};

#define MEMORY_MAX_PIECES 8

struct cell {
    uint64_t value;
    uint64_t changes; /* writes begun and ended */
    unsigned writers; /* under way */
    struct piece pieces[MEMORY_MAX_PIECES];
    unsigned n_pieces;
};

struct memory {
    const struct cst_model *model;
    const struct cst_layout *layout;
    uint32_t world;
    struct cst_core_pool pools[CST_CORE_MAX_WORLD];
    uint32_t segments[CST_CORE_MAX_WORLD][16];
    struct cell *states[MEMORY_ROWS]; /* per row but GRAD, per tensor */
    struct cell *grads;               /* per chunk */
    struct cell *blocks[CST_CORE_MAX_WORLD];
    struct cell staging[MEMORY_STAGING_SLOTS];
    struct cell *landings; /* of the layout, all nodes' */
};

enum place_kind { PLACE_NOWHERE, PLACE_ROW, PLACE_BLOCK, PLACE_STAGING, PLACE_ROOM, PLACE_LANDING };

/* What a place on the wire means. */
struct spot {
    enum place_kind kind;
    enum cst_row row; /* ROW */
    uint32_t chunk;   /* ROW */
    uint32_t tensor;  /* ROW: the tensor that the offset falls into */
    bool at_start;    /* ROW: the offset is the row's first byte */
    uint32_t rank;    /* BLOCK */
    uint32_t block;   /* BLOCK */
    uint64_t at;      /* ROW, BLOCK: bytes from its start */
    uint32_t slot;    /* STAGING, LANDING */
};

/* @pools: parts are set, segments are filled in: 16 slabs a rank at most. */
void memory_open(struct memory *memory, const struct cst_model *model,
                 const struct cst_layout *layout, uint32_t world,
                 const struct cst_core_pool *pools);
void memory_close(struct memory *memory);

struct spot memory_find(const struct memory *memory, struct cst_place place);

/* The block of @rank's pool at an offset of a slab, counted through all size classes; UINT32_MAX:
 * there is none. */
uint32_t memory_block(const struct memory *memory, uint32_t rank, uint32_t slab, uint64_t offset);

/* A number for the weights of @chunk, out of the numbers of its tensors in @cells; GARBAGE if one
 * is being written. */
uint64_t memory_weights(const struct memory *memory, const struct cell *cells, uint32_t chunk);

/* The number of tensor @t's weights after its last update: where it has two rows, in one of them.
 */
uint64_t memory_newest(const struct memory *memory, uint32_t t);

/* Sum of changes of the tensors of @chunk in @cells. */
uint64_t memory_changes(const struct memory *memory, const struct cell *cells, uint32_t chunk);

/* The value, GARBAGE while it is being written. */
uint64_t memory_read(const struct cell *cell);
void memory_begin(struct cell *cell);
void memory_end(struct cell *cell, uint64_t value);

/* The same for a part of a block. Parts with one value that have @whole bytes together are that
 * value; begin answers false if that part is being written. */
uint64_t memory_read_piece(const struct cell *cell, uint64_t first, uint64_t bytes);
bool memory_begin_piece(struct cell *cell, uint64_t first, uint64_t bytes);
void memory_end_piece(struct cell *cell, uint64_t first, uint64_t value, uint64_t whole);

/* Mixes @next into @sum; order matters. */
uint64_t memory_mix(uint64_t sum, uint64_t next);

#endif
