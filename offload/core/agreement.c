/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/core/agreement.h"

#include "offload/base/hyper.h"
#include "offload/books/idle.h"
#include "offload/books/membership.h"
#include "offload/core/core_state.h"
#include "offload/core/epochs.h"
#include "offload/core/ranks.h"
#include "offload/gradient/partials.h"
#include "offload/update/replicas.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 32

/* Number of the losses of all rank blocks of a job on several machines. */
static uint32_t n_losses(const struct cst_core *core)
{
    return core->partials.n * core->schedule->n_losses(core);
}

/* Number of the losses of the ranks here. */
static uint32_t n_own_losses(const struct cst_core *core)
{
    return (core->partials.on ? core->partials.n_here : 1) * core->schedule->n_losses(core);
}

int cst_agreement_open(struct cst_core *core)
{
    struct cst_agreement *a = &core->agreement;

    a->own_losses = calloc(n_own_losses(core), sizeof *a->own_losses);
    if (core->machines == NULL || a->own_losses == NULL) {
        return a->own_losses != NULL ? CST_OK : CST_ENOMEM;
    }
    a->members = calloc(core->machines->n, sizeof *a->members);
    a->losses = calloc(n_losses(core), sizeof *a->losses);
    return a->members != NULL && a->losses != NULL ? CST_OK : CST_ENOMEM;
}

void cst_agreement_close(struct cst_core *core)
{
    free(core->agreement.members);
    free(core->agreement.losses);
    free(core->agreement.own_losses);
}

/* -- begins of attempts ----------------------------------------------------------------------- */

/* The coordinator: let the next attempt begin if all members wait for it. */
static void start(struct cst_core *core)
{
    struct cst_agreement *a = &core->agreement;
    struct cst_machine_message *message;

    for (uint64_t left = core->membership.members; left != 0; left &= left - 1) {
        const struct cst_agreement_member *member = &a->members[__builtin_ctzll(left)];

        if (member->synced != a->last + 1 || member->synced_step != core->step) {
            return;
        }
    }
    a->started = ++a->last;
    message = cst_membership_tell(core, CST_MACHINES_ALL, CST_MESSAGE_START, 0);
    message->attempt = a->last;
    message->waited_for = a->last_synced;
}

/* All ranks here wait for an attempt after the last one. Tell the coordinator so, once; or, in the
 * coordinator, look whether all others do. */
static void wait_for_others(struct cst_core *core)
{
    struct cst_agreement *a = &core->agreement;
    struct cst_agreement_member *own = &a->members[core->machines->self];

    if (cst_membership_is_coordinator(core)) {
        if (own->synced != a->last + 1) {
            a->last_synced = core->machines->self;
        }
        own->synced = a->last + 1;
        own->synced_step = core->step;
        start(core);
    } else if (a->told != a->last + 1) {
        a->told = a->last + 1;
        cst_membership_tell(core, cst_membership_coordinator(core), CST_MESSAGE_SYNCED, 0)
            ->attempt = a->last;
    }
}

bool cst_agreement_begin(struct cst_core *core)
{
    struct cst_agreement *a = &core->agreement;

    if (core->machines == NULL) {
        return true;
    }
    if (!cst_epochs_may_begin(core)) {
        return false;
    }
    if (a->started == 0) {
        wait_for_others(core);
    }
    if (a->started == 0) {
        cst_machine_waits_begin(core);
        return false;
    }
    cst_machine_waits_end(core);
    core->attempt.number = a->started - 1;
    a->started = 0;
    a->ready = false;
    a->ready_for = 0;
    a->n_ready = 0;
    return true;
}

static void on_synced(struct cst_core *core, const struct cst_event *event)
{
    struct cst_agreement_member *member = &core->agreement.members[event->machine];

    cst_machine_waits_arrived(core, event->machine, CST_MACHINE_UNKNOWN);
    core->agreement.last_synced = event->machine;
    member->synced = event->message->attempt + 1;
    member->synced_step = event->message->step;
    if (member->synced == core->agreement.last + 1 && member->synced_step != core->step) {
        cst_core_log(core, CST_EMISMATCH,
                     "machine %" PRIu32 " is at step %" PRIu64 ", this one at step %" PRIu64
                     ": no attempt begins before all have the states of one step",
                     event->machine, member->synced_step, core->step);
    }
}

void cst_agreement_tell_abort(struct cst_core *core, uint64_t attempt, bool idle, bool failed,
                              const struct cst_err *why)
{
    struct cst_machine_message *message =
        cst_membership_tell(core, CST_MACHINES_ALL, CST_MESSAGE_ABORT, 0);

    message->attempt = attempt;
    message->idle = idle;
    message->failed = failed;
    message->why = *why;
    (void)cst_err_prefix(&message->why, "machine %" PRIu32, core->machines->self);
}

