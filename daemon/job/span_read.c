/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of states that are on other nodes, as saves need them.
 *
 *   here                                   the daemon of the chunk's home
 *   READ of a worker     --ROW_ASK-->      READ of its core into its window
 *   COPY from the window <--ROW_HERE--
 *                        --ROW_TAKEN-->    the window is free
 *   answer               <--ROW_DONE--
 *
 * ROW_DONE says that the row was in the window until ROW_TAKEN came. If the link was down in
 * between, the home may have served another read, of which it is told first.
 *
 * A daemon has one window for each job, of the size of the largest staging segment, and serves one
 * request after the other. While a save is under way here, no further step can be committed
 * anywhere, because this machine is not READY. Another machine can have the last one still before
 * it: it waits for that step before it reads. So all rows are of one step. */
#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/engine/engines.h"
#include "daemon/job/job.h"
#include "daemon/job/span_parts.h"
#include "daemon/memory/staging.h"
#include "daemon/session/pending.h"

#include <stdlib.h>
#include <string.h>

/* A read of a worker here. */
struct cstd_span_read {
    TAILQ_ENTRY(cstd_span_read) link;
    uint64_t tag;    /* Of the request. */
    uint64_t number; /* Of the read, and low bits of the ticket of its COPY. */
    uint32_t machine;
    struct cst_place place; /* Where the row is to be. */
    uint64_t bytes;
    enum { ASKED, COPYING, COPYING_IN_VAIN, COPIED } state; /* IN_VAIN: the link was down. */
};

/* A read that another node has asked for. */
struct cstd_span_ask {
    TAILQ_ENTRY(cstd_span_ask) link;
    uint32_t machine;
    uint64_t number;
    uint64_t step; /* Of which the row has to be. */
    bool is_gone;  /* Nobody waits for it any more. */
    struct cst_event event;
};

/* Tickets of these COPYs have this bit, which those of cores do not reach. */
static const uint64_t ticket_bit = UINT64_C(1) << (CSTD_JOB_TICKET_SHIFT - 1);

/* -- here ------------------------------------------------------------------------------------- */

bool cstd_span_reads(const struct cstd_job *job, const struct cst_event *event)
{
    return job->span != NULL && event->tensor < job->model.n_tensors &&
           event->row != CST_ROW_WEIGHT && event->row != CST_ROW_GRAD &&
           job->layout.chunks[job->model.tensors[event->tensor].chunk].away;
}

/* Answer the request of @read, and forget it. */
static void answer(struct cstd_job *job, struct cstd_span_read *read, const struct cst_err *err)
{
    struct cst_reply reply = {.tag = read->tag, .status = err->status, .err = *err};

    TAILQ_REMOVE(&job->span->reads, read, link);
    free(read);
    if (cstd_pending_is_tag(reply.tag)) {
        job->daemon->span_ops->reply(job->daemon, &reply);
    } else {
        job->daemon->span_ops->copied(job, &reply);
    }
}

/* The steps that this machine has committed, or has to read the states of. */
static uint64_t step_here(const struct cstd_job *job)
{
    const struct cstd_span_progress *progress = job->span->progress;
    struct cst_core_stats stats;

    if (progress != NULL) {
        return progress->record.counters.step;
    }
    cst_core_stats(job->core, &stats);
    return stats.step;
}

#define NOBODY UINT32_MAX

/* True if states can be read from machine @m. */
static bool can_read(const struct cstd_span *span, uint32_t m)
{
    const struct cstd_span_machine *machine = &span->machines[m];

    return machine->peer != NULL && machine->peer->up != NULL && machine->joined &&
           (machine->goes_on || cstd_span_is_member(span, m));
}

/* The machine from which states of @chunk are read: the first one that has them, or
 * NOBODY. */
static uint32_t find_keeper(const struct cstd_job *job, uint32_t chunk)
{
    const struct cst_layout_machines *machines = &job->layout.machines;
    const struct cstd_span *span = job->span;

    /* All have those that are never updated. */
    if (!cst_layout_has_states(&job->layout.chunks[chunk]) && !job->layout.chunks[chunk].away) {
        for (uint32_t m = 0; m < span->n; m++) {
            if (can_read(span, m)) {
                return m;
            }
        }
        return NOBODY;
    }
    for (uint32_t i = 0; i < machines->copies; i++) {
        const uint32_t m = cst_layout_keeper(machines, chunk, i);

        if (can_read(span, m)) {
            return m;
        }
    }
    return NOBODY;
}

