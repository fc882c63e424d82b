/* SPDX-License-Identifier: Apache-2.0 */
/* A part that takes the place of one that was lost, on the same node or on another one: it has the
 * ranks of the lost part, and no states. The parts that go on have them, if the job keeps them on
 * several nodes.
 *
 *   here                                      a part that goes on
 *   MEETING             --HERE-->             the lost part is no member any more
 *   PLANNING, JOINING   <--HERE, CHUNKS--
 *   JOINED              --STATE_ASK-->        the round holds, and no step can be committed
 *   reads all rows      <--STATE--            (state_copy.h)
 *   opens its members   --TELL-->             adds the new life of the machine
 *
 * No step can be begun without the ranks of the lost part, so that the states stay as they are
 * meanwhile. */
#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/engine/engines.h"
#include "daemon/engine/net_peers.h"
#include "daemon/job/job.h"
#include "daemon/job/span_message.h"
#include "daemon/job/span_parts.h"
#include "daemon/ledger/ledger.h"
#include "offload/core/revival.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { FRAME_MISSED = 4000 }; /* Numbers of missed steps in one message. */

/* -- there ------------------------------------------------------------------------------------ */

/* The machine whose ranks @here has; NULL: none has just these. */
static struct cstd_span_machine *with_ranks(struct cstd_span *span, const Span__Here *here)
{
    for (uint32_t m = 0; m < span->n; m++) {
        struct cstd_span_machine *machine = &span->machines[m];

        if (m != span->self && machine->first_rank == here->first_rank &&
            machine->world == here->world) {
            return machine;
        }
    }
    return NULL;
}

/* Let the part of @here on @peer take the place of machine @m. */
static void take_place(struct cstd_span *span, uint32_t m, struct cstd_machine *peer,
                       const Span__Here *here)
{
    struct cstd_span_machine *machine = &span->machines[m];

    cstd_span_read_down(span->job, m);
    cstd_span_forget_segments(span, m);
    cstd_net_engine_drop_peer(&span->job->daemon->engines->v[span->engine], m,
                              "another part takes its place");
    if (machine->peer != peer) {
        cstd_machine_release(machine->peer);
        cstd_machine_keep(peer);
        machine->peer = peer;
        span->names[m] = peer->entry.name;
    }
    machine->life = here->from->life;
    free(machine->end);
    machine->end = NULL;
    free(machine->told);
    machine->told = NULL;
    machine->added = machine->asks = false;
    cstd_ledger_note_members(span->job);
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(span->job),
                   "node '%s' takes the place of a part that is lost, with %" PRIu32
                   " ranks from %" PRIu32 " on",
                   peer->entry.name, machine->world, machine->first_rank);
}

bool cstd_span_replace(struct cstd_job *job, struct cstd_machine *peer, const Span__Here *here)
{
    struct cstd_span *span = job->span;
    struct cstd_span_machine *machine = with_ranks(span, here);
    const uint32_t m = machine != NULL ? cstd_span_number(span, machine) : 0;

    if (machine == NULL || span->members == NULL || !span->is_complete ||
        (machine->peer != peer && cstd_span_is_member(span, m))) {
        return false;
    }
    if (machine->life != here->from->life) {
        if (cstd_span_is_member(span, m) && here->keeps_lost) {
            cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT(job),
                           "node '%s' has a new part of this job, and may still have the states of "
                           "the old one, with which its daemon cannot go on: start the daemon that "
                           "can, or stop the service there, which gives them up",
                           peer->entry.name);
            return true;
        }
        if (cstd_span_is_member(span, m)) { /* Its node has begun another life: it is lost. */
            cstd_span_lost(span, m);
        }
        if (job->span != span) {
            return true;
        }
        take_place(span, m, peer, here);
    }
    cstd_span_tell_here(job, peer, here->from->life);
    cstd_span_send_chunks(job, machine);
    return true;
}

