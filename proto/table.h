/* SPDX-License-Identifier: Apache-2.0 */
/* The job table: metadata of one job in a memfd that daemon and engines map and workers never see.
 * It tells an engine where a chunk's rows are and which elements belong to which tensor, and holds
 * per-tile marks, so that a command issued again after an engine's death neither loses nor repeats
 * a tile.
 *
 *   +--------+------------------+----------------+----------------+
 *   | header | chunks[n_chunks] | spans[n_spans] | tiles[n_tiles] |   each part starts at a
 * multiple of 64 bytes
 *   +--------+------------------+----------------+----------------+
 *
 * A span is one tensor's stretch of a chunk; what lies between spans is padding that no kernel
 * reads or writes. A tile is up to CST_TILE_ELEMS elements of one tensor, numbered tensor by tensor
 * in order of declaration: tile numbers, and with them every sum, do not depend on chunk capacity.
 *
 * A frozen chunk has a weight row alone: its other places are CST_PLACE_NONE, it has no spans, its
 * tensors no tiles. */
#ifndef CST_TABLE_H
#define CST_TABLE_H

#include "cistern/optimizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_TABLE_MAGIC 0x31656c6261545343ull /* "CSTable1" */
#define CST_TILE_ELEMS                                                                             \
    4096 /* elements; part of the numerics: it fixes the order of the norm's sum */

enum cst_row {
    CST_ROW_WEIGHT = 0,     /* bf16 */
    CST_ROW_GRAD = 1,       /* bf16, or fp32 where the header says so */
    CST_ROW_MASTER = 2,     /* fp32 */
    CST_ROW_EXP_AVG = 3,    /* fp32 */
    CST_ROW_EXP_AVG_SQ = 4, /* fp32 */
    CST_ROW_COUNT = 5,
    CST_ROW_WEIGHT_OTHER =
        5, /* bf16: the second weight row of jobs whose updates are early or delayed; the two take
              turns. Not in CST_ROW_COUNT: its place is the chunk's other_weight */
};

#define CST_MX8_BLOCK 32 /* elements that share an exponent */

/* Marks. UPDATE's are adam steps, REDUCE's are numbers of reductions. Both are 64 bits of which a
 * tile keeps the low half, which is not 0 in either. So where a tile, or a chunk, has 0 no REDUCE
 * has left what is there: none has been done, or the last sum was made in an UPDATE, which has a
 * step and no number of a reduction, and says so by CST_MARK_NONE. */
#define CST_MARK_NONE 0

/* May @mark be a command's? */
static inline bool cst_table_is_mark(uint64_t mark)
{
    return (uint32_t)mark != CST_MARK_NONE;
}

#define CST_PLACE_NONE 0 /* segment id of a row that a chunk does not have */

struct cst_place {
    uint32_t segment; /* id, or CST_PLACE_NONE */
    uint32_t pad;     /* 0 */
    uint64_t offset;  /* bytes from the start of the segment */
};

struct cst_table_header {
    uint64_t magic;        /* CST_TABLE_MAGIC */
    uint32_t n_chunks;     /* entries in chunks */
    uint32_t n_spans;      /* entries in spans; = number of tensors that are not frozen */
    uint64_t n_tiles;      /* entries in tiles */
    uint64_t chunks_bytes; /* offset of chunks */
    uint64_t spans_bytes;  /* offset of spans */
    uint64_t tiles_bytes;  /* offset of tiles */
    uint64_t total_bytes;  /* of the table */
    uint32_t grad_bytes;   /* of an element of every grad row: 2 (0 too): bf16; 4: fp32 */
    uint32_t optimizer;    /* enum cst_optimizer */
    uint32_t moments;      /* enum cst_moments: format of the rows exp_avg and exp_avg_sq */
    uint32_t rounding;     /* enum cst_rounding: of moments that are not fp32 */
    uint64_t seed;         /* of the job's stochastic rounding */
};

struct cst_table_chunk {
    struct cst_place rows[CST_ROW_COUNT]; /* arena places; exp_avg_sq: CST_PLACE_NONE where the
                                             optimizer has one moment */
    struct cst_place other_weight;        /* second weight row, or CST_PLACE_NONE */
    uint64_t n_elems;    /* used, from the first span's start to the last one's end */
    uint32_t first_span; /* its spans are adjacent, by start */
    uint32_t n_spans;
    uint64_t update_mark; /* last UPDATE that completed: its adam step; written by the engine last
                             of all */
    uint64_t reduce_mark; /* last REDUCE that completed, each micro-batch's has a number of its own;
                             CST_MARK_NONE: an UPDATE summed since */
};

