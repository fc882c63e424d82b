/* SPDX-License-Identifier: Apache-2.0 */
/* How a room, an accelerator's memory for updates, is divided. Pure.
 *
 *   buffer 0                                                  buffer 1    buffer 2    held
 * gradients | in: grad, master, exp_avg, exp_avg_sq                   | ...       | ...       | 0 |
 * 1 | ... | out: weight, master, exp_avg, exp_avg_sq                |
 *
 * A buffer takes one chunk through: its states come up into `in`, are updated from there into
 * `out`, and go down. With three of them one comes up while another one is updated and a third goes
 * down. What is left holds gradients that need not come up again. */
#ifndef CST_BUFFERS_H
#define CST_BUFFERS_H

#include "offload/layout.h"

#define CST_BUFFERS_MAX 3

struct cst_buffers {
    uint64_t in[CST_ROW_COUNT]; /* bytes from the start of a buffer to each row that is read; WEIGHT
                                   is not */
    uint64_t out[CST_ROW_COUNT]; /* same, written; GRAD is not */
    uint64_t bytes;              /* of a buffer */
    uint32_t n;          /* buffers, 0..CST_BUFFERS_MAX; 0: the room is too small for any chunk */
    uint64_t max_elems;  /* of a chunk that goes through */
    uint64_t held_first; /* bytes from the start of the room to the first held gradient */
    uint64_t held_bytes; /* of one */
    uint32_t n_held;
};

/* Divide @room_bytes for the chunks of @layout that have states: one, two or three buffers of one
 * size. More buffers overlap more of the copies and updates; larger buffers let larger chunks
 * through, and a chunk that is larger is never updated in the room. The number is chosen that takes
 * most elements through per time: three buffers only where they hold two thirds of the elements
 * that two would hold. What the buffers leave holds gradients. *buffers has n = 0 where no chunk
 * fits. */
void cst_buffers_divide(struct cst_buffers *buffers, const struct cst_layout *layout,
                        uint64_t room_bytes);

/* Bytes that three buffers for the largest chunk take; of the first @n_classes size classes, 0:
 * there is none that has states. */
uint64_t cst_buffers_want(const struct cst_layout *layout);
uint64_t cst_buffers_want_of(const struct cst_layout *layout, uint32_t n_classes);
/* Bytes of one buffer for the smallest chunk: the least room that is of any use; 0: no chunk has
 * states. */
uint64_t cst_buffers_least(const struct cst_layout *layout);

#endif
