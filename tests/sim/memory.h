/* SPDX-License-Identifier: Apache-2.0 */
/* Symbolic memory: the content of a row, a block or a staging slot is one number. A copy that
 * overlaps a write delivers MEMORY_GARBAGE, and a read during a write returns MEMORY_GARBAGE. The
 * simulator fails if a client sees such a value. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "offload/core/core.h"

#define MEMORY_GARBAGE 0xdeadull
#define MEMORY_ZERO_SUM 0x5eedull /* the sum of no contributions */

#define MEMORY_ARENA_SEGMENT 1000 /* plus the index of the layout's segment */
#define MEMORY_POOL_SEGMENT 2000  /* plus 16 x rank + slab */
#define MEMORY_STAGING_SEGMENT 3000
#define MEMORY_TABLE_SEGMENT 4000
#define MEMORY_RESERVATION_SEGMENT 5000 /* plus the index of the reservation */
#define MEMORY_STAGING_SLOTS 64
#define MEMORY_SLOT_BYTES (1u << 26)

#define MEMORY_ROWS (CST_ROW_COUNT + 1) /* the last one is CST_ROW_WEIGHT_OTHER */

/* One part of a gathered block: the bytes that one copy brought in. */
struct piece {
    uint64_t first, bytes; /* range within the block */
    uint64_t value;        /* the number of the whole row to which this part belongs */
    unsigned writers;      /* writes under way */
};

#define MEMORY_MAX_PIECES 8

/* The content of a row, block or slot, with its writes. */
struct cell {
    uint64_t value;
    uint64_t changes; /* counts the beginning and the end of each write */
    unsigned writers; /* writes under way */
    struct piece pieces[MEMORY_MAX_PIECES];
    unsigned n_pieces;
};

/* The memory of a job: rows, blocks, staging slots and landings. */
struct memory {
    const struct cst_model *model;
    const struct cst_layout *layout;
    uint32_t world;
    struct cst_core_pool pools[CST_CORE_MAX_WORLD];
    uint32_t segments[CST_CORE_MAX_WORLD][16];
    struct cell *states[MEMORY_ROWS]; /* one array per row except GRAD, with a cell per tensor */
    struct cell *grads;               /* one cell per chunk */
    struct cell *blocks[CST_CORE_MAX_WORLD];
    struct cell staging[MEMORY_STAGING_SLOTS];
    struct cell *landings; /* one cell per segment of the layout; landings of all nodes */
};

/* Kinds of memory that a place can refer to. */
enum place_kind {
    PLACE_NOWHERE,
    PLACE_ROW,
    PLACE_BLOCK,
    PLACE_STAGING,
    PLACE_RESERVATION,
    PLACE_LANDING
};

/* A place of a command, decoded. */
struct spot {
    enum place_kind kind;
    enum cst_row row; /* PLACE_ROW: the kind of row */
    uint32_t chunk;   /* PLACE_ROW: the chunk of the row */
    uint32_t tensor;  /* PLACE_ROW: the tensor into which the offset falls */
    bool at_start;    /* PLACE_ROW: the offset is the row's first byte */
    uint32_t rank;    /* PLACE_BLOCK: the rank that owns the pool */
    uint32_t block;   /* PLACE_BLOCK: number of the block in the pool */
    uint64_t at;      /* PLACE_ROW, PLACE_BLOCK: bytes from the start of the row or block */
    uint32_t slot;    /* PLACE_STAGING, PLACE_LANDING: index of the slot or segment */
};

/* Open memory for @world ranks. The caller sets the parts of each entry of @pools; the copies in
 * memory->pools receive their segments, for at most 16 slabs per rank. @model and @layout must
 * outlive @memory. Ends the program if memory is exhausted. */
void memory_open(struct memory *memory, const struct cst_model *model,
                 const struct cst_layout *layout, uint32_t world,
                 const struct cst_core_pool *pools);
void memory_close(struct memory *memory);

/* Decode @place. The kind is PLACE_NOWHERE if nothing is at @place. */
struct spot memory_find(const struct memory *memory, struct cst_place place);

/* The number of the block that begins at @offset of a slab of @rank's pool; blocks are counted
 * through all size classes. UINT32_MAX: no block begins there. */
uint32_t memory_block(const struct memory *memory, uint32_t rank, uint32_t slab, uint64_t offset);

/* One number for the weights of @chunk, computed from the numbers of the chunk's tensors in @cells.
 * MEMORY_GARBAGE if one of these cells is being written. */
uint64_t memory_weights(const struct memory *memory, const struct cell *cells, uint32_t chunk);

/* The number of tensor @t's weights after the tensor's last update. With two weight rows it is the
 * larger number of the two rows. */
uint64_t memory_newest(const struct memory *memory, uint32_t t);

/* The sum of `changes` over the cells of @chunk's tensors in @cells. */
uint64_t memory_changes(const struct memory *memory, const struct cell *cells, uint32_t chunk);

/* memory_read returns the number in a cell, or MEMORY_GARBAGE while the cell is being written.
 * memory_begin begins a write, memory_end ends it and stores @value. */
uint64_t memory_read(const struct cell *cell);
void memory_begin(struct cell *cell);
void memory_end(struct cell *cell, uint64_t value);

/* Read and write one part of a block. When the parts with the number @value together have @whole
 * bytes, the block itself gets this number. memory_begin_piece returns false if the part, or the
 * whole block, is being written. */
uint64_t memory_read_piece(const struct cell *cell, uint64_t first, uint64_t bytes);
bool memory_begin_piece(struct cell *cell, uint64_t first, uint64_t bytes);
void memory_end_piece(struct cell *cell, uint64_t first, uint64_t value, uint64_t whole);

/* Mix @next into @sum. The result depends on the order of the calls. */
uint64_t memory_mix(uint64_t sum, uint64_t next);

#endif
