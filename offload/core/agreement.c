/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/core/agreement.h"

#include "offload/base/hyper.h"
#include "offload/books/membership.h"
#include "offload/books/waiting.h"
#include "offload/core/core_state.h"
#include "offload/core/ranks.h"
#include "offload/gradient/partials.h"
#include "offload/update/replicas.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 32

int cst_agreement_open(struct cst_core *core)
{
    struct cst_agreement *a = &core->agreement;

    if (core->machines == NULL) {
        return CST_OK;
    }
    a->members = calloc(core->machines->n, sizeof *a->members);
    a->losses = calloc((size_t)core->partials.n * core->partials.block_ranks, sizeof *a->losses);
    a->own_losses = calloc(core->world, sizeof *a->own_losses);
    return a->members != NULL && a->losses != NULL && a->own_losses != NULL ? CST_OK : CST_ENOMEM;
}

void cst_agreement_close(struct cst_core *core)
{
    free(core->agreement.members);
    free(core->agreement.losses);
    free(core->agreement.own_losses);
}

/* -- members ---------------------------------------------------------------------------------- */

static uint64_t bit_of(uint32_t machine)
{
    return UINT64_C(1) << machine;
}

static uint32_t coordinator(const struct cst_core *core)
{
    return (uint32_t)__builtin_ctzll(core->membership.members);
}

static bool is_coordinator(const struct cst_core *core)
{
    return coordinator(core) == core->machines->self;
}

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

static void name_machines(uint64_t machines, char *text, size_t size)
{
    size_t n = 0;

    text[0] = '\0';
    for (; machines != 0 && n < size; machines &= machines - 1) {
        n += (size_t)snprintf(text + n, size - n, "%smachine %d", n > 0 ? ", " : "",
                              __builtin_ctzll(machines));
    }
}

/* The machines of the job that are not members. */
static uint64_t gone(const struct cst_core *core)
{
    uint32_t n = core->machines->n;

    return (n == CST_MACHINES_MAX ? UINT64_MAX : bit_of(n) - 1) & ~core->membership.members;
}

/* The rank blocks whose ranks are on no member. */
static uint64_t missing_blocks(const struct cst_core *core)
{
    uint32_t n = core->partials.n;

    return (n == CST_RANK_BLOCKS_MAX ? UINT64_MAX : bit_of(n) - 1) & ~core->agreement.rank_blocks;
}

/* Find out whether states are missing. Then no rank can wait for the next attempt. */
static void see_missing(struct cst_core *core)
{
    struct cst_agreement *a = &core->agreement;
    char machines[96], chunks[128];

    a->missing.status = CST_OK;
    name_machines(gone(core), machines, sizeof machines);
    name_chunks(core, chunks, sizeof chunks);
    if (chunks[0] == '\0') {
        return;
    }
    (void)cst_err_set(&a->missing, CST_ELOST,
                      "the states of these chunks were on machines alone that are no members of "
                      "the job any more (%s): %s; start these machines again, or open the job anew "
                      "from a checkpoint",
                      machines, chunks);
    cst_core_log(core, CST_ELOST, "%s", a->missing.text);
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (core->ranks[rank].sync != CST_NO_REQUEST) {
            cst_waiting_refuse(core, core->ranks[rank].sync, &a->missing);
        }
    }
}

int cst_agreement_check_sync(const struct cst_core *core, struct cst_err *err)
{
    if (core->machines == NULL || core->agreement.missing.status == CST_OK) {
        return CST_OK;
    }
    *err = core->agreement.missing;
    return err->status;
}

void cst_agreement_name_missing(const struct cst_core *core, char *text, size_t size)
{
    uint64_t missing;

    text[0] = '\0';
    if (core->machines == NULL) {
        return;
    }
    missing = missing_blocks(core) != 0 ? gone(core) : 0;
    /* Only the coordinator knows of the others. */
    if (core->membership.members != 0 && !is_coordinator(core)) {
        missing |= bit_of(coordinator(core));
    }
    for (uint64_t left = core->membership.members; left != 0; left &= left - 1) {
        uint32_t m = (uint32_t)__builtin_ctzll(left);

        if (is_coordinator(core) && m != core->machines->self &&
            core->agreement.members[m].synced != core->agreement.last + 1) {
            missing |= bit_of(m);
        }
    }
    name_machines(missing, text, size);
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
}

