/* SPDX-License-Identifier: Apache-2.0 */
/* The job table: metadata of one job in a memfd. The daemon and the engines map it; workers do not.
 * It tells an engine where a chunk's rows are and which elements belong to which tensor. It also
 * holds marks per tile: a command that is issued again after an engine's death neither skips nor
 * repeats a tile.
 *
 *   +--------+------------------+----------------+----------------+-------------------+
 *   | header | chunks[n_chunks] | spans[n_spans] | tiles[n_tiles] | steps[n_spans][2] |
 *   +--------+------------------+----------------+----------------+-------------------+
 *                      each part starts at a multiple of 64 bytes
 *
 * Only the table of a job that skips tensors without a gradient has the last part.
 *
 * A span is the part of a chunk that one tensor occupies. The elements between spans are padding,
 * which no kernel reads or writes. A tile has up to CST_TILE_ELEMS elements of one tensor. Tiles
 * are numbered tensor by tensor in the order of declaration; hence the tiles' numbers, and all sums
 * over tiles, do not depend on the capacity of chunks.
 *
 * A frozen chunk has a weight row only: its other places are CST_PLACE_NONE, it has no spans, and
 * its tensors have no tiles.
 *
 * The tensors of a chunk have one type. The weights of fp32 tensors are their master weights, so
 * that their chunks have no master row, whatever the header says of masters. */
#ifndef CST_TABLE_H
#define CST_TABLE_H

#include "proto/dtypes.h"
#include "proto/optimizers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_TABLE_MAGIC 0x33656c6261545343ull /* "CSTable3" */
#define CST_TILE_ELEMS                                                                             \
    4096 /* Elements per tile. Part of the numerics: it fixes the order of the norm's sum. */

enum cst_row {
    CST_ROW_WEIGHT = 0, /* bf16; fp32 in a chunk of fp32 tensors */
    CST_ROW_GRAD = 1,   /* bf16, or fp32 if the header says so or the tensors are fp32 */
    CST_ROW_MASTER = 2, /* fp32, or 16-bit remainders if the header says so */
    /* Moment number i has row CST_ROW_MOMENT + i, in the format of the header. The optimizer says
     * how many there are (proto/optimizers.h). */
    CST_ROW_MOMENT = 3,
    CST_ROW_COUNT = CST_ROW_MOMENT + CST_MAX_MOMENTS,
    /* In the format of WEIGHT: second weight row of jobs with early or delayed updates; the two
     * rows alternate. In durable jobs, which have no such updates, it is the row of weights in a
     * file (proto/durable.h), of which tables know nothing. Not counted in CST_ROW_COUNT, because
     * its place is the chunk's other_weight. */
    CST_ROW_WEIGHT_OTHER = CST_ROW_COUNT,
};

/* Rows of states, which only the optimizer reads and writes: for (row = CST_ROW_MASTER; row <
 * CST_ROW_COUNT; row++). */
static inline bool cst_table_is_state(int row)
{
    return row >= CST_ROW_MASTER && row < CST_ROW_COUNT;
}

static inline bool cst_table_is_moment(int row)
{
    return row >= CST_ROW_MOMENT && row < CST_ROW_COUNT;
}

/* Weight rows of a chunk, and so versions of the weights that readers can have at once. */
#define CST_MAX_VERSIONS 2

#define CST_MX8_BLOCK 32 /* Number of elements that share an exponent. */

/* No mark. The mark of an UPDATE is its adam step, that of a REDUCE is its number of the reduction.
 * Marks have 64 bits; a tile keeps the low half, which is never 0 for a command. Therefore, if a
 * reduce_mark is 0, no REDUCE has produced the present sum: either there was none, or the last sum
 * was made within an UPDATE, which has no number of a reduction and sets CST_MARK_NONE. */
#define CST_MARK_NONE 0

