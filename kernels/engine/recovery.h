/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery after an engine was killed. The undo slots, in a segment that outlives the engine, hold
 * the tiles that its threads were changing. Recovery restores each tile as soon as the segments
 * that its slot names are added, and before any command of the dead engine is repeated. A tile in a
 * slot is always in host memory and was changed by the processor, whatever the device of the
 * engine. */
#ifndef CST_RECOVERY_H
#define CST_RECOVERY_H

#include "kernels/engine/segments.h"

/* The undo slots of an engine. */
struct cste_recovery {
    struct cst_undo_slot *slots; /* The slots of the undo segment; borrowed. */
    uint32_t n_slots;            /* Number of slots; one per thread of the team, or more. */
};

/* Restore every tile whose segments are READY. Returns the number of slots that still hold a tile.
 * An implausible slot is emptied and reported through @warn. Loop thread, while no REDUCE and no
 * UPDATE runs. */
uint32_t cste_recovery_try(struct cste_recovery *recovery, const struct cste_segments *segments,
                           void (*warn)(const struct cst_err *what));

/* Empty the slots that still hold a tile, and report each through @warn. Their segments were never
 * added; the job of the tile is therefore gone. Loop thread, while no REDUCE and no UPDATE runs. */
void cste_recovery_forget(struct cste_recovery *recovery, void (*warn)(const struct cst_err *what));

#endif