int cstd_span_read(struct cstd_job *job, const struct cst_event *event, uint64_t bytes,
                   struct cst_err *err)
{
    struct cstd_span *span = job->span;
    const uint32_t chunk = job->model.tensors[event->tensor].chunk;
    const uint32_t home = find_keeper(job, chunk);
    struct cstd_span_read *read = calloc(1, sizeof *read);
    Span__RowAsk ask = SPAN__ROW_ASK__INIT;
    Span__Key key = cstd_span_key(job);
    int rc;

    if (home == NOBODY) {
        free(read);
        return cst_err_set(err, CST_ECONN,
                           "no node with a link has the states of tensor '%s' of job '%s': see "
                           "'cistern node list'; if they are lost, load a checkpoint",
                           job->model.tensors[event->tensor].name, job->name);
    }
    if (read == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a read");
    }
    *read = (struct cstd_span_read){.tag = event->tag,
                                    .number = ++span->n_reads,
                                    .machine = home,
                                    .place = event->place,
                                    .bytes = bytes};
    ask.from = &key;
    ask.number = read->number;
    ask.tensor = event->tensor;
    ask.row = (uint32_t)event->row;
    ask.first = event->first;
    ask.n_elems = event->n_elems;
    ask.raw = event->raw;
    ask.exponents = event->exponents;
    ask.step = step_here(job);
    rc = cstd_machine_send(span->machines[home].peer, SPAN__MSG_TYPE__SPAN_ROW_ASK, &ask.base, err);
    if (rc != CST_OK) {
        free(read);
        return cst_err_prefix(err, "the states of tensor '%s' are on node '%s'",
                              job->model.tensors[event->tensor].name, span->names[home]);
    }
    TAILQ_INSERT_TAIL(&span->reads, read, link);
    return CST_OK;
}

static struct cstd_span_read *find(struct cstd_span *span, uint64_t number)
{
    struct cstd_span_read *read;

    TAILQ_FOREACH(read, &span->reads, link)
    {
        if (read->number == number) {
            return read;
        }
    }
    return NULL;
}

/* Find read @number at the part that has sent a message with @key over the link to @peer; NULL:
 * that has none. *job: as of cstd_span_sender. */
static struct cstd_span_read *find_at(struct cstd_daemon *daemon, const struct cstd_machine *peer,
                                      const Span__Key *key, uint64_t number, struct cstd_job **job)
{
    const struct cstd_span_machine *machine = cstd_span_sender(daemon, peer, key, job);
    struct cstd_span_read *read = machine != NULL ? find((*job)->span, number) : NULL;

    return read != NULL && read->machine == cstd_span_number((*job)->span, machine) ? read : NULL;
}

/* Tell the node @peer that nobody here waits for read @number any more. */
static void tell_taken(struct cstd_job *job, struct cstd_machine *peer, uint64_t number)
{
    Span__RowTaken taken = SPAN__ROW_TAKEN__INIT;
    Span__Key key = cstd_span_key(job);
    struct cst_err unused;

    taken.from = &key;
    taken.number = number;
    /* If the link is down, the other node forgets the read by itself. */
    (void)cstd_machine_send(peer, SPAN__MSG_TYPE__SPAN_ROW_TAKEN, &taken.base, &unused);
}

/* The row is in the window of its machine: copy it. */
static int copy(struct cstd_job *job, struct cstd_span_read *read, struct cst_err *err)
{
    const struct cstd_span_machine *machine = &job->span->machines[read->machine];
    struct cst_command command = {.kind = CST_COMMAND_COPY,
                                  .priority = CST_PRIORITY_PREFETCH,
                                  .ticket = (job->serial << CSTD_JOB_TICKET_SHIFT) | ticket_bit |
                                            read->number,
                                  .io = true,
                                  .node = job->span->engine,
                                  .dst[0] = read->place,
                                  .n_src = 1,
                                  .n_dst = 1,
                                  .bytes = read->bytes};

    if (machine->n_segments == 0 || machine->segments[machine->n_segments - 1].segment == NULL) {
        return cst_err_set(err, CST_ELOST, "node '%s' has no window",
                           job->span->names[read->machine]);
    }
    command.src[0].segment = machine->segments[machine->n_segments - 1].segment->id;
    if (cstd_engines_submit(job->daemon->engines, &command, err) != CST_OK) {
        return err->status;
    }
    read->state = COPYING;
    return CST_OK;
}

