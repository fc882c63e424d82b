/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/core/epochs.h"

#include "offload/base/hyper.h"
#include "offload/books/membership.h"
#include "offload/books/waiting.h"
#include "offload/core/agreement.h"
#include "offload/core/core_state.h"
#include "offload/core/ranks.h"
#include "offload/update/replicas.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAME_BYTES 32

/* -- who is missing --------------------------------------------------------------------------- */

/* List the chunks that no member has the states of: "3, 5-9", or the first ones and "...". */
static void name_chunks(const struct cst_core *core, char *text, size_t size)
{
    size_t n = 0;

    text[0] = '\0';
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        uint32_t last = c;

        while (last < core->n_chunks && core->chunks[last].has_states &&
               cst_membership_home(core, last) == CST_NONE) {
            last++;
        }
        if (last == c) {
            continue;
        }
        if (n + NAME_BYTES > size) {
            (void)snprintf(text + n, size - n, ", ...");
            return;
        }
        n += (size_t)snprintf(text + n, size - n, "%s%" PRIu32, n > 0 ? ", " : "", c);
        if (--last > c) {
            n += (size_t)snprintf(text + n, size - n, "-%" PRIu32, last);
        }
        c = last;
    }
}

static void name_machines(const struct cst_core *core, uint64_t machines, char *text, size_t size)
{
    const char *const *names = core->machines->names;
    size_t n = 0;

    text[0] = '\0';
    for (; machines != 0 && n < size; machines &= machines - 1) {
        const int m = __builtin_ctzll(machines);

        n += (size_t)(names != NULL
                          ? snprintf(text + n, size - n, "%snode %s", n > 0 ? ", " : "", names[m])
                          : snprintf(text + n, size - n, "%smachine %d", n > 0 ? ", " : "", m));
    }
}

/* The machines of the job that are not members. */
static uint64_t gone(const struct cst_core *core)
{
    uint32_t n = core->machines->n;

    return (n == CST_MACHINES_MAX ? UINT64_MAX : cst_machine_bit(n) - 1) &
           ~core->membership.members;
}

/* The rank blocks whose ranks are on no member. */
static uint64_t missing_blocks(const struct cst_core *core)
{
    uint32_t n = core->partials.n;

    return (n == CST_RANK_BLOCKS_MAX ? UINT64_MAX : cst_machine_bit(n) - 1) &
           ~core->agreement.rank_blocks;
}

/* Find out whether states are missing. Then no rank can wait for the next attempt. */
static void see_missing(struct cst_core *core)
{
    struct cst_agreement *a = &core->agreement;
    char machines[96], chunks[128];

    a->missing.status = CST_OK;
    name_machines(core, gone(core), machines, sizeof machines);
    name_chunks(core, chunks, sizeof chunks);
    if (chunks[0] == '\0') {
        return;
    }
    (void)cst_err_set(&a->missing, CST_ELOST,
                      "the states of these chunks are lost, because only nodes that are no members "
                      "of the job any more had them (%s): %s; remove the job ('cistern rm'), and "
                      "begin it anew from a checkpoint",
                      machines, chunks);
    cst_core_log(core, CST_ELOST, "%s", a->missing.text);
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (core->ranks[rank].sync != CST_NO_REQUEST) {
            cst_waiting_refuse(core, core->ranks[rank].sync, &a->missing);
        }
    }
}

int cst_epochs_check_sync(const struct cst_core *core, struct cst_err *err)
{
    if (core->machines == NULL || core->agreement.missing.status == CST_OK) {
        return CST_OK;
    }
    *err = core->agreement.missing;
    return err->status;
}

void cst_epochs_name_missing(const struct cst_core *core, char *text, size_t size)
{
    uint64_t missing;
    size_t n;

    text[0] = '\0';
    if (core->machines == NULL) {
        return;
    }
    missing = core->agreement.settled && missing_blocks(core) != 0 ? gone(core) : 0;
    if (missing != 0) {
        name_machines(core, missing, text, size);
        n = strlen(text);
        (void)snprintf(text + n, size - n,
                       ", whose ranks have to be started again, there or on "
                       "another node");
        return;
    }
    /* Only the coordinator knows of the others. */
    if (core->membership.members != 0 && !cst_membership_is_coordinator(core)) {
        missing |= cst_machine_bit(cst_membership_coordinator(core));
    }
    for (uint64_t left = core->membership.members; left != 0; left &= left - 1) {
        uint32_t m = (uint32_t)__builtin_ctzll(left);

        if (cst_membership_is_coordinator(core) && m != core->machines->self &&
            core->agreement.members[m].synced != core->agreement.last + 1) {
            missing |= cst_machine_bit(m);
        }
    }
    name_machines(core, missing, text, size);
}