/* All ranks here wait for an attempt after the last one. Tell the coordinator so, once; or, in the
 * coordinator, look whether all others do. */
static void wait_for_others(struct cst_core *core)
{
    struct cst_agreement *a = &core->agreement;
    struct cst_agreement_member *own = &a->members[core->machines->self];

    if (is_coordinator(core)) {
        own->synced = a->last + 1;
        own->synced_step = core->step;
        start(core);
    } else if (a->told != a->last + 1) {
        a->told = a->last + 1;
        cst_membership_tell(core, coordinator(core), CST_MESSAGE_SYNCED, 0)->attempt = a->last;
    }
}

bool cst_agreement_begin(struct cst_core *core)
{
    struct cst_agreement *a = &core->agreement;

    if (core->machines == NULL) {
        return true;
    }
    if (!a->settled || a->missing.status != CST_OK || missing_blocks(core) != 0) {
        return false;
    }
    if (a->started == 0) {
        wait_for_others(core);
    }
    if (a->started == 0) {
        return false;
    }
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

    member->synced = event->message->attempt + 1;
    member->synced_step = event->message->step;
    if (member->synced == core->agreement.last + 1 && member->synced_step != core->step) {
        cst_core_log(core, CST_EMISMATCH,
                     "machine %" PRIu32 " is at step %" PRIu64 ", this one at step %" PRIu64
                     ": no attempt begins before all have the states of one step",
                     event->machine, member->synced_step, core->step);
    }
}

