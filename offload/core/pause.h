/* SPDX-License-Identifier: Apache-2.0 */
/* A pause holds a job between two steps, or where no attempt runs. Owns the pause.
 *
 *   NONE --PAUSE--> ASKED --no step is under way--> HELD --updates are over--> PAUSED
 *    ^                |                              |                           |
 *    +----------------+------------RESUME------------+---------------------------+
 *
 * ASKED changes nothing: the step under way is committed, or its attempt ends. A step whose updates
 * began before its commit is completed, even if its attempt has to be repeated.
 *
 * In HELD and PAUSED requests of ranks wait, without deadline: no weights, gradient, unit or
 * attempt is granted, and no step is closed. Releases and hints are answered, and so is the end of
 * a micro-batch in which a rank has done nothing. Deaths of ranks end the attempt as ever.
 * READs, WRITEs and saves go on. At RESUME everything that waits is looked at again, and its
 * deadline begins anew.
 *
 * With `release` the blocks of all pools are emptied in PAUSED, as soon as no rank has a lease. The
 * driver may then take the memory of the pools away until RESUME. */
#ifndef CST_PAUSE_H
#define CST_PAUSE_H

#include "offload/base/event.h"
#include "offload/base/stats.h"

struct cst_core;

struct cst_pause {
    enum cst_pause_state state;
    bool holds;       /* HELD or PAUSED: nothing is granted to ranks. */
    bool release;     /* The pools are emptied. */
    bool empty;       /* PAUSED, with `release`: all blocks of all pools are free. */
    uint64_t held_ns; /* HELD, PAUSED: when the job was held. */
};

/* Handle CST_EV_PAUSE and RESUME. */
void cst_pause_begin(struct cst_core *core, const struct cst_event *event);
void cst_pause_end(struct cst_core *core, const struct cst_event *event);

/* Go on with a pause that was asked for, if that is possible now. Called after each event. */
void cst_pause_look(struct cst_core *core);

#endif