void cstd_span_seek(struct cstd_job *job)
{
    struct cstd_machine *peer;

    TAILQ_FOREACH(peer, cstd_links_machines(job->daemon->links), link)
    {
        const struct cstd_span_machine *machine = cstd_span_find(job->span, peer);

        if (peer->up != NULL &&
            (machine == NULL ||
             !cstd_span_is_member(job->span, cstd_span_number(job->span, machine)))) {
            cstd_span_tell_here(job, peer, 0); /* It answers, and cstd_span_replace follows. */
        }
    }
}

/* True if no step can be committed before all ranks are back. */
static bool is_still(const struct cstd_job *job, uint32_t m)
{
    const struct cstd_span *span = job->span;
    struct cst_core_stats stats;

    if (job->core == NULL || job->state != CSTD_JOB_READY || !span->holds ||
        cstd_span_is_member(span, m)) {
        return false;
    }
    cst_core_stats(job->core, &stats);
    return cst_core_awaits_ranks(job->core) && !stats.closing;
}

static int send_state(struct cstd_job *job, struct cstd_machine *peer,
                      const struct cst_core_stats *stats, const uint64_t *missed,
                      struct cst_err *err)
{
    const uint32_t n = missed != NULL ? job->model.n_tensors : 0;
    Span__State state = SPAN__STATE__INIT;
    Span__Key key = cstd_span_key(job);
    Span__Hyper hyper;
    int rc;

    cstd_span_put_hyper(&hyper, &stats->hyper);
    state.from = &key;
    state.step = stats->step;
    state.adam_step = stats->adam_step;
    state.n_skipped = stats->n_skipped;
    state.n_overflows = stats->n_overflows;
    state.hyper = stats->has_hyper ? &hyper : NULL;
    state.loss = stats->last_loss;
    state.grad_norm = stats->last_grad_norm;
    state.n_all = n;
    do {
        state.missed = (uint64_t *)(uintptr_t)(missed + state.first);
        state.n_missed = n - state.first < FRAME_MISSED ? n - state.first : FRAME_MISSED;
        rc = cstd_machine_send(peer, SPAN__MSG_TYPE__SPAN_STATE, &state.base, err);
        state.first += (uint32_t)state.n_missed;
    } while (rc == CST_OK && state.first < n);
    return rc;
}

/* Tell machine @m how far the job is. */
static void answer_state(struct cstd_job *job, uint32_t m)
{
    struct cstd_span_machine *machine = &job->span->machines[m];
    const bool counts = job->spec.updates.unused == CST_UNUSED_SKIP;
    uint64_t *missed = counts ? calloc(job->model.n_tensors, sizeof *missed) : NULL;
    struct cst_core_stats stats;
    struct cst_err unused;

    if (counts && missed == NULL) {
        cstd_log_about(CSTD_LOG_ERROR, CSTD_JOB_ABOUT(job), "no memory to tell its steps");
        return;
    }
    cst_core_stats(job->core, &stats);
    if (counts) {
        cst_core_missed_steps(job->core, missed);
    }
    /* If it is not sent the link is down, and the part begins anew. */
    (void)send_state(job, machine->peer, &stats, missed, &unused);
    machine->asks = false;
    free(missed);
}

void cstd_span_answer_states(struct cstd_job *job)
{
    for (uint32_t m = 0; m < job->span->n; m++) {
        if (job->span->machines[m].asks && is_still(job, m)) {
            answer_state(job, m);
        }
    }
}

static int on_state_ask(void *arg, struct cstd_machine *peer, const uint8_t *body, size_t n,
                        struct cst_err *err)
{
    Span__StateAsk *ask = span__state_ask__unpack(NULL, n, body);
    struct cstd_span_machine *machine;
    struct cstd_job *job;

    if (ask == NULL) {
        return cst_err_set(err, CST_EPROTO, "no question about a job's states");
    }
    machine = cstd_span_sender(arg, peer, ask->from, &job);
    if (machine != NULL) {
        machine->asks = true;
        cstd_span_answer_states(job);
    } else {
        cstd_span_tell_none(arg, job, peer, ask->from);
    }
    span__state_ask__free_unpacked(ask, NULL);
    return CST_OK;
}

/* -- here ------------------------------------------------------------------------------------- */

bool cstd_span_replaces(const struct cstd_job *job)
{
    return job->span != NULL && job->span->replaces;
}