/* Return whether @mark can be a command's mark. */
static inline bool cst_table_is_mark(uint64_t mark)
{
    return (uint32_t)mark != CST_MARK_NONE;
}

#define CST_PLACE_NONE 0 /* Segment id of a row that a chunk does not have. */

struct cst_place {
    uint32_t segment; /* Segment id, or CST_PLACE_NONE. */
    uint32_t pad;     /* Padding, 0. */
    uint64_t offset;  /* Bytes from the start of the segment. */
};

#define CST_TABLE_MAX_GROUPS 64 /* Parameter groups. */

/* Factors of lr and weight_decay for the tensors of parameter groups 0 to n - 1. Those of other
 * groups are 1. */
struct cst_table_factors {
    uint32_t n;
    uint32_t pad; /* Padding, 0. */
    double lr[CST_TABLE_MAX_GROUPS];
    double decay[CST_TABLE_MAX_GROUPS];
};

struct cst_table_header {
    uint64_t magic;        /* CST_TABLE_MAGIC */
    uint32_t n_chunks;     /* Number of entries in chunks. */
    uint32_t n_spans;      /* Number of entries in spans: the tensors that are not frozen. */
    uint64_t n_tiles;      /* Number of entries in tiles. */
    uint64_t chunks_bytes; /* Offset of chunks from the start of the table, bytes. */
    uint64_t spans_bytes;  /* Offset of spans from the start of the table, bytes. */
    uint64_t tiles_bytes;  /* Offset of tiles from the start of the table, bytes. */
    uint64_t total_bytes;  /* Size of the table. */
    /* Size of an element of the grad rows of bf16 tensors: 2 or 0: bf16; 4: fp32. */
    uint32_t grad_bytes;
    uint32_t optimizer; /* enum cst_optimizer; of a chunk: cst_table_optimizer */
    uint32_t moments;   /* enum cst_moments: format of the rows of moments */
    uint32_t rounding;  /* enum cst_rounding: for moments that are not fp32 */
    uint32_t masters;   /* enum cst_masters: format of the master row */
    uint32_t has_steps; /* 1: each span counts its own steps. 0: all have made the same ones. */
    uint64_t seed;      /* Seed of the job's stochastic rounding. */
    /* Factors of the updates with even and with odd marks. Written before the first update with a
     * mark; by then, all updates with the mark before the last one are complete. */
    struct cst_table_factors factors[2];
};

struct cst_table_chunk {
    /* Places in the arena. Moments that the optimizer does not have are CST_PLACE_NONE, and so is
     * master if the tensors are fp32. */
    struct cst_place rows[CST_ROW_COUNT];
    struct cst_place other_weight; /* Place of the second weight row, or CST_PLACE_NONE. */
    /* Chunks that are updated by Muon: memory for the products (kernels/math/muon.h), which the
     * chunks of a node share. Otherwise CST_PLACE_NONE. */
    struct cst_place scratch;
    uint64_t scratch_bytes; /* Size of the scratch. */
    uint64_t n_elems; /* Elements in use, from the first span's start to the last span's end. */
    /* Number of the chunk's first span. The chunk's spans are adjacent entries, ordered by
     * start. */
    uint32_t first_span;
    uint32_t n_spans;
    uint32_t dtype; /* enum cst_dtype: type of the chunk's tensors. 0 counts as CST_BF16. */
    uint32_t pad;   /* Padding, 0. */
    /* Adam step of the last UPDATE that completed. The engine writes it after all tiles. */
    uint64_t update_mark;
    /* Number of the last REDUCE that completed; each micro-batch has its own. CST_MARK_NONE: an
     * UPDATE has made a newer sum, or there was no REDUCE. */
    uint64_t reduce_mark;
};