static void say_down(const struct cstd_job *job, uint32_t m, struct cst_err *err)
{
    (void)cst_err_set(err, CST_ECONN, "the link to node '%s', which has these states, is down",
                      job->span->names[m]);
}

void cstd_span_copied(struct cstd_job *job, uint64_t ticket, int status, const char *text)
{
    struct cstd_span_read *read =
        job->span != NULL ? find(job->span, ticket & (ticket_bit - 1)) : NULL;
    struct cst_err err = {0};

    if (read == NULL) {
        return;
    }
    if (status != CST_OK) {
        (void)cst_err_set(&err, status, "%s", text != NULL ? text : cst_status_words(status));
    } else if (read->state == COPYING_IN_VAIN) {
        say_down(job, read->machine, &err);
    }
    tell_taken(job, job->span->machines[read->machine].peer, read->number);
    if (err.status != CST_OK) {
        answer(job, read, &err);
    } else {
        read->state = COPIED; /* on_row_done answers. */
    }
}

static int on_row_done(void *arg, struct cstd_machine *peer, const uint8_t *body, size_t n,
                       struct cst_err *err)
{
    Span__RowDone *done = span__row_done__unpack(NULL, n, body);
    struct cstd_span_read *read;
    struct cstd_job *job;
    struct cst_err why = {0};

    if (done == NULL) {
        return cst_err_set(err, CST_EPROTO, "no end of a read");
    }
    read = find_at(arg, peer, done->from, done->number, &job);
    if (read != NULL && read->state == COPIED) {
        if (!done->kept) {
            say_down(job, read->machine, &why);
        }
        answer(job, read, &why);
    }
    span__row_done__free_unpacked(done, NULL);
    return CST_OK;
}

static int on_row_here(void *arg, struct cstd_machine *peer, const uint8_t *body, size_t n,
                       struct cst_err *err)
{
    Span__RowHere *here = span__row_here__unpack(NULL, n, body);
    struct cstd_span_read *read;
    struct cstd_job *job;
    struct cst_err why = {0};

    if (here == NULL) {
        return cst_err_set(err, CST_EPROTO, "no row of a job");
    }
    read = find_at(arg, peer, here->from, here->number, &job);
    if (job != NULL && read == NULL) {
        tell_taken(job, peer, here->number); /* It was answered, because a link was down. */
    } else if (read != NULL && read->state == ASKED) {
        if (here->status != CST_OK) {
            (void)cst_err_set(&why, here->status < 0 ? here->status : CST_EPROTO, "node '%s': %s",
                              peer->entry.name, here->why != NULL ? here->why : "");
        } else {
            (void)copy(job, read, &why);
        }
        if (why.status != CST_OK) {
            tell_taken(job, job->span->machines[read->machine].peer, read->number);
            answer(job, read, &why);
        }
    }
    span__row_here__free_unpacked(here, NULL);
    return CST_OK;
}

/* -- for other nodes -------------------------------------------------------------------------- */

/* Tell the node of @ask that its row is in the window, or the status @err. False: it cannot be
 * told.
 */
static bool tell_here(struct cstd_job *job, const struct cstd_span_ask *ask,
                      const struct cst_err *err)
{
    Span__RowHere here = SPAN__ROW_HERE__INIT;
    Span__Key key = cstd_span_key(job);
    struct cst_err unused;

    here.from = &key;
    here.number = ask->number;
    here.status = err->status;
    here.why = err->status != CST_OK ? (char *)(uintptr_t)err->text : NULL;
    return cstd_machine_send(job->span->machines[ask->machine].peer, SPAN__MSG_TYPE__SPAN_ROW_HERE,
                             &here.base, &unused) == CST_OK;
}

/* Forget the first read, and begin the next one soon. While the core reads into the window, this
 * waits for it. */
static void end_first(struct cstd_job *job)
{
    struct cstd_span *span = job->span;
    struct cstd_span_ask *ask = TAILQ_FIRST(&span->asks);

    if (span->is_reading) {
        ask->is_gone = true;
        return;
    }
    TAILQ_REMOVE(&span->asks, ask, link);
    free(ask);
    span->is_asked = false;
    cstd_deferred_add(&job->daemon->later, &span->serve);
}

