/* SPDX-License-Identifier: Apache-2.0 */
/* What an update under way keeps so that it can be made whole after kill -9: the old states of the
 * group of elements that it is changing, as the bytes that they are in memory. Two buffers are used
 * by turns, so that one word, `held`, always names a buffer that is complete:
 *
 *             save in       then set                  then change
 *   group k   buffer 0      held = (first, n, 0)      elements [first, first + n)
 *   group k+1 buffer 1      held = (first + n, .., 1) elements [first + n, ..)
 *   group k+2 buffer 0      ...
 *
 *   held = 0  no element was changed yet, or the caller cleared it after all were
 *   held > 0  elements before `first` are new; [first, first + n) are old, new or half and half,
 *             and their old values are in the buffer; later ones are old
 *
 * To make it whole: copy the group's old values back, then update all elements from `first` on with
 * the same scalars and random numbers, again with this undo and base = first. That may be killed in
 * turn: until `held` changes, what it writes into the named buffer is what is there already. The
 * buffers are small so that they stay in L1: next to the states' way through memory, saving costs
 * next to nothing. */
#ifndef CST_UPDATE_UNDO_H
#define CST_UPDATE_UNDO_H

#include "kernels/update.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

/* Old values of a group. */
struct cst_update_old {
    alignas(64) float master[CST_UPDATE_GROUP];
    alignas(64) uint8_t moments[2][CST_UPDATE_GROUP * sizeof(float)]; /* in the row's format */
    alignas(64) uint16_t grad[CST_UPDATE_GROUP]; /* bf16, if the weights are written over it */
    uint8_t exponents[2];                        /* mx8: of the block */
};

struct cst_update_undo {
    alignas(64) _Atomic uint32_t held; /* the group in hand: cst_update_undo_word; 0: none */
    uint32_t base; /* set by the caller: number of the update's first element, below 2^16 */
    struct cst_update_old old[2];
};

/* The group of @n elements from number @first, whose old values are in @buffer. Never 0. */
static inline uint32_t cst_update_undo_word(uint32_t first, uint32_t n, uint32_t buffer)
{
    return first | n << 16 | buffer << 24;
}

static inline uint32_t cst_update_undo_first(uint32_t word)
{
    return word & 0xffffu;
}

static inline uint32_t cst_update_undo_n(uint32_t word)
{
    return word >> 16 & 0xffu;
}

static inline uint32_t cst_update_undo_buffer(uint32_t word)
{
    return word >> 24;
}

/* All earlier stores, then this one, then all later ones, as the process would leave them behind: a
 * kill falls between two instructions like a signal, so it is the compiler that must keep order. */
static inline void cst_update_undo_hold(struct cst_update_undo *undo, uint32_t word)
{
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&undo->held, word, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
}

#endif