static void on_start(struct cst_core *core, const struct cst_event *event)
{
    struct cst_agreement *a = &core->agreement;
    struct cst_err why;

    if (event->message->attempt <= a->last) {
        return; /* It was aborted before this machine was told of it. */
    }
    cst_machine_waits_arrived(core, event->machine, event->message->waited_for);
    a->last = event->message->attempt;
    if (cst_ranks_wait_in_sync(core, &why) != CST_OK) {
        a->aborted = a->last;
        cst_agreement_tell_abort(core, a->last, false, false, &why);
        return;
    }
    a->started = a->last;
}

/* -- ends of attempts ------------------------------------------------------------------------- */

void cst_agreement_end(struct cst_core *core, bool idle, bool failed, const struct cst_err *why)
{
    struct cst_agreement *a = &core->agreement;

    if (core->machines == NULL) {
        return;
    }
    cst_machine_waits_end(core);
    a->ready = false;
    a->decided = false;
    a->n_ready = 0;
    if (core->membership.members != 0 &&
        (failed ? a->aborted != UINT64_MAX : a->aborted < core->attempt.number)) {
        a->aborted = core->attempt.number;
        cst_agreement_tell_abort(core, core->attempt.number, idle, failed, why);
    }
}

bool cst_agreement_binds(const struct cst_core *core)
{
    return core->machines == NULL || core->agreement.ready;
}

static void on_abort(struct cst_core *core, const struct cst_event *event)
{
    struct cst_agreement *a = &core->agreement;
    const struct cst_machine_message *message = event->message;

    if (message->failed) {
        a->aborted = UINT64_MAX; /* Who has told it need not be told. */
        cst_ranks_fail(core, &message->why);
        return;
    }
    if (message->attempt > a->last) {
        a->last = a->aborted = message->attempt;
        return;
    }
    if (core->attempt.phase != CST_PHASE_RUNNING || message->attempt != core->attempt.number) {
        return;
    }
    a->aborted = message->attempt;
    /* A machine that is ahead has got the COMMIT that is on its way to this one. */
    if (message->step == core->step) {
        a->ready = false;
    }
    cst_ranks_end_as_told(core, message->idle, &message->why);
}

/* -- commits ---------------------------------------------------------------------------------- */

void cst_agreement_committed(struct cst_core *core)
{
    core->agreement.ready = false;
    core->agreement.ready_for = 0;
    core->agreement.decided = false;
    core->agreement.n_ready = 0;
}

void cst_agreement_revived(struct cst_core *core, const struct cst_decision *last)
{
    core->agreement.last_decision = *last;
    core->agreement.ready_for = UINT64_MAX;
}

void cst_agreement_restored(struct cst_core *core)
{
    memset(&core->agreement.last_decision, 0, sizeof core->agreement.last_decision);
    core->agreement.ready_for = 0;
}

double cst_agreement_own_loss(const struct cst_core *core)
{
    core->schedule->losses(core, core->agreement.own_losses);
    return core->schedule->mean_loss(core->agreement.own_losses, n_own_losses(core));
}

/* CST_OK if all members are READY with one decision. CST_EMISMATCH: hyper-parameters differ, so the
 * attempt is over. CST_EINTERNAL: sums differ, which are to have the same bits. */
static int compare(const struct cst_core *core, struct cst_err *err)
{
    const struct cst_decision *own = &core->agreement.mine;
    char mine[NAME_BYTES], theirs[NAME_BYTES];

    (void)snprintf(mine, sizeof mine, "machine %" PRIu32, core->machines->self);
    for (uint64_t left = core->membership.members; left != 0; left &= left - 1) {
        const struct cst_decision *other = &core->agreement.members[__builtin_ctzll(left)].ready;

        (void)snprintf(theirs, sizeof theirs, "machine %d", __builtin_ctzll(left));
        if (cst_hyper_same(&own->hyper, &other->hyper, mine, theirs, err) != CST_OK) {
            return cst_err_prefix(err, "step %" PRIu64, core->step);
        }
        if (memcmp(own, other, sizeof *own) != 0) {
            return cst_err_set(err, CST_EINTERNAL,
                               "step %" PRIu64 ": the squares of the gradients add up to %a in "
                               "step %" PRIu64 " of %s and to %a in step %" PRIu64 " of %s",
                               core->step, own->sum_squares, own->adam_step, mine,
                               other->sum_squares, other->adam_step, theirs);
        }
    }
    return CST_OK;
}

/* The coordinator: decide, if all members are READY. */
static void look(struct cst_core *core)
{
    struct cst_agreement *a = &core->agreement;
    struct cst_machine_message *message;
    struct cst_err err;

    if (!a->ready || a->decided || a->n_ready != core->membership.members) {
        return;
    }
    if (compare(core, &err) != CST_OK) {
        a->ready = false;
        if (err.status == CST_EMISMATCH) {
            cst_ranks_interrupt(core, &err);
        } else {
            cst_ranks_fail(core, &err);
        }
        return;
    }
    a->last_decision = a->mine;
    a->last_decision.loss = core->schedule->mean_loss(a->losses, n_losses(core));
    a->decided = core->membership.members != cst_machine_bit(core->machines->self);
    if (!a->decided) {
        cst_fact_decided(&core->facts); /* There is nobody else to record it. */
        return;
    }
    message = cst_membership_tell(core, CST_MACHINES_ALL, CST_MESSAGE_COMMIT, 0);
    message->decision = a->last_decision;
    message->waited_for = a->last_ready;
}

