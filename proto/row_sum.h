/* SPDX-License-Identifier: Apache-2.0 */
/* Checksum of a row of states, which several threads make in pieces: the sum of the XXH3 (64 bits)
 * of all pieces, each with its offset in the row as seed, modulo 2^53, which a double holds; 0
 * stands for "not known", and becomes 1. */
#ifndef CST_ROW_SUM_H
#define CST_ROW_SUM_H

#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

#define CST_ROW_SUM_PIECE (4u << 20) /* Bytes of a piece; the last one can have fewer. */

/* Returns what the piece @data of @bytes, which begins at @offset, a multiple of CST_ROW_SUM_PIECE,
 * adds to the sum. */
static inline uint64_t cst_row_sum_piece(const void *data, size_t bytes, uint64_t offset)
{
    return XXH3_64bits_withSeed(data, bytes, offset);
}

/* Returns the checksum of a row whose pieces have @sum in all. */
static inline uint64_t cst_row_sum_end(uint64_t sum)
{
    sum &= (UINT64_C(1) << 53) - 1;
    return sum == 0 ? 1 : sum;
}

#endif