int cstd_span_ask_progress(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_span *span = job->span;
    Span__StateAsk ask = SPAN__STATE_ASK__INIT;
    Span__Key key = cstd_span_key(job);

    ask.from = &key;
    for (uint32_t m = 0; m < span->n; m++) {
        if (span->machines[m].goes_on) {
            return cstd_machine_send(span->machines[m].peer, SPAN__MSG_TYPE__SPAN_STATE_ASK,
                                     &ask.base, err);
        }
    }
    return cst_err_set(err, CST_ECONN, "job '%s': no node goes on with it", job->name);
}

const struct cstd_span_progress *cstd_span_progress(const struct cstd_job *job)
{
    const struct cstd_span_progress *progress = job->span->progress;

    return progress != NULL && progress->n_told == progress->n_missed ? progress : NULL;
}

/* Take the first message of a State. */
static int begin_state(struct cstd_job *job, const Span__State *in, struct cst_err *err)
{
    struct cstd_span_progress *progress = calloc(1, sizeof *progress);

    cstd_span_forget_progress(job->span);
    if (progress != NULL && in->n_all > 0) {
        progress->missed = calloc(in->n_all, sizeof *progress->missed);
    }
    if (progress == NULL || (in->n_all > 0 && progress->missed == NULL)) {
        free(progress);
        return cst_err_set(err, CST_ENOMEM, "no memory for the steps of %" PRIu32 " tensors",
                           in->n_all);
    }
    progress->record.counters = (struct cst_counters){.step = in->step,
                                                      .adam_step = in->adam_step,
                                                      .n_skipped = in->n_skipped,
                                                      .n_overflows = in->n_overflows};
    progress->record.has_hyper = in->hyper != NULL;
    if (in->hyper != NULL) {
        cstd_span_take_hyper(&progress->record.hyper, in->hyper);
    }
    progress->record.last_loss = in->loss;
    progress->record.last_grad_norm = in->grad_norm;
    progress->n_missed = in->n_all;
    job->span->progress = progress;
    return CST_OK;
}

static int take_state(struct cstd_job *job, const Span__State *in, struct cst_err *err)
{
    const uint32_t n = job->spec.updates.unused == CST_UNUSED_SKIP ? job->model.n_tensors : 0;
    struct cstd_span_progress *progress;

    if (in->n_all != n || in->first > n || in->n_missed > n - in->first) {
        return cst_err_set(err, CST_EPROTO,
                           "steps of %zu tensors from %" PRIu32 " on, of %" PRIu32
                           ": there are %" PRIu32,
                           in->n_missed, in->first, in->n_all, n);
    }
    if (in->first == 0 && begin_state(job, in, err) != CST_OK) {
        return err->status;
    }
    progress = job->span->progress;
    if (progress == NULL || progress->n_told != in->first || progress->n_missed != in->n_all) {
        return cst_err_set(err, CST_EPROTO, "steps of tensors from %" PRIu32 " on, out of order",
                           in->first);
    }
    if (in->n_missed > 0) {
        memcpy(progress->missed + in->first, in->missed, in->n_missed * sizeof *in->missed);
    }
    progress->n_told += (uint32_t)in->n_missed;
    job->daemon->span_ops->told(job);
    return CST_OK;
}

static int on_state(void *arg, struct cstd_machine *peer, const uint8_t *body, size_t n,
                    struct cst_err *err)
{
    Span__State *state = span__state__unpack(NULL, n, body);
    struct cstd_span_machine *machine;
    struct cstd_job *job;
    int rc = CST_OK;

    if (state == NULL) {
        return cst_err_set(err, CST_EPROTO, "no answer about a job's states");
    }
    machine = cstd_span_sender(arg, peer, state->from, &job);
    if (machine != NULL && machine->goes_on && job->span->replaces && job->span->members == NULL &&
        cstd_span_progress(job) == NULL) {
        rc = take_state(job, state, err);
    }
    span__state__free_unpacked(state, NULL);
    return rc;
}

void cstd_span_handle_replace(struct cstd_daemon *daemon)
{
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_STATE_ASK, on_state_ask, daemon);
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_STATE, on_state, daemon);
}