/* Tell all that attempt @attempt cannot be, or is over. */
static void tell_abort(struct cst_core *core, uint64_t attempt, bool idle, bool failed,
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
    a->last = event->message->attempt;
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (core->ranks[rank].sync == CST_NO_REQUEST) {
            (void)cst_err_set(&why, CST_EPEERDIED, "rank %" PRIu32 " does not wait in a sync",
                              rank);
            a->aborted = a->last;
            tell_abort(core, a->last, false, false, &why);
            return;
        }
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
    a->ready = false;
    a->decided = false;
    a->n_ready = 0;
    if (core->membership.members != 0 &&
        (failed ? a->aborted != UINT64_MAX : a->aborted < core->attempt.number)) {
        a->aborted = core->attempt.number;
        tell_abort(core, core->attempt.number, idle, failed, why);
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

/* The mean of all losses, in the order of ranks. */
static double mean_loss(const struct cst_core *core)
{
    double sum = 0;
    uint32_t n = 0;

    for (uint32_t rank = 0; rank < core->partials.n * core->partials.block_ranks; rank++) {
        sum += core->agreement.losses[rank];
        n += core->agreement.losses[rank] != 0;
    }
    return n > 0 ? sum / n : 0;
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
    a->last_decision.loss = mean_loss(core);
    a->decided = core->membership.members != bit_of(core->machines->self);
    if (!a->decided) {
        cst_fact_decided(&core->facts); /* There is nobody else to record it. */
        return;
    }
    cst_membership_tell(core, CST_MACHINES_ALL, CST_MESSAGE_COMMIT, 0)->decision = a->last_decision;
}

/* Keep the losses of the ranks of the rank blocks @blocks, from *@losses on, in the order of all
 * ranks. */
static void keep_losses(struct cst_core *core, uint64_t blocks, const double *losses, uint32_t n)
{
    uint32_t ranks = core->partials.block_ranks, at = 0;

    for (; blocks != 0 && at + ranks <= n; blocks &= blocks - 1, at += ranks) {
        uint32_t b = (uint32_t)__builtin_ctzll(blocks);

        if (b < core->partials.n) {
            memcpy(core->agreement.losses + (size_t)b * ranks, losses + at, ranks * sizeof *losses);
        }
    }
}

/* Note that member @m is READY, as @what says. */
static void note_ready(struct cst_core *core, uint32_t m, const struct cst_machine_message *what)
{
    struct cst_agreement *a = &core->agreement;

    keep_losses(core, what->rank_blocks, what->losses, what->n_losses);
    a->members[m].ready = what->decision;
    a->n_ready |= bit_of(m);
    look(core);
}

bool cst_agreement_ready(struct cst_core *core, const struct cst_decision *decision)
{
    struct cst_agreement *a = &core->agreement;
    struct cst_machine_message own, *message = &own;

    if (core->machines == NULL) {
        return true;
    }
    a->ready = true;
    a->ready_for = core->attempt.number + 1;
    a->mine = *decision;
    a->mine.loss = 0;
    cst_hyper_write_factors(core, core->commit.adam_step + 1);
    if (!is_coordinator(core)) {
        message = cst_membership_tell(core, coordinator(core), CST_MESSAGE_READY, 0);
    }
    for (uint32_t rank = 0; rank < core->world; rank++) {
        a->own_losses[rank] = core->ranks[rank].loss;
    }
    message->losses = a->own_losses;
    message->n_losses = core->world;
    message->rank_blocks = core->machines->rank_blocks;
    message->decision = a->mine;
    if (is_coordinator(core)) {
        note_ready(core, core->machines->self, message);
    }
    return false;
}

static void on_ready(struct cst_core *core, const struct cst_event *event)
{
    if (cst_membership_is_current(core, event->message) && is_coordinator(core)) {
        note_ready(core, event->machine, event->message);
    }
}

static void on_commit(struct cst_core *core, const struct cst_event *event)
{
    struct cst_agreement *a = &core->agreement;

    if (!cst_membership_is_current(core, event->message) || !a->ready) {
        return;
    }
    a->last_decision = event->message->decision;
    (void)cst_membership_tell(core, event->machine, CST_MESSAGE_RECORDED, 0);
    cst_fact_decided(&core->facts);
}

static void on_recorded(struct cst_core *core, const struct cst_event *event)
{
    if (cst_membership_is_current(core, event->message) && core->agreement.decided) {
        core->agreement.decided = false;
        cst_fact_decided(&core->facts);
    }
}

/* -- epochs ----------------------------------------------------------------------------------- */

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
    a->records |= bit_of(m);
    if (!a->settled && a->records == core->membership.members) {
        settle(core);
    }
}

static void on_record(struct cst_core *core, const struct cst_event *event)
{
    take_record(core, event->machine, event->message);
}

static void begin_epoch(struct cst_core *core, const struct cst_event *event)
{
    struct cst_agreement *a = &core->agreement;

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

void cst_agreement_machines(struct cst_core *core, const struct cst_event *event)
{
    struct cst_agreement *a = &core->agreement;
    struct cst_machine_message *message;
    struct cst_err why;

    if (core->machines == NULL || event->epoch <= core->membership.epoch ||
        (event->members & bit_of(core->machines->self)) == 0) {
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
        tell_abort(core, a->last, false, true, &core->attempt.why);
    }
}

/* -- messages --------------------------------------------------------------------------------- */

static void (*const kinds[CST_MESSAGE_KINDS])(struct cst_core *, const struct cst_event *) = {
    [CST_MESSAGE_RECORD] = on_record,
    [CST_MESSAGE_SYNCED] = on_synced,
    [CST_MESSAGE_START] = on_start,
    [CST_MESSAGE_PARTIAL] = cst_partials_come,
    [CST_MESSAGE_SUMMED] = cst_partials_summed,
    [CST_MESSAGE_READY] = on_ready,
    [CST_MESSAGE_COMMIT] = on_commit,
    [CST_MESSAGE_RECORDED] = on_recorded,
    [CST_MESSAGE_WRITTEN] = cst_replicas_written,
    [CST_MESSAGE_ABORT] = on_abort,
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
