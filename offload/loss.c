/* SPDX-License-Identifier: Apache-2.0 */
/* An accelerator that is gone takes with it the pools that are in its memory, and no state: weights
 * there are copies, and a gradient that was handed in is of a step that is not committed. So the
 * attempt is over, as with a rank's death:
 *
 *   RUNNING, LOAD fails            at once
 *   RUNNING, REDUCE, STAGE fails   at once: a contribution is lost
 *   closing, LOAD fails            behind the commit, for which all has been handed in
 *   closing, REDUCE, STAGE fails   at once, and the step is not committed
 *   of a collection that is void   nobody wants it any more
 *
 * Updates of this step that were early are finished by the attempt that comes next: they were
 * issued when their sums were in grad rows. What updates lose that are made there is told in
 * fallback.c.
 *
 * The ranks whose pools were there hear why, and no other one's fate, until they attach again: if
 * the accelerator is there by then they go on. */
#include "offload/parts.h"

#include <inttypes.h>

bool cst_loss_is(const struct cst_event *event)
{
    return event->status == CST_ELOST || event->status == CST_EENGINE;
}

/* A bit for each rank whose pool is there. */
static uint64_t find_ranks(const struct cst_core *core, uint32_t engine)
{
    uint64_t ranks = 0;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        ranks |= (uint64_t)(core->ranks[rank].pool.engine == engine) << rank;
    }
    return ranks;
}

/* Whoever of @ranks is attached has the first cause for its own. */
static void mark(struct cst_core *core, uint64_t ranks, const struct cst_err *why, bool refuse)
{
    for (; ranks != 0; ranks &= ranks - 1) {
        uint32_t rank = (uint32_t)__builtin_ctzll(ranks);
        struct cst_rank *r = &core->ranks[rank];

        if (r->state != CST_RANK_ATTACHED) {
            continue;
        }
        if (r->gone.status == CST_OK) {
            r->gone = *why;
        }
        if (refuse) {
            cst_ranks_refuse(core, rank, &r->gone);
        }
    }
}

void cst_loss_of_pools(struct cst_core *core, uint32_t engine, const struct cst_event *event,
                       bool needed)
{
    uint64_t ranks = find_ranks(core, engine);
    char text[CST_GROUP_TEXT];
    struct cst_err why;

    if (core->phase == CST_PHASE_FAILED) {
        return;
    }
    (void)cst_err_set(&why, event->status,
                      "the accelerator of engine %" PRIu32 " is gone in step %" PRIu64
                      ", and with it the pool of %s: %s",
                      engine, core->step, cst_group_words(ranks, text), cst_event_words(event));
    mark(core, ranks, &why, needed || !core->closing);
    why.status = CST_EPEERDIED;
    if (core->phase == CST_PHASE_RUNNING && needed) {
        cst_ranks_abandon(core, &why);
    } else if (core->phase == CST_PHASE_RUNNING) {
        cst_ranks_interrupt(core, &why);
    }
}

/* Its commands are done later, as those of an engine are that is slow: this is a death of all
 * ranks, as far as the attempt is concerned. No state is lost, nor is a step that was committed. A
 * sum or a norm that is still to come is of a collection that is void then. */
void cst_loss_of_node(struct cst_core *core, const struct cst_event *event)
{
    struct cst_err why;

    if (core->phase == CST_PHASE_FAILED) {
        return;
    }
    (void)cst_err_set(&why, CST_EENGINE,
                      "an engine was given up in step %" PRIu64
                      ", and is tried again when a worker attaches: %s",
                      core->step, event->text);
    mark(core, core->everybody, &why, true);
    why.status = CST_EPEERDIED;
    if (core->phase == CST_PHASE_RUNNING) {
        core->norm_issued = false;
        cst_ranks_abandon(core, &why);
    } else if (core->phase == CST_PHASE_IDLE) {
        core->phase = CST_PHASE_INTERRUPTED; /* with updates to come */
        core->why = why;
        cst_core_log(core, why.status, "interrupted: %s", why.text);
    }
}