/* Begin the next read that waits for the window, when its step is committed here. */
static void serve_next(struct cstd_job *job)
{
    struct cstd_span *span = job->span;
    struct cstd_span_ask *ask = TAILQ_FIRST(&span->asks);
    struct cst_err err;
    uint64_t step;

    if (ask == NULL || span->is_asked || job->state != CSTD_JOB_READY) {
        return;
    }
    step = step_here(job);
    if (step < ask->step) {
        return; /* cstd_span_stepped looks again. */
    }
    span->is_asked = true;
    if (step > ask->step) {
        (void)cst_err_set(&err, CST_EBUSY,
                          "step %llu is committed here, and the states of step %llu are asked for: "
                          "ask again",
                          (unsigned long long)step, (unsigned long long)ask->step);
        (void)tell_here(job, ask, &err);
        end_first(job);
        return;
    }
    span->is_reading = true;
    ask->event.kind = CST_EV_READ;
    ask->event.tag = CSTD_SPAN_READ_TAG;
    ask->event.place.segment = span->window->id;
    job->daemon->span_ops->feed(job, &ask->event);
}

static void on_serve(struct cstd_deferred *later)
{
    serve_next(cstd_owner_of(later, struct cstd_span, serve)->job);
}

void cstd_span_serve(struct cstd_job *job)
{
    if (!job->span->is_asked && !TAILQ_EMPTY(&job->span->asks)) {
        cstd_deferred_add(&job->daemon->later, &job->span->serve);
    }
}

void cstd_span_answered(struct cstd_job *job, const struct cst_reply *reply)
{
    struct cstd_span *span = job->span;
    struct cstd_span_ask *ask = TAILQ_FIRST(&span->asks);
    struct cst_err err = {0};

    if (!span->is_reading || ask == NULL) {
        return;
    }
    span->is_reading = false;
    if (reply->status != CST_OK) {
        err = reply->err;
        err.status = reply->status;
    }
    if (ask->is_gone || !tell_here(job, ask, &err)) {
        end_first(job); /* Nobody takes the row. */
    }
}

static int take_ask(struct cstd_job *job, uint32_t m, const Span__RowAsk *in, struct cst_err *err)
{
    struct cst_layout_states states = cst_layout_job_states(&job->spec);
    struct cstd_span_ask *ask;
    uint32_t n = 0;

    if (in->tensor >= job->model.n_tensors || in->row >= CST_ROW_COUNT ||
        in->n_elems > CSTD_STAGING_MAX_BYTES ||
        cst_core_io_bytes(&states, job->model.tensors[in->tensor].dtype, (enum cst_row)in->row,
                          in->raw, in->exponents, in->n_elems) > CSTD_STAGING_MAX_BYTES) {
        return cst_err_set(err, CST_EPROTO, "%llu elements of row %u of tensor %u",
                           (unsigned long long)in->n_elems, in->row, in->tensor);
    }
    TAILQ_FOREACH(ask, &job->span->asks, link)
    {
        n++;
    }
    ask = n < CSTD_SPAN_MAX_ASKS ? calloc(1, sizeof *ask) : NULL;
    if (ask == NULL) {
        return cst_err_set(err, CST_EBUSY, "%u reads wait for the window already", n);
    }
    ask->machine = m;
    ask->number = in->number;
    ask->step = in->step;
    ask->event = (struct cst_event){.tensor = in->tensor,
                                    .row = (enum cst_row)in->row,
                                    .first = in->first,
                                    .n_elems = in->n_elems,
                                    .raw = in->raw != 0,
                                    .exponents = in->exponents != 0,
                                    /* No rank has it, so that its trace learns nothing. */
                                    .rank = UINT32_MAX};
    TAILQ_INSERT_TAIL(&job->span->asks, ask, link);
    serve_next(job);
    return CST_OK;
}

static int on_row_ask(void *arg, struct cstd_machine *peer, const uint8_t *body, size_t n,
                      struct cst_err *err)
{
    Span__RowAsk *in = span__row_ask__unpack(NULL, n, body);
    struct cstd_span_machine *machine;
    struct cstd_job *job;
    int rc = CST_OK;

