/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk as its job's table describes it, checked: every number of the table that REDUCE, UPDATE
 * and recovery rely on is compared with the sizes of the segments first, so that a wrong table is
 * answered and never followed. The daemon writes chunks and spans once, before the first command
 * that names them; only marks and sums change afterwards. */
#ifndef CST_CHUNK_H
#define CST_CHUNK_H

#include "kernels/segments.h"
#include "kernels/tile.h"

#define CST_CHUNK_MAX_ELEMS (1ull << 40)

/* Bits of rows. */
#define CST_CHUNK_ROW(row) (1u << (row))
#define CST_CHUNK_ROWS_REDUCE CST_CHUNK_ROW(CST_ROW_GRAD)
#define CST_CHUNK_ROWS_STATES                                                                      \
    (CST_CHUNK_ROW(CST_ROW_MASTER) | CST_CHUNK_ROW(CST_ROW_EXP_AVG) |                              \
     CST_CHUNK_ROW(CST_ROW_EXP_AVG_SQ))
#define CST_CHUNK_ROWS_ALL                                                                         \
    (CST_CHUNK_ROWS_STATES | CST_CHUNK_ROW(CST_ROW_WEIGHT) | CST_CHUNK_ROW(CST_ROW_GRAD))
#define CST_CHUNK_N_ROWS (CST_ROW_COUNT + 1) /* the second weight row included */

struct cst_chunk {
    struct cst_table_chunk *entry; /* in the table: its marks */
    struct cst_tile_work work;     /* table, and the rows asked for that are host memory; mark is 0,
                                      kernels NULL */
    uint64_t n_elems;              /* of its rows */
    uint64_t n_tiles;              /* of its spans */
    struct cst_addr rows[CST_CHUNK_N_ROWS]; /* asked for, where they begin; else without memory */
    bool on_device;                         /* one of them at least is no host memory */
    struct cst_segment *segments[CST_CHUNK_N_ROWS + 1]; /* the table's, then the rows' */
    uint32_t n_segments;                                /* how many of them */
};

/* The header of the table in segment @id. CST_ENOTFOUND: no such segment (or not yet); CST_EINVAL:
 * what is in it is no table. */
int cst_chunk_table(const struct cst_segments *segments, uint32_t id, struct cst_segment **segment,
                    struct cst_table_header **out, struct cst_err *err);

/* Chunk @index of the table in segment @table, with the rows whose bits are in @rows; without
 * exp_avg_sq where the optimizer has none, and the second weight row where there is none. Rows do
 * not overlap, but that the grad row may be the weight row, if both are bf16. The pointers are good
 * while the segments are held. CST_ENOTFOUND: a segment is missing (or not READY); CST_EINVAL:
 * index, a row that the chunk does not have, or the table contradicts itself or the segments. */
int cst_chunk_find(const struct cst_segments *segments, uint32_t table, uint32_t index,
                   unsigned rows, struct cst_chunk *out, struct cst_err *err);

#endif
