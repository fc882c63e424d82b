/* SPDX-License-Identifier: Apache-2.0 */
/* After an engine was killed: the tiles that its threads had in hand, in the undo slots of the
 * segment that outlives it, are made whole before any command of its is done again: each as soon as
 * the segments that its slot names are there. A tile in a slot is in host memory and was changed by
 * the processor, whichever device the engine is of. */
#ifndef CST_RECOVERY_H
#define CST_RECOVERY_H

#include "kernels/segments.h"

struct cst_recovery {
    struct cst_undo_slot *slots; /* borrowed: the undo segment */
    uint32_t n_slots;            /* that it has room for; one per compute thread, or more */
};

/* Make whole every tile whose segments are READY. Returns how many slots still hold one. A slot
 * that cannot be right is emptied, with its words through @warn. Loop thread, while no REDUCE and
 * no UPDATE runs. */
uint32_t cst_recovery_try(struct cst_recovery *recovery, const struct cst_segments *segments,
                          void (*warn)(const struct cst_err *what));

/* Empty the slots that still hold a tile: their segments were never added, so the tile's job is
 * gone. As above. */
void cst_recovery_forget(struct cst_recovery *recovery, void (*warn)(const struct cst_err *what));

#endif
