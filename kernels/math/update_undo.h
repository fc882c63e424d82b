/* SPDX-License-Identifier: Apache-2.0 */
/* The old states that a running update keeps, for restoring the rows after kill -9. The update
 * keeps the states of the group of elements that it is changing, as bytes in memory. With fp32
 * moments it may be half a group of CST_UPDATE_GROUP elements at a time. Two buffers are used in
 * turn. One word, `held`, thereby always names a complete buffer:
 *
 *             save in       then set                   then change
 *   group k   buffer 0      held = (first, n, 0)       elements [first, first + n)
 *   group k+1 buffer 1      held = (first + n, .., 1)  elements [first + n, ..)
 *   group k+2 buffer 0      ...
 *
 *   held = 0  no element was changed yet, or the caller cleared the word after all were changed
 *   held > 0  elements before `first` are new; [first, first + n) are old, new or half written,
 *             and their old values are in the buffer; later elements are old
 *
 * To restore the rows, copy the old values of the group back. Then update all elements from `first`
 * on with the same scalars and random numbers, again with this undo and base = first. That update
 * may be killed in turn: until `held` changes, the update writes to the named buffer only the
 * values that the buffer already holds. The buffers are small enough to stay in L1. Compared with
 * the states' way through memory, saving costs next to nothing. */
#ifndef CST_UPDATE_UNDO_H
#define CST_UPDATE_UNDO_H

#include "kernels/math/update.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

/* Old values of the elements that an update holds: a group, or half a group. */
struct cst_update_old {
    union {
        alignas(64) float master[CST_UPDATE_GROUP];
        struct {
            alignas(64) int16_t remainder[CST_UPDATE_GROUP];
            alignas(64) uint16_t weight[CST_UPDATE_GROUP];
        } split;
    };
    /* Moments in the format of the row. */
    alignas(64) uint8_t moments[CST_MAX_MOMENTS][CST_UPDATE_GROUP * sizeof(float)];
    alignas(64) uint16_t grad[CST_UPDATE_GROUP]; /* bf16 gradient, if the weights overwrite it. */
    uint8_t exponents[CST_MAX_MOMENTS];          /* mx8: exponents of the block. */
};

/* The undo state of one running update. */
struct cst_update_undo {
    alignas(64) _Atomic uint32_t held; /* The held elements, as cst_update_undo_word; 0: none. */
    uint32_t base; /* Number of the first element of the update, below 2^16. Set by the caller. */
    struct cst_update_old old[2];
};

/* Returns the word for the @n elements from number @first on, whose old values are in
 * @buffer. The word is never 0. */
static inline uint32_t cst_update_undo_word(uint32_t first, uint32_t n, uint32_t buffer)
{
    return first | n << 16 | buffer << 24;
}

/* The parts of a word of cst_update_undo_word: number of the first element, number of elements,
 * buffer. */
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

/* Store @word after all earlier stores and before all later ones, as seen by a process that reads
 * the memory after this one was killed. A kill acts between two instructions like a signal. Only
 * the compiler has to keep the order. */
static inline void cst_update_undo_hold(struct cst_update_undo *undo, uint32_t word)
{
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&undo->held, word, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
}

#endif
