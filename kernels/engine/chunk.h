/* SPDX-License-Identifier: Apache-2.0 */
/* A checked view of a chunk in its job's table. Every number of the table on which REDUCE, UPDATE
 * and recovery rely is first compared with the sizes of the segments. A wrong table therefore leads
 * to an error status and never to a wrong access. The daemon writes chunks and spans once, before
 * the first command that names these chunks. Only marks and sums change afterwards. */
#ifndef CST_CHUNK_H
#define CST_CHUNK_H

#include "kernels/engine/segments.h"
#include "kernels/math/tile.h"

#define CSTE_CHUNK_MAX_ELEMS (1ull << 40)

/* Sets of rows as bits, one bit per row. */
#define CSTE_CHUNK_ROW(row) (1u << (row))
#define CSTE_CHUNK_ROWS_REDUCE CSTE_CHUNK_ROW(CST_ROW_GRAD)
#define CSTE_CHUNK_ROWS_STATES (CSTE_CHUNK_ROW(CST_ROW_COUNT) - CSTE_CHUNK_ROW(CST_ROW_MASTER))
#define CSTE_CHUNK_ROWS_ALL                                                                        \
    (CSTE_CHUNK_ROWS_STATES | CSTE_CHUNK_ROW(CST_ROW_WEIGHT) | CSTE_CHUNK_ROW(CST_ROW_GRAD))
/* Number of rows of a chunk, including the second weight row. */
#define CSTE_CHUNK_N_ROWS (CST_ROW_COUNT + 1)

/* A checked chunk with its requested rows. It is valid while its segments are held. */
struct cste_chunk {
    struct cst_table_chunk *entry; /* The entry of the chunk in the table, with its marks. */
    /* Table, chunk index, and the requested rows that are in host memory. mark is 0 and kernels is
     * NULL. */
    struct cst_tile_work work;
    uint64_t n_elems; /* Number of elements of each row. */
    uint64_t n_tiles; /* Number of tiles of all spans of the chunk. */
    /* Start of each requested row. Rows that were not requested have no memory. */
    struct cste_addr rows[CSTE_CHUNK_N_ROWS];
    bool on_device; /* At least one of the rows is not in host memory. */
    /* The segment of the table, followed by the segments of the rows. Borrowed. */
    struct cste_segment *segments[CSTE_CHUNK_N_ROWS + 1];
    uint32_t n_segments; /* Number of entries in segments. */
};

/* Find and check the header of the table in segment @id. CST_ENOTFOUND: there is no such segment,
 * or it is not READY; CST_EINVAL: the segment does not hold a table. */
int cste_chunk_table(const struct cste_segments *segments, uint32_t id,
                     struct cste_segment **segment, struct cst_table_header **out,
                     struct cst_err *err);

/* Find chunk @index of the table in segment @table, with the rows whose bits are set in @rows. Rows
 * of moments are left out if the optimizer does not have them, the master row if the tensors are
 * fp32, and the second weight row if the chunk does not have one. Rows must not overlap, with one
 * exception: a bf16 grad row may be the weight row. The pointers in @out are valid while the
 * segments are held. CST_ENOTFOUND: a segment is missing or not READY; CST_EINVAL: @index is out of
 * range, the chunk does not have a requested row, or the table contradicts itself or the segments.
 */
int cste_chunk_find(const struct cste_segments *segments, uint32_t table, uint32_t index,
                    unsigned rows, struct cste_chunk *out, struct cst_err *err);

#endif
