/* SPDX-License-Identifier: Apache-2.0 */
/* Saves, and what is set when states were restored. */
#include "offload/core/save.h"

#include "offload/core/commit.h"
#include "offload/core/core_state.h"
#include "offload/core/open_writes.h"
#include "offload/core/ranks.h"
#include "offload/update/overlap.h"

#include <inttypes.h>

#define NS_PER_S 1e9

/* True if every state is, or will be when the issued updates are done, as of core->step: no update
 * of the uncommitted step was issued, and none will be before a save could hold it. */
static bool is_cut(const struct cst_core *core)
{
    return !cst_overlap_has_begun(core) && core->writes.n == 0 &&
           core->commit.normed != core->collection.number + 1;
}

void cst_save_look(struct cst_core *core)
{
    struct cst_reply *reply;

    if (core->save.state != CST_SAVE_WAITING || !is_cut(core)) {
        return;
    }
    core->save.state = CST_SAVE_ACTIVE;
    reply = cst_core_reply(core, core->save.tag);
    if (reply != NULL) {
        reply->step = core->step;
    }
}

void cst_save_begin(struct cst_core *core, const struct cst_event *event)
{
    struct cst_err err;

    if (core->save.state != CST_SAVE_NONE) {
        cst_core_refuse(core, event->tag, CST_EBUSY, "the job is being saved already");
        return;
    }
    if (!core->attempt.initialised) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "the job has no weights yet: its ranks have not called sync");
        return;
    }
    if (cst_open_writes_check_read(core, CST_NONE, &err) != CST_OK) {
        cst_core_refuse_err(core, event->tag, &err);
        return;
    }
    core->save.state = CST_SAVE_WAITING;
    core->save.tag = event->tag;
    core->save.read_ns = core->now;
    core->save.timed_out = false;
}

/* The save is over: a commit need not wait any more. */
static void finish(struct cst_core *core)
{
    uint64_t waited;

    core->save.state = CST_SAVE_NONE;
    waited = cst_commit_release(core);
    if (waited > 0) {
        core->save.wait_ns += waited;
        cst_core_log(core, CST_OK, "step %" PRIu64 " waited %.3g s for the save of step %" PRIu64,
                     core->step + 1, (double)waited / NS_PER_S, core->step);
    }
}

void cst_save_end(struct cst_core *core, const struct cst_event *event)
{
    if (core->save.timed_out) {
        core->save.timed_out = false;
        cst_core_refuse(core, event->tag, CST_ETIMEDOUT,
                        "the save was ended, because it read nothing for %.3g s while a step "
                        "waited for it",
                        (double)core->peer_timeout_ns / NS_PER_S);
        return;
    }
    if (core->save.state == CST_SAVE_NONE) {
        cst_core_refuse(core, event->tag, CST_EINVAL, "the job is not being saved");
        return;
    }
    if (core->save.state == CST_SAVE_WAITING) {
        cst_core_refuse(core, core->save.tag, CST_ECANCELLED, "the save was ended");
    }
    (void)cst_core_reply(core, event->tag);
    finish(core);
}

void cst_save_note_read(struct cst_core *core)
{
    core->save.read_ns = core->now;
}

uint64_t cst_save_deadline(const struct cst_core *core)
{
    bool held = core->attempt.closing && core->commit.held_ns != 0;
    uint64_t since = core->save.read_ns;

    if (core->peer_timeout_ns == CST_CORE_NEVER || core->save.state == CST_SAVE_NONE ||
        (core->save.state == CST_SAVE_ACTIVE && !held)) {
        return CST_CORE_NEVER;
    }
    if (held && core->commit.held_ns > since) {
        since = core->commit.held_ns;
    }
    return since + core->peer_timeout_ns;
}

void cst_save_expire(struct cst_core *core)
{
    if (cst_save_deadline(core) > core->now) {
        return;
    }
    if (core->save.state == CST_SAVE_WAITING) {
        cst_core_refuse(core, core->save.tag, CST_ETIMEDOUT,
                        "step %" PRIu64 " has begun its updates and was not committed within "
                        "%.3g s: it can be saved after its commit",
                        core->step, (double)core->peer_timeout_ns / NS_PER_S);
        core->save.state = CST_SAVE_NONE;
        return;
    }
    core->save.timed_out = true;
    finish(core);
}

int cst_save_check_write(const struct cst_core *core, struct cst_err *err)
{
    return core->save.state == CST_SAVE_NONE
               ? CST_OK
               : cst_err_set(err, CST_EBUSY, "states cannot be written while the job is saved");
}

void cst_save_restore(struct cst_core *core, const struct cst_event *event)
{
    struct cst_err err;

    if (cst_save_check_write(core, &err) != CST_OK || cst_seal_check_write(core, &err) != CST_OK) {
        cst_core_refuse_err(core, event->tag, &err);
        return;
    }
    if (core->attempt.phase == CST_PHASE_FAILED) {
        cst_core_refuse_err(core, event->tag, &core->attempt.why);
        return;
    }
    if (cst_overlap_has_begun(core) || core->writes.n > 0 || core->attempt.closing ||
        (core->attempt.phase == CST_PHASE_RUNNING &&
         cst_rank_furthest(core) != CST_BEGUN_NOTHING)) {
        cst_core_refuse(core, event->tag, CST_EBUSY,
                        "step %" PRIu64 " is running: a job is restored between steps", core->step);
        return;
    }
    cst_ranks_restored(core);
    cst_commit_restore(core, &event->counters, event->record);
    (void)cst_core_reply(core, event->tag);
}
