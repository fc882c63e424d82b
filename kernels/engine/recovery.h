/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery after an engine was killed. The undo slots, in a segment that outlives the engine, hold
 * the tiles that its threads were changing. Recovery restores each tile as soon as the segments
 * that its slot names are added, and before any command of the dead engine is repeated. A tile in a
 * slot is always in host memory and was changed by the processor, whatever the device of the
 * engine. */
#ifndef CST_RECOVERY_H
#define CST_RECOVERY_H

#include "kernels/engine/segments.h"

#include <stdbool.h>

/* The undo slots of an engine. The segment has more slots than the team has threads. When a daemon
 * goes on with the jobs of an earlier one, their segments are added one job after the other, and
 * other jobs' commands must not wait for them. Tiles of jobs that are still missing are then parked
 * in slots that no thread uses. */
struct cste_recovery {
    struct cst_undo_slot *slots; /* The slots of the undo segment; borrowed. */
    uint32_t n_slots;            /* Number of slots; one per thread of the team, or more. */
    uint32_t n_team;             /* The first slots, which threads of the team use. */
    bool parked; /* Threads may be using their slots: only the others are looked at. */
};

/* Restore every tile whose segments are READY. Returns the number of slots that still hold a tile.
 * An implausible slot is emptied and reported through @warn. Loop thread, while no REDUCE and no
 * UPDATE runs or, after cste_recovery_park, none of a job whose tile may be in a slot. */
uint32_t cste_recovery_try(struct cste_recovery *recovery, const struct cste_segments *segments,
                           void (*warn)(const struct cst_err *what));

/* Move the tiles out of the team's slots. True: threads may use these from now on. False: there is
 * not enough room. Loop thread, while no REDUCE and no UPDATE runs. */
bool cste_recovery_park(struct cste_recovery *recovery);

/* Empty the slots that still hold a tile, and report each through @warn. Their segments were never
 * added; the job of the tile is therefore gone. The same threads may run as in
 * cste_recovery_try. */
void cste_recovery_forget(struct cste_recovery *recovery, void (*warn)(const struct cst_err *what));

#endif