struct cst_table_span {
    uint64_t start;      /* Elements from the start of the chunk's rows. */
    uint64_t n_elems;    /* Elements of the tensor. */
    uint64_t first_tile; /* Number of the tensor's first tile. */
    float lr_scale;      /* Factor of lr. */
    float decay_scale;   /* Factor of weight_decay. */
    uint32_t param_group;
    /* Chunks that are updated by Muon: rows and columns of each matrix of the tensor, which has
     * n_elems / (rows x columns) matrices. Otherwise 0. */
    uint32_t rows, columns;
    uint32_t pad; /* Padding, 0. */
};

/* Steps of the optimizer that a span has made, up to a certain step. */
struct cst_table_steps {
    uint64_t missed; /* Number of Adam steps in which the tensor had no gradient. */
    /* The last Adam step in which the tensor had a gradient since the job was made or restored; 0:
     * there was none. */
    uint64_t last;
};

struct cst_table_tile {
    double sum_squares; /* Sum of squares of the grad row, as REDUCE left it. */
    /* Low 32 bits of the mark of the last UPDATE that completed this tile. */
    uint32_t update_mark;
    /* Low 32 bits of the mark of the last REDUCE that completed this tile. CST_MARK_NONE: an UPDATE
     * has made a newer sum, or there was no REDUCE. */
    uint32_t reduce_mark;
};

/* Return the bytes of a moments row of @n_elems elements, which is the chunk's number and a
 * multiple of CST_MX8_BLOCK. A row in MX8 has @n_elems codes, then @n_elems / 32 exponents; spans
 * begin at multiples of CST_MX8_BLOCK. */
static inline uint64_t cst_table_moment_bytes(enum cst_moments moments, uint64_t n_elems)
{
    return moments == CST_MOMENTS_MX8    ? n_elems + n_elems / CST_MX8_BLOCK
           : moments == CST_MOMENTS_BF16 ? 2 * n_elems
                                         : 4 * n_elems;
}

/* Return the optimizer of @chunk, which has states: that of the job, but if it is one of matrices,
 * it updates only the chunks with a scratch. */
static inline enum cst_optimizer cst_table_optimizer(const struct cst_table_header *header,
                                                     const struct cst_table_chunk *chunk)
{
    return cst_optimizer_of((enum cst_optimizer)header->optimizer,
                            chunk->scratch.segment != CST_PLACE_NONE);
}

/* Return whether an update of a chunk of @dtype reads the weight row, because the weights are the
 * master weights or a part of them. */
static inline bool cst_table_reads_weights(const struct cst_table_header *header,
                                           enum cst_dtype dtype)
{
    return dtype == CST_FP32 || header->masters == CST_MASTERS_SPLIT;
}

/* Return whether a chunk of @dtype that is updated by @optimizer has row @row. The second weight
 * row is not known here. */
static inline bool cst_table_has_row(enum cst_optimizer optimizer, enum cst_dtype dtype, int row)
{
    return row == CST_ROW_MASTER ? dtype != CST_FP32
           : cst_table_is_moment(row)
               ? row - CST_ROW_MOMENT < (int)cst_optimizer_n_moments(optimizer)
               : true;
}

/* Return the bytes of an element of the grad row of a chunk of @dtype. */
static inline uint64_t cst_table_grad_bytes(const struct cst_table_header *header,
                                            enum cst_dtype dtype)
{
    return header->grad_bytes == 4 ? 4 : cst_dtype_bytes(dtype);
}

/* Return the bytes of the first @n_elems elements of row @row (or CST_ROW_WEIGHT_OTHER) of a chunk
 * of @dtype. The formats in @header must be valid. For a row that the chunk does not have, returns
 * what it would take. */
static inline uint64_t cst_table_row_bytes(const struct cst_table_header *header,
                                           enum cst_dtype dtype, int row, uint64_t n_elems)
{
    switch (row) {
    case CST_ROW_MASTER:
        return (header->masters == CST_MASTERS_SPLIT ? 2 : 4) * n_elems;
    case CST_ROW_GRAD:
        return cst_table_grad_bytes(header, dtype) * n_elems;
    default:
        return cst_table_is_moment(row)
                   ? cst_table_moment_bytes((enum cst_moments)header->moments, n_elems)
                   : cst_dtype_bytes(dtype) * n_elems;
    }
}