struct cst_table_span {
    uint64_t start;      /* elements from the start of the chunk's rows */
    uint64_t n_elems;    /* of the tensor */
    uint64_t first_tile; /* number of its first tile */
    float lr_scale;      /* multiplies lr */
    float decay_scale;   /* multiplies weight_decay */
};

struct cst_table_tile {
    double sum_squares;   /* of the grad row as REDUCE left it */
    uint32_t update_mark; /* low 32 bits of the mark of the last UPDATE that completed this tile */
    uint32_t reduce_mark; /* same for REDUCE; CST_MARK_NONE: an UPDATE summed since */
};

/* Bytes of a moments row of @n_elems elements, a multiple of CST_MX8_BLOCK. MX8: n_elems codes,
 * then n_elems / 32 exponents; n_elems is that of the chunk, and spans begin at multiples of
 * CST_MX8_BLOCK. */
static inline uint64_t cst_table_moment_bytes(enum cst_moments moments, uint64_t n_elems)
{
    return moments == CST_MOMENTS_MX8    ? n_elems + n_elems / CST_MX8_BLOCK
           : moments == CST_MOMENTS_BF16 ? 2 * n_elems
                                         : 4 * n_elems;
}

/* Has @optimizer the row exp_avg_sq? */
static inline bool cst_table_has_second(enum cst_optimizer optimizer)
{
    return optimizer == CST_OPTIMIZER_ADAMW || optimizer == CST_OPTIMIZER_ADAM;
}

/* Bytes of @n_elems elements of row @row (CST_ROW_WEIGHT_OTHER too), which begin at the row's
 * start, in formats that the header says and that are sound. A row that the optimizer does not have
 * has the bytes that it would have. */
static inline uint64_t cst_table_row_bytes(const struct cst_table_header *header, int row,
                                           uint64_t n_elems)
{
    switch (row) {
    case CST_ROW_MASTER:
        return 4 * n_elems;
    case CST_ROW_EXP_AVG:
    case CST_ROW_EXP_AVG_SQ:
        return cst_table_moment_bytes((enum cst_moments)header->moments, n_elems);
    case CST_ROW_GRAD:
        return header->grad_bytes == 4 ? 4 * n_elems : 2 * n_elems;
    default:
        return 2 * n_elems;
    }
}

/* Row @row begins at a multiple of so many bytes, at least. */
static inline uint64_t cst_table_row_align(const struct cst_table_header *header, int row)
{
    bool codes =
        header->moments == CST_MOMENTS_MX8 && (row == CST_ROW_EXP_AVG || row == CST_ROW_EXP_AVG_SQ);

    return codes ? 1 : cst_table_row_bytes(header, row, 1);
}

/* Tiles of a tensor of @n_elems. */
static inline uint64_t cst_table_n_tiles(uint64_t n_elems)
{
    return (n_elems + CST_TILE_ELEMS - 1) / CST_TILE_ELEMS;
}

/* Fill @header with counts and offsets for these numbers; total_bytes is what to allocate. The grad
 * rows are bf16: for fp32, set grad_bytes. */
static inline void cst_table_size(struct cst_table_header *header, uint32_t n_chunks,
                                  uint32_t n_spans, uint64_t n_tiles)
{
    uint64_t at = (sizeof *header + 63) & ~63ull;

    *header = (struct cst_table_header){
        .magic = CST_TABLE_MAGIC, .n_chunks = n_chunks, .n_spans = n_spans, .n_tiles = n_tiles};
    header->chunks_bytes = at;
    at = (at + n_chunks * sizeof(struct cst_table_chunk) + 63) & ~63ull;
    header->spans_bytes = at;
    at = (at + n_spans * sizeof(struct cst_table_span) + 63) & ~63ull;
    header->tiles_bytes = at;
    header->total_bytes = (at + n_tiles * sizeof(struct cst_table_tile) + 63) & ~63ull;
}

static inline struct cst_table_chunk *cst_table_chunks(struct cst_table_header *header)
{
    return (struct cst_table_chunk *)(void *)((char *)header + header->chunks_bytes);
}

static inline struct cst_table_span *cst_table_spans(struct cst_table_header *header)
{
    return (struct cst_table_span *)(void *)((char *)header + header->spans_bytes);
}

static inline struct cst_table_tile *cst_table_tiles(struct cst_table_header *header)
{
    return (struct cst_table_tile *)(void *)((char *)header + header->tiles_bytes);
}

#endif