bool cst_epochs_await_ranks(const struct cst_core *core)
{
    const struct cst_agreement *a = &core->agreement;

    return core->machines != NULL && a->settled && missing_blocks(core) != 0 &&
           a->last_decision.step <= core->step && !core->attempt.closing;
}

bool cst_epochs_may_begin(const struct cst_core *core)
{
    return core->agreement.settled && core->agreement.missing.status == CST_OK &&
           missing_blocks(core) == 0;
}

/* -- records ---------------------------------------------------------------------------------- */

/* All records have come: commit what any member has decided, or end the attempt. */
static void settle(struct cst_core *core)
{
    struct cst_agreement *a = &core->agreement;
    const struct cst_decision *last = &a->last_decision;
    bool runs = core->attempt.phase == CST_PHASE_RUNNING;
    struct cst_err why;

    a->rank_blocks = 0;
    for (uint64_t left = core->membership.members; left != 0; left &= left - 1) {
        const struct cst_agreement_member *member = &a->members[__builtin_ctzll(left)];

        a->last = member->last_attempt > a->last ? member->last_attempt : a->last;
        last = member->recorded.step > last->step ? &member->recorded : last;
        a->rank_blocks |= member->rank_blocks;
    }
    a->settled = true;
    if (core->attempt.phase == CST_PHASE_FAILED) {
        return; /* Nothing is committed any more. */
    }
    a->aborted = a->last; /* All know that it is over. */
    (void)cst_err_set(&why, CST_EPEERDIED, "the machines of the job have changed");
    if (last->step > core->step + 1 ||
        (last->step == core->step + 1 && a->ready_for != last->attempt + 1 &&
         a->ready_for != UINT64_MAX)) {
        (void)cst_err_set(&why, CST_ELOST,
                          "the other machines have committed step %" PRIu64
                          " without this one, which is at step %" PRIu64,
                          last->step, core->step);
        cst_ranks_fail(core, &why);
    } else if (last->step == core->step + 1) {
        if (!runs) { /* Written when this machine was READY. */
            cst_hyper_read_factors(core, core->commit.adam_step + 1);
        } else {
            cst_ranks_interrupt(core, &why); /* After the commit. */
        }
        a->last_decision = *last;
        cst_fact_decided(&core->facts);
    } else if (runs) {
        a->ready = false;
        cst_ranks_interrupt(core, &why);
    }
    cst_replicas_change(core);
}

static void take_record(struct cst_core *core, uint32_t m, const struct cst_machine_message *record)
{
    struct cst_agreement *a = &core->agreement;

    a->members[m].last_attempt = record->attempt;
    a->members[m].recorded = record->decision;
    a->members[m].rank_blocks = record->rank_blocks;
    a->records |= cst_machine_bit(m);
    if (!a->settled && a->records == core->membership.members) {
        settle(core);
    }
}

void cst_epochs_record(struct cst_core *core, const struct cst_event *event)
{
    take_record(core, event->machine, event->message);
}

static void begin_epoch(struct cst_core *core, const struct cst_event *event)
{
    struct cst_agreement *a = &core->agreement;

    cst_machine_waits_end(core);
    core->membership.epoch = event->epoch;
    core->membership.members = event->members;
    a->records = 0;
    a->settled = false;
    a->decided = false;
    a->told = 0;
    a->started = 0;
    a->n_ready = 0;
    for (uint32_t m = 0; m < core->machines->n; m++) {
        a->members[m].synced = 0;
    }
    see_missing(core);
}

void cst_epochs_machines(struct cst_core *core, const struct cst_event *event)
{
    struct cst_agreement *a = &core->agreement;
    struct cst_machine_message *message;
    struct cst_err why;

    if (core->machines == NULL || event->epoch <= core->membership.epoch ||
        (event->members & cst_machine_bit(core->machines->self)) == 0) {
        cst_core_log(core, CST_EINTERNAL,
                     "epoch %" PRIu64 " of machines %#" PRIx64 " after epoch %" PRIu64,
                     event->epoch, event->members, core->membership.epoch);
        return;
    }
    begin_epoch(core, event);
    a->last = core->attempt.number > a->last ? core->attempt.number : a->last;
    if (core->attempt.phase == CST_PHASE_RUNNING && !a->ready) {
        a->aborted = core->attempt.number; /* All are told of the epoch. */
        (void)cst_err_set(&why, CST_EPEERDIED, "the machines of the job have changed");
        cst_ranks_interrupt(core, &why);
    }
    message = cst_membership_tell(core, CST_MACHINES_ALL, CST_MESSAGE_RECORD, 0);
    message->attempt = a->last;
    message->decision = a->last_decision;
    message->rank_blocks = core->machines->rank_blocks;
    take_record(core, core->machines->self, message);
    if (core->attempt.phase == CST_PHASE_FAILED) {
        /* Those that were not reachable then are told now. */
        cst_agreement_tell_abort(core, a->last, false, true, &core->attempt.why);
    }
}
