/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of chunks whose states are on other machines only (offload/base/machines.h). In place of
 * an update such a chunk gets its weights from its home, by a COPY that is promised at the commit:
 * fetches wait for it as they wait for an update.
 *
 *   commit -> COPY, promised --WRITTEN from the home--> COPY --done--> the chunk has its mark
 *                  ^                                      |
 *                  +------------ the copy fails ----------+
 *
 * Owned here: what homes have told. Called by core.c, commit, agreement, revival, update and
 * update_end. */
#ifndef CST_REPLICAS_H
#define CST_REPLICAS_H

#include "offload/base/event.h"
#include "offload/base/flight.h"

struct cst_core;
struct cst_update;

/* What the home of a chunk has told last. */
struct cst_replica {
    uint64_t mark; /* Adam step of the weights; 0: nothing was told. */
    struct cst_place place;
    bool fresh;    /* They were not copied since. */
    bool promised; /* The command that completes the weights is promised (struct cst_command). */
    bool lost;     /* No member has the states: nobody waits for the weights. */
};

struct cst_replicas {
    struct cst_replica *v; /* Per chunk; owned. NULL: the job has one machine. */
    uint32_t n_awaited;    /* Chunks whose weights do not come from here, and are not here yet. */
};

/* Fill core->replicas. CST_ENOMEM. */
int cst_replicas_open(struct cst_core *core);
void cst_replicas_close(struct cst_core *core);

/* The update @what is made on other machines: get its weights. */
void cst_replicas_update(struct cst_core *core, const struct cst_update *what);

/* Handle WRITTEN. */
void cst_replicas_written(struct cst_core *core, const struct cst_event *event);

/* The COPY @flight is complete. Returns true if its failure is dealt with. */
bool cst_replicas_copied(struct cst_core *core, const struct cst_flight *flight,
                         const struct cst_event *event);

/* The last update of @chunk, which has states here, is over: if this is its home, tell the others.
 */
void cst_replicas_tell(struct cst_core *core, uint32_t chunk);

/* The members have changed, or one has forgotten what it was told: homes tell all weights again,
 * and nobody waits for chunks without a home. */
void cst_replicas_change(struct cst_core *core);

/* The job has failed: nobody waits for weights that a home has not told. */
void cst_replicas_fail(struct cst_core *core);

/* True if a step must not be committed yet, because its updates would overwrite weights that this
 * machine has not copied. */
static inline bool cst_replicas_hold(const struct cst_replicas *replicas)
{
    return replicas->n_awaited > 0;
}

#endif
