/* SPDX-License-Identifier: Apache-2.0 */
/* Loss of an accelerator. The pools in its memory are lost, but no state is: weights in pools are
 * copies, and a gradient that was handed in belongs to an uncommitted step. So the attempt ends, as
 * after a rank's death:
 *
 *   RUNNING, LOAD fails            at once
 *   RUNNING, REDUCE, SPILL fails   at once: a contribution is lost
 *   closing, LOAD fails            after the commit, for which everything was handed in
 *   closing, REDUCE, SPILL fails   at once, and the step is not committed
 *   command of a void collection   has no effect
 *
 * Early updates of the step are completed by the next attempt: they were issued when their sums
 * were in grad rows. What is lost with updates on the accelerator is described in update_end.c.
 *
 * The ranks whose pools were there get the cause as their answer until they attach again. If the
 * accelerator is back by then, they go on. */
#include "offload/core/device_loss.h"

#include "offload/core/core_state.h"
#include "offload/books/group.h"
#include "offload/core/ranks.h"
#include "offload/books/waiting.h"

#include <assert.h>
#include <inttypes.h>

/* The ranks whose pools are on the accelerator of @engine. */
static struct cst_set find_ranks(const struct cst_core *core, uint32_t engine)
{
    struct cst_set ranks = {{0}};

    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (core->ranks[rank].pool.tier == engine) {
            cst_set_add(&ranks, rank);
        }
    }
    return ranks;
}

/* Record @why for those of *ranks that are attached. A rank keeps the first cause. */
static void mark(struct cst_core *core, const struct cst_set *ranks, const struct cst_err *why,
                 bool refuse)
{
    CST_SET_EACH (rank, ranks) {
        struct cst_rank *r = &core->ranks[rank];

        if (r->state != CST_RANK_ATTACHED) {
            continue;
        }
        if (r->gone.status == CST_OK) {
            r->gone = *why;
        }
        if (refuse) {
            cst_waiting_refuse_rank(core, rank, &r->gone);
        }
    }
}

void cst_device_loss_of_pools(struct cst_core *core, uint32_t engine, const struct cst_event *event,
                              bool needed)
{
    const struct cst_set ranks = find_ranks(core, engine);
    char text[CST_GROUP_TEXT];
    struct cst_err why;

    if (core->attempt.phase == CST_PHASE_FAILED) {
        return;
    }
    (void)cst_err_set(&why, event->status,
                      "the accelerator of engine %" PRIu32 " was lost in step %" PRIu64
                      ", with the pool of %s: %s",
                      engine, core->step, cst_group_words(&ranks, text), cst_event_words(event));
    mark(core, &ranks, &why, needed || !core->attempt.closing);
    why.status = CST_EPEERDIED;
    if (core->attempt.phase == CST_PHASE_RUNNING && needed) {
        /* The NORM is issued only when all sums are there, so none can be lost any more. */
        assert(!core->attempt.closing || core->commit.normed != core->collection.number + 1);
        cst_ranks_abandon(core, &why);
    } else if (core->attempt.phase == CST_PHASE_RUNNING) {
        cst_ranks_interrupt(core, &why);
    }
}

/* The engine's commands are executed later, as if the engine were slow. For the attempt this counts
 * as the death of all ranks. No state and no committed step is lost. A sum or norm that completes
 * later belongs to a void collection. */
void cst_device_loss_of_node(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_set all = cst_set_range(0, core->world);
    struct cst_err why;

    if (core->attempt.phase == CST_PHASE_FAILED) {
        return;
    }
    (void)cst_err_set(&why, CST_EENGINE,
                      "an engine was given up in step %" PRIu64
                      ", and is tried again when a worker opens the job: %s",
                      core->step, event->text);
    mark(core, &all, &why, true);
    why.status = CST_EPEERDIED;
    if (core->attempt.phase == CST_PHASE_RUNNING) {
        cst_ranks_abandon(core, &why);
    } else if (core->attempt.phase == CST_PHASE_IDLE) {
        cst_ranks_interrupt_idle(core, &why);
    }
}