/* Return the least alignment of row @row of a chunk of @dtype, bytes. */
static inline uint64_t cst_table_row_align(const struct cst_table_header *header,
                                           enum cst_dtype dtype, int row)
{
    bool codes = header->moments == CST_MOMENTS_MX8 && cst_table_is_moment(row);

    return codes ? 1 : cst_table_row_bytes(header, dtype, row, 1);
}

/* Return the number of tiles of a tensor of @n_elems elements. */
static inline uint64_t cst_table_n_tiles(uint64_t n_elems)
{
    return (n_elems + CST_TILE_ELEMS - 1) / CST_TILE_ELEMS;
}

/* Fill in @header with these numbers and the offsets; total_bytes is the size to allocate. Grad
 * rows are bf16; for fp32 the caller sets grad_bytes. */
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

/* Return the factor of lr for @span in the update with the mark @mark. */
static inline double cst_table_lr(const struct cst_table_header *header,
                                  const struct cst_table_span *span, uint64_t mark)
{
    const struct cst_table_factors *f = &header->factors[mark % 2];

    return (double)span->lr_scale * (span->param_group < f->n ? f->lr[span->param_group] : 1);
}

/* Return the factor of weight_decay for @span in the update with the mark @mark. */
static inline double cst_table_decay(const struct cst_table_header *header,
                                     const struct cst_table_span *span, uint64_t mark)
{
    const struct cst_table_factors *f = &header->factors[mark % 2];

    return (double)span->decay_scale * (span->param_group < f->n ? f->decay[span->param_group] : 1);
}

static inline uint64_t cst_table_steps_bytes(const struct cst_table_header *header)
{
    return (header->tiles_bytes + header->n_tiles * sizeof(struct cst_table_tile) + 63) & ~63ull;
}

/* Let each span of a table count its own steps: set has_steps and total_bytes. cst_table_size has
 * filled in @header. */
static inline void cst_table_add_steps(struct cst_table_header *header)
{
    uint64_t bytes = 2 * header->n_spans * sizeof(struct cst_table_steps);

    header->has_steps = 1;
    header->total_bytes = (cst_table_steps_bytes(header) + bytes + 63) & ~63ull;
}

/* Return the steps of span number @span up to the step with the mark @mark, the last step or the
 * one before. @header has has_steps. The steps with a mark are written before its NORM and its
 * first update; by then, all updates with earlier marks are complete. */
static inline struct cst_table_steps *cst_table_steps(const struct cst_table_header *header,
                                                      uint64_t span, uint64_t mark)
{
    char *at = (char *)(uintptr_t)header + cst_table_steps_bytes(header);

    return (struct cst_table_steps *)(void *)at + 2 * span + mark % 2;
}

/* Return the number of @span, a span of @header. */
static inline uint64_t cst_table_span_number(const struct cst_table_header *header,
                                             const struct cst_table_span *span)
{
    const char *spans = (const char *)header + header->spans_bytes;

    return (uint64_t)((const char *)span - spans) / sizeof *span;
}

/* Return whether @span had no gradient in the step with the mark @mark, so that its states stay. */
static inline bool cst_table_is_idle(const struct cst_table_header *header,
                                     const struct cst_table_span *span, uint64_t mark)
{
    return header->has_steps != 0 &&
           cst_table_steps(header, cst_table_span_number(header, span), mark)->last != mark;
}

/* Return the number of the step with the mark @mark among those that @span has made. */
static inline uint64_t cst_table_step(const struct cst_table_header *header,
                                      const struct cst_table_span *span, uint64_t mark)
{
    return header->has_steps == 0
               ? mark
               : mark - cst_table_steps(header, cst_table_span_number(header, span), mark)->missed;
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