/* Keep the losses of the rank blocks @blocks, from *@losses on, in the order of all rank blocks. */
static void keep_losses(struct cst_core *core, uint64_t blocks, const double *losses, uint32_t n)
{
    uint32_t each = core->schedule->n_losses(core), at = 0;

    for (; blocks != 0 && at + each <= n; blocks &= blocks - 1, at += each) {
        uint32_t b = (uint32_t)__builtin_ctzll(blocks);

        if (b < core->partials.n) {
            memcpy(core->agreement.losses + (size_t)b * each, losses + at, each * sizeof *losses);
        }
    }
}

/* Note that member @m is READY, as @what says. */
static void note_ready(struct cst_core *core, uint32_t m, const struct cst_machine_message *what)
{
    struct cst_agreement *a = &core->agreement;

    keep_losses(core, what->rank_blocks, what->losses, what->n_losses);
    a->members[m].ready = what->decision;
    a->n_ready |= cst_machine_bit(m);
    a->last_ready = m;
    look(core);
}

bool cst_agreement_ready(struct cst_core *core, const struct cst_decision *decision)
{
    struct cst_agreement *a = &core->agreement;
    struct cst_machine_message own, *message = &own;

    if (core->machines == NULL) {
        return true;
    }
    cst_machine_waits_work(core); /* The norm, which was computed here. */
    a->ready = true;
    a->ready_for = core->attempt.number + 1;
    a->mine = *decision;
    a->mine.loss = 0;
    cst_hyper_write_factors(core, core->commit.adam_step + 1);
    if (!cst_membership_is_coordinator(core)) {
        message = cst_membership_tell(core, cst_membership_coordinator(core), CST_MESSAGE_READY, 0);
    }
    core->schedule->losses(core, a->own_losses);
    message->losses = a->own_losses;
    message->n_losses = n_own_losses(core);
    message->rank_blocks = core->machines->rank_blocks;
    message->decision = a->mine;
    if (cst_membership_is_coordinator(core)) {
        note_ready(core, core->machines->self, message);
    }
    return false;
}

static void on_ready(struct cst_core *core, const struct cst_event *event)
{
    if (cst_membership_is_current(core, event->message) && cst_membership_is_coordinator(core)) {
        if (core->agreement.ready) { /* Else work is left here, for which nobody waits elsewhere. */
            cst_machine_waits_arrived(core, event->machine, CST_MACHINE_UNKNOWN);
        }
        note_ready(core, event->machine, event->message);
    }
}

static void on_commit(struct cst_core *core, const struct cst_event *event)
{
    struct cst_agreement *a = &core->agreement;

    if (!cst_membership_is_current(core, event->message) || !a->ready) {
        return;
    }
    cst_machine_waits_arrived(core, event->machine, event->message->waited_for);
    a->last_decision = event->message->decision;
    (void)cst_membership_tell(core, event->machine, CST_MESSAGE_RECORDED, 0);
    cst_fact_decided(&core->facts);
}

static void on_recorded(struct cst_core *core, const struct cst_event *event)
{
    if (cst_membership_is_current(core, event->message) && core->agreement.decided) {
        cst_machine_waits_arrived(core, event->machine, CST_MACHINE_UNKNOWN);
        core->agreement.decided = false;
        cst_fact_decided(&core->facts);
    }
}

/* -- messages --------------------------------------------------------------------------------- */

static void (*const kinds[CST_MESSAGE_KINDS])(struct cst_core *, const struct cst_event *) = {
    [CST_MESSAGE_RECORD] = cst_epochs_record,
    [CST_MESSAGE_SYNCED] = on_synced,
    [CST_MESSAGE_START] = on_start,
    [CST_MESSAGE_PARTIAL] = cst_partials_come,
    [CST_MESSAGE_SUMMED] = cst_partials_summed,
    [CST_MESSAGE_READY] = on_ready,
    [CST_MESSAGE_COMMIT] = on_commit,
    [CST_MESSAGE_RECORDED] = on_recorded,
    [CST_MESSAGE_WRITTEN] = cst_replicas_written,
    [CST_MESSAGE_ABORT] = on_abort,
    [CST_MESSAGE_UNUSED] = cst_idle_told,
};

void cst_agreement_told(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_machine_message *message = event->message;
    bool known = core->machines != NULL && event->machine < core->machines->n &&
                 event->machine != core->machines->self &&
                 (unsigned)message->kind < CST_MESSAGE_KINDS && message->chunk < core->n_chunks;

    if (!known) {
        cst_core_log(core, CST_EPROTO,
                     "machine %" PRIu32 " tells message %u about chunk %" PRIu32
                     ": there are %" PRIu32 " machines and %" PRIu32 " chunks",
                     event->machine, (unsigned)message->kind, message->chunk,
                     core->machines != NULL ? core->machines->n : 1, core->n_chunks);
        return;
    }
    if (message->epoch == core->membership.epoch) {
        kinds[message->kind](core, event);
    }
}
