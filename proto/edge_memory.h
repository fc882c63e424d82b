/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of an edge, which the daemon allocates and the edge's two ranks map. Sizes are those
 * of the declaration and are never read from the memory, so that what a rank writes there cannot
 * lead another one out of bounds.
 *
 *   +------+---------------+------------------------------+
 *   | head | words[n]      | slots[n]                     |
 *   +------+---------------+------------------------------+
 *    128 B   64 B each       slot_bytes each, rounded up to 64; the first begins at a page
 *
 * The word of a slot is 0 or (attempt << 32 | key + 1): the slot is full, by the sender's put with
 * this key in this attempt. (attempt << 32): the receiver has emptied it. The attempt has 32 bits.
 * A word of another attempt counts as empty: nobody takes what was put in an attempt that is
 * over.
 *
 * An edge that was declared with slots in device memory has a second memory. The first one ends
 * after the words, and the second one has the slots. It is in host memory, too, if the sender could
 * not access it on the receiver's device, or if a worker could not map it.
 *
 *   +------+---------------+        +------------------------------+
 *   | head | words[n]      |        | slots[n]                     |
 *   +------+---------------+        +------------------------------+
 *
 * In an edge of all ranks (CST_EDGE_ANY) the array with the number i is in slot i. A put overwrites
 * it, and a take leaves it. Units of work keep the ranks apart (cst_next). */
#ifndef CST_EDGE_MEMORY_H
#define CST_EDGE_MEMORY_H

#include "proto/round_up.h"
#include "proto/shared.h"

#define CST_EDGE_MAX 256                       /* Edges of a job. */
#define CST_EDGE_MAX_SLOTS 4096                /* Slots of an edge. */
#define CST_EDGE_MAX_BYTES (UINT64_C(1) << 44) /* All slots of an edge. */
#define CST_EDGE_ANY UINT32_MAX                /* In place of both ranks: all put and take. */
#define CST_EDGE_NAME_BYTES 64                 /* Including the NUL. */
#define CST_EDGE_WORD_BYTES 64
#define CST_EDGE_PAGE_BYTES 4096

/* What a slot contains for a rank in one attempt. */
static inline uint64_t cst_edge_full(uint64_t attempt, uint32_t key)
{
    return (attempt & UINT32_MAX) << 32 | ((uint64_t)key + 1);
}

static inline uint64_t cst_edge_empty(uint64_t attempt)
{
    return (attempt & UINT32_MAX) << 32;
}

/* True if a slot with the word @word can be put to in @attempt. */
static inline bool cst_edge_is_free(uint64_t word, uint64_t attempt)
{
    return word >> 32 != (attempt & UINT32_MAX) || (word & UINT32_MAX) == 0;
}

static inline uint64_t cst_edge_slot_stride(uint64_t slot_bytes)
{
    return (slot_bytes + 63) & ~UINT64_C(63);
}

/* Offset of the word of slot @i. */
static inline uint64_t cst_edge_word_offset(uint32_t i)
{
    return CST_SHARED_HEAD_BYTES + (uint64_t)i * CST_EDGE_WORD_BYTES;
}

static inline uint64_t cst_edge_whole_pages(uint64_t bytes)
{
    return cst_round_up(bytes, CST_EDGE_PAGE_BYTES);
}

/* Bytes of the head and the words of @n_slots slots, whole pages. */
static inline uint64_t cst_edge_head_bytes(uint32_t n_slots)
{
    return cst_edge_whole_pages(cst_edge_word_offset(n_slots));
}

/* Bytes of @n_slots slots, whole pages. */
static inline uint64_t cst_edge_slots_bytes(uint64_t slot_bytes, uint32_t n_slots)
{
    return cst_edge_whole_pages(n_slots * cst_edge_slot_stride(slot_bytes));
}

/* Bytes of head, words and slots. */
static inline uint64_t cst_edge_bytes(uint64_t slot_bytes, uint32_t n_slots)
{
    return cst_edge_head_bytes(n_slots) + cst_edge_slots_bytes(slot_bytes, n_slots);
}

#endif