    if (in == NULL) {
        return cst_err_set(err, CST_EPROTO, "no read of a row");
    }
    machine = cstd_span_sender(arg, peer, in->from, &job);
    if (machine != NULL && job->span->state == CSTD_SPAN_JOINED) {
        rc = take_ask(job, cstd_span_number(job->span, machine), in, err);
    }
    if (rc != CST_OK) { /* The link serves others, too: only this read is refused. */
        const struct cstd_span_ask ask = {.machine = cstd_span_number(job->span, machine),
                                          .number = in->number};

        (void)tell_here(job, &ask, err);
    }
    span__row_ask__free_unpacked(in, NULL);
    return CST_OK;
}

/* Tell @peer whether read @number of it was in the window until now. */
static void tell_done(struct cstd_job *job, struct cstd_machine *peer, uint64_t number, bool kept)
{
    Span__RowDone done = SPAN__ROW_DONE__INIT;
    Span__Key key = cstd_span_key(job);
    struct cst_err unused;

    done.from = &key;
    done.number = number;
    done.kept = kept;
    /* If the link is down, the other node ends the read by itself. */
    (void)cstd_machine_send(peer, SPAN__MSG_TYPE__SPAN_ROW_DONE, &done.base, &unused);
}

static int on_row_taken(void *arg, struct cstd_machine *peer, const uint8_t *body, size_t n,
                        struct cst_err *err)
{
    Span__RowTaken *taken = span__row_taken__unpack(NULL, n, body);
    const struct cstd_span_machine *machine;
    struct cstd_job *job;

    if (taken == NULL) {
        return cst_err_set(err, CST_EPROTO, "no end of a read");
    }
    machine = cstd_span_sender(arg, peer, taken->from, &job);
    if (machine != NULL) {
        const struct cstd_span_ask *ask = TAILQ_FIRST(&job->span->asks);
        const bool kept = ask != NULL && job->span->is_asked &&
                          ask->machine == cstd_span_number(job->span, machine) &&
                          ask->number == taken->number;

        tell_done(job, peer, taken->number, kept);
        if (kept) {
            end_first(job);
        }
    }
    span__row_taken__free_unpacked(taken, NULL);
    return CST_OK;
}

/* -- life ------------------------------------------------------------------------------------- */

void cstd_span_read_down(struct cstd_job *job, uint32_t m)
{
    struct cstd_span *span = job->span;
    struct cstd_span_read *read, *next;
    struct cstd_span_ask *ask, *after;
    struct cst_err err;

    say_down(job, m, &err);
    for (read = TAILQ_FIRST(&span->reads); read != NULL; read = next) {
        next = TAILQ_NEXT(read, link);
        if (read->machine == m && (read->state == ASKED || read->state == COPIED)) {
            answer(job, read, &err);
        } else if (read->machine == m) { /* The engine that copies to its place ends by itself. */
            read->state = COPYING_IN_VAIN;
        }
    }
    for (ask = TAILQ_FIRST(&span->asks); ask != NULL; ask = after) {
        after = TAILQ_NEXT(ask, link);
        if (ask->machine == m && !(span->is_asked && ask == TAILQ_FIRST(&span->asks))) {
            TAILQ_REMOVE(&span->asks, ask, link);
            free(ask);
        } else if (ask->machine == m) {
            end_first(job);
        }
    }
}

void cstd_span_read_open(struct cstd_span *span)
{
    TAILQ_INIT(&span->reads);
    TAILQ_INIT(&span->asks);
    span->serve.fn = on_serve;
}

void cstd_span_read_close(struct cstd_span *span)
{
    while (!TAILQ_EMPTY(&span->reads)) {
        struct cstd_span_read *read = TAILQ_FIRST(&span->reads);

        TAILQ_REMOVE(&span->reads, read, link); /* Its request ends with the job. */
        free(read);
    }
    while (!TAILQ_EMPTY(&span->asks)) {
        struct cstd_span_ask *ask = TAILQ_FIRST(&span->asks);

        TAILQ_REMOVE(&span->asks, ask, link);
        free(ask);
    }
    cstd_deferred_remove(&span->job->daemon->later, &span->serve);
}

void cstd_span_handle_reads(struct cstd_daemon *daemon)
{
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_ROW_ASK, on_row_ask, daemon);
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_ROW_HERE, on_row_here, daemon);
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_ROW_TAKEN, on_row_taken, daemon);
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_ROW_DONE, on_row_done, daemon);
}
