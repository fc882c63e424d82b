/* SPDX-License-Identifier: Apache-2.0 */
/* What the cores of a job on several nodes tell each other, and who its members are. */
#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/job/span_message.h"
#include "daemon/job/span_parts.h"
#include "daemon/ledger/ledger.h"
#include "daemon/settings/settings.h"
#include "offload/core/revival.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A core's message of an epoch that does not hold here yet, as it came. */
struct cstd_span_early {
    TAILQ_ENTRY(cstd_span_early) link;
    uint32_t machine;
    size_t n;
    uint8_t body[];
};

enum { FIRST_AGAIN_MS = 20, MOST_AGAIN_DOUBLED = 8 }; /* At most 5 s. */

struct cstd_span_timers {
    uv_timer_t deadline; /* Of the members. */
    uv_timer_t again;    /* A transfer has failed: the next round. */
    unsigned n_closed;
};

/* The number that the core has for round @round of epoch @epoch. */
static uint64_t number_of(uint64_t epoch, uint64_t round)
{
    return epoch << 32 | (round & UINT32_MAX);
}

/* -- rounds ---------------------------------------------------------------------------------- */

/* Let all be told again, in a new round. */
static void on_again(uv_timer_t *timer)
{
    struct cstd_span *span = timer->data;

    for (uint32_t m = 0; m < span->n; m++) {
        if (m != span->self && span->machines[m].joined && cstd_span_is_member(span, m) &&
            span->machines[m].peer->up != NULL) {
            cstd_span_anew(span, m);
            return;
        }
    }
}

/* Begin a new round soon: the more often without a commit, the later. */
static void begin_again(struct cstd_span *span)
{
    const uint32_t doubled =
        span->n_again < MOST_AGAIN_DOUBLED ? span->n_again : MOST_AGAIN_DOUBLED;

    if (span->timers != NULL && !uv_is_active((uv_handle_t *)&span->timers->again)) {
        (void)uv_timer_start(&span->timers->again, on_again, (uint64_t)FIRST_AGAIN_MS << doubled,
                             0);
        span->n_again++;
    }
}

/* -- the core --------------------------------------------------------------------------------- */

void cstd_span_tell(struct cstd_job *job, uint32_t to, const struct cst_machine_message *message)
{
    struct cstd_span *span = job->span;
    struct cst_err unused;

    for (uint32_t m = 0; m < span->n; m++) {
        if (span->machines[m].peer != NULL && (to == CST_MACHINES_ALL || to == m)) {
            /* If it is not sent the link is down, and another round of the epoch follows. */
            (void)cstd_span_send_core(job, &span->machines[m], message, &unused);
        }
    }
}

/* Give the core what machine @m has told it. */
static int feed(struct cstd_job *job, uint32_t m, const Span__Core *core, struct cst_err *err)
{
    struct cst_machine_message message;
    struct cst_event event = {.kind = CST_EV_TOLD, .machine = m, .message = &message};
    int rc = cstd_span_read_core(core, &job->span->machines[m], &message, err);

    if (rc == CST_OK) {
        job->daemon->span_ops->feed(job, &event);
    }
    return rc == CST_EAGAIN ? CST_OK : rc;
}

static void drop_early(struct cstd_span *span)
{
    while (!TAILQ_EMPTY(&span->early)) {
        struct cstd_span_early *early = TAILQ_FIRST(&span->early);

        TAILQ_REMOVE(&span->early, early, link);
        free(early);
    }
    span->early_bytes = 0;
}

/* Keep a message of an epoch that does not hold here yet. If there is no room all are forgotten,
 * and told again in the next round. */
static void keep_early(struct cstd_span *span, uint32_t m, const uint8_t *body, size_t n)
{
    struct cstd_span_early *early =
        span->early_bytes + n <= CSTD_SPAN_MAX_EARLY ? malloc(sizeof *early + n) : NULL;

    if (early == NULL) {
        cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT(span->job),
                       "no room for a message of node '%s' about the next epoch, beside %zu bytes: "
                       "a new round begins",
                       cstd_span_name(span, m), span->early_bytes);
        drop_early(span);
        begin_again(span);
        return;
    }
    early->machine = m;
    early->n = n;
    memcpy(early->body, body, n);
    TAILQ_INSERT_TAIL(&span->early, early, link);
    span->early_bytes += n;
}

/* Give the core the messages that have waited for this epoch. */
static void take_early(struct cstd_job *job)
{
    struct cstd_span *span = job->span;
    struct cstd_span_early *early, *next;
    TAILQ_HEAD(, cstd_span_early) now = TAILQ_HEAD_INITIALIZER(now);

    TAILQ_CONCAT(&now, &span->early, link);
    span->early_bytes = 0;
    for (early = TAILQ_FIRST(&now); early != NULL; early = next) {
        Span__Core *core = span__core__unpack(NULL, early->n, early->body);
        struct cst_err err;

        next = TAILQ_NEXT(early, link);
        if (core != NULL && core->epoch == span->epoch && job->state == CSTD_JOB_READY &&
            feed(job, early->machine, core, &err) != CST_OK) {
            cstd_log_about(CSTD_LOG_ERROR, CSTD_JOB_ABOUT(job), "node '%s': %s",
                           cstd_span_name(span, early->machine), err.text);
        } else if (core != NULL && core->epoch > span->epoch) {
            keep_early(span, early->machine, early->body, early->n);
        }
        span__core__free_unpacked(core, NULL);
        free(early);
    }
}

static int on_core(void *arg, struct cstd_machine *peer, const uint8_t *body, size_t n,
                   struct cst_err *err)
{
    Span__Core *core = span__core__unpack(NULL, n, body);
    struct cstd_span_machine *machine;
    struct cstd_job *job;
    int rc = CST_OK;

    if (core == NULL) {
        return cst_err_set(err, CST_EPROTO, "no message of a job's core");
    }
    machine = cstd_span_sender(arg, peer, core->from, &job);
    if (machine != NULL) {
        const uint32_t m = cstd_span_number(job->span, machine);

        if (job->span->holds && core->epoch == job->span->epoch) {
            rc = feed(job, m, core, err);
        } else if (core->epoch > job->span->epoch) {
            keep_early(job->span, m, body, n);
        }
    } else {
        cstd_span_tell_none(arg, job, peer, core->from);
    }
    span__core__free_unpacked(core, NULL);
    return rc;
}

/* -- members ---------------------------------------------------------------------------------- */

static void feed_members(struct cstd_span *span, struct cst_members_event *event);

static void on_timer(uv_timer_t *timer)
{
    feed_members(timer->data, &(struct cst_members_event){.kind = CST_MEMBERS_TIME});
}

/* Set the timer for the next deadline. */
static void arm(struct cstd_span *span)
{
    const uint64_t at = cst_members_deadline(span->members), now = uv_hrtime();

    if (at == CST_MEMBERS_NEVER) {
        (void)uv_timer_stop(&span->timers->deadline);
        return;
    }
    (void)uv_timer_start(&span->timers->deadline, on_timer, at > now ? (at - now) / 1000000 + 1 : 1,
                         0);
}

/* The epoch holds at this machine, and tells the core who the members are. */
static void on_holds(struct cstd_span *span, const struct cst_members_action *action)
{
    struct cst_event event = {.kind = CST_EV_MACHINES};

    /* The job is made: machines are added one after the other, and the core begins with all. */
    span->is_complete = span->is_complete || cst_set_count(&action->epoch->members) == span->n;
    if (!span->is_complete) {
        return;
    }
    span->holds = true;
    span->epoch = event.epoch = number_of(action->epoch->number, action->round);
    CST_SET_EACH (m, &action->epoch->members) {
        event.members |= UINT64_C(1) << m;
    }
    span->job->daemon->span_ops->feed(span->job, &event);
    if (span->job->span == span && cst_set_count(&action->epoch->members) < span->n) {
        cstd_span_seek(span->job);
    }
    if (span->job->state == CSTD_JOB_READY) {
        take_early(span->job);
    }
}

static void send_to(struct cstd_span *span, const struct cst_members_action *action)
{
    struct cst_err unused;

    CST_SET_EACH (m, &action->to) {
        if (m < span->n && span->machines[m].peer != NULL) {
            (void)cstd_span_send_members(span->job, &span->machines[m], &action->message, &unused);
        }
    }
}

/* The other machines go on without this one, whose states are out of date: it can only begin anew,
 * as a part that takes the place of a lost one, if other nodes have its states. */
void cstd_span_leave(struct cstd_span *span, const char *text)
{
    const bool alone = span->job->spec.nodes.copies <= 1;
    struct cst_err why = {0};

    (void)cst_err_set(&why, CST_ELOST, "job '%s': %.300s: %s", span->job->name, text,
                      alone ? "with 'copies' 1 no other node has the states of this one; remove "
                              "the job on the others, and begin it anew from a checkpoint"
                            : "start its workers on this node again, and they go on with the "
                              "states of the other nodes");
    span->job->daemon->span_ops->removed(span->job, &why);
}

static void carry_out(struct cstd_span *span, const struct cst_members_actions *actions)
{
    for (uint32_t i = 0; i < actions->n; i++) {
        const struct cst_members_action *action = &actions->v[i];

        switch (action->kind) {
        case CST_MEMBERS_SEND:
            send_to(span, action);
            break;
        case CST_MEMBERS_LOG:
            cstd_log_about(action->status == CST_OK ? CSTD_LOG_INFO : CSTD_LOG_WARNING,
                           CSTD_JOB_ABOUT(span->job), "%s", action->text);
            break;
        case CST_MEMBERS_HOLDS:
            on_holds(span, action);
            break;
        case CST_MEMBERS_WAITS:
            span->holds = false;
            cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(span->job), "%s", action->text);
            break;
        case CST_MEMBERS_OUT:
            span->holds = false;
            cstd_span_leave(span, action->text);
            break;
        }
    }
}

/* Give the members an event. What they have to remember is stored before it has any effect. */
static int step(struct cstd_span *span, const struct cst_members_event *event,
                struct cst_members_actions *actions, struct cst_err *err)
{
    const int rc = cst_members_step(span->members, event, actions, err);

    cstd_ledger_note_members(span->job);
    return rc;
}

/* True if this machine adds machine @m: node 0 when the job is made, and each member those that
 * take the place of lost ones. */
static bool adds(const struct cstd_span *span, uint32_t m)
{
    const struct cstd_span_machine *machine = &span->machines[m];

    return m != span->self && !machine->added && machine->joined &&
           (span->is_complete ? cstd_span_is_member(span, span->self) : span->self == 0) &&
           !cstd_span_is_member(span, m);
}

/* Add a machine that has told its life. */
static bool add_next(struct cstd_span *span, struct cst_members_actions *actions)
{
    struct cst_err unused;

    for (uint32_t m = 0; m < span->n; m++) {
        struct cst_members_event add = {
            .kind = CST_MEMBERS_ADD, .now = uv_hrtime(), .machine = m, .idle = true};

        if (adds(span, m) && step(span, &add, actions, &unused) == CST_OK) {
            span->machines[m].added = true;
            return true;
        }
    }
    return false;
}

static void feed_members(struct cstd_span *span, struct cst_members_event *event)
{
    struct cst_members_actions *actions;
    struct cst_err err = {0};
    struct cstd_job *job = span->job;

    if (span->members == NULL) {
        return;
    }
    span->busy = true;
    actions = malloc(sizeof *actions);
    if (actions == NULL) {
        cstd_log_about(CSTD_LOG_ERROR, CSTD_JOB_ABOUT(job), "no memory for its members");
        span->busy = false;
        return;
    }
    event->now = uv_hrtime();
    if (step(span, event, actions, &err) == CST_OK) {
        carry_out(span, actions);
    } else {
        cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT(job), "%s", err.text);
    }
    while (job->span == span && add_next(span, actions)) {
        carry_out(span, actions);
    }
    free(actions);
    if (job->span == span) {
        span->busy = false;
        arm(span);
        if (job->core != NULL) {
            cstd_span_stepped(job); /* An action can have fed the core. */
        }
    }
}

/* The other machine tells its life before it has joined here. */
static int keep_told(struct cstd_span_machine *machine, const struct cst_members_message *message,
                     struct cst_err *err)
{
    if (message->kind != CST_MEMBERS_TELL) {
        return CST_OK; /* Votes are repeated. */
    }
    if (machine->told == NULL) {
        machine->told = malloc(sizeof *machine->told);
    }
    if (machine->told == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a message about members");
    }
    *machine->told = *message;
    return CST_OK;
}

static int on_members(void *arg, struct cstd_machine *peer, const uint8_t *body, size_t n,
                      struct cst_err *err)
{
    Span__Members *in = span__members__unpack(NULL, n, body);
    struct cst_members_message message;
    struct cstd_span_machine *machine;
    struct cstd_job *job;
    int rc = CST_OK;

    if (in == NULL) {
        return cst_err_set(err, CST_EPROTO, "no message about members");
    }
    machine = cstd_span_sender(arg, peer, in->from, &job);
    if (machine != NULL) {
        rc = cstd_span_read_members(in, job->span->n, &message, err);
        if (rc == CST_OK && (job->span->members == NULL || !machine->joined)) {
            rc = keep_told(machine, &message, err);
        } else if (rc == CST_OK) {
            feed_members(job->span, &(struct cst_members_event){
                                        .kind = CST_MEMBERS_TOLD,
                                        .machine = cstd_span_number(job->span, machine),
                                        .message = &message});
        }
    } else {
        cstd_span_tell_none(arg, job, peer, in->from);
    }
    span__members__free_unpacked(in, NULL);
    return rc;
}

/* Machine @m has joined and has a link. */
static void come(struct cstd_span *span, uint32_t m)
{
    struct cst_members_message *told = span->machines[m].told;

    span->machines[m].told = NULL;
    feed_members(span, &(struct cst_members_event){.kind = CST_MEMBERS_UP, .machine = m});
    if (told != NULL && span->job->span == span) {
        feed_members(span, &(struct cst_members_event){
                               .kind = CST_MEMBERS_TOLD, .machine = m, .message = told});
    }
    free(told);
}

void cstd_span_joined(struct cstd_span *span, uint32_t m)
{
    if (span->members != NULL && m != span->self && span->machines[m].peer->up != NULL) {
        come(span, m);
    }
}

void cstd_span_link(struct cstd_span *span, const struct cstd_machine *peer, bool up)
{
    struct cstd_span_machine *machine = cstd_span_find(span, peer);
    uint32_t m;

    if (machine == NULL) {
        return;
    }
    m = cstd_span_number(span, machine);
    if (!up) {
        cstd_span_read_down(span->job, m);
        free(machine->told);
        machine->told = NULL;
        feed_members(span, &(struct cst_members_event){.kind = CST_MEMBERS_DOWN, .machine = m});
    } else if (span->members != NULL) {
        cstd_span_tell_engine(span, m);
        if (machine->joined) {
            come(span, m);
        }
    }
}

void cstd_span_anew(struct cstd_span *span, uint32_t m)
{
    feed_members(span, &(struct cst_members_event){.kind = CST_MEMBERS_DOWN, .machine = m});
    if (span->job->span == span) {
        come(span, m);
    }
}

void cstd_span_away(struct cstd_span *span, uint32_t m)
{
    cstd_span_read_down(span->job, m);
    cstd_span_forget_segments(span, m);
    span->machines[m].added = false;
    feed_members(span, &(struct cst_members_event){.kind = CST_MEMBERS_DOWN, .machine = m});
}

void cstd_span_lost(struct cstd_span *span, uint32_t m)
{
    cstd_span_read_down(span->job, m);
    feed_members(span, &(struct cst_members_event){.kind = CST_MEMBERS_DOWN, .machine = m});
    feed_members(span, &(struct cst_members_event){.kind = CST_MEMBERS_GONE, .machine = m});
}

bool cstd_span_drop_node(struct cstd_job *job, const char *name)
{
    struct cstd_span *span = job->span;

    for (uint32_t m = 0; span != NULL && span->members != NULL && m < span->n; m++) {
        if (m != span->self && strcmp(span->names[m], name) == 0 && cstd_span_is_member(span, m)) {
            feed_members(span, &(struct cst_members_event){
                                   .kind = CST_MEMBERS_DROP, .machine = m, .idle = true});
            return true;
        }
    }
    return false;
}

/* True if machine @m was to be dropped, and is in the list of nodes again. */
static bool is_back(const struct cstd_span *span, uint32_t m)
{
    return m != span->self && !span->machines[m].peer->is_dropped && cstd_span_is_member(span, m) &&
           cst_set_has(&cst_members_record(span->members)->drops, m);
}

void cstd_span_add_nodes(struct cstd_daemon *daemon)
{
    struct cstd_job *job, *next;

    for (job = TAILQ_FIRST(&daemon->jobs->living); job != NULL; job = next) {
        next = TAILQ_NEXT(job, link);
        for (uint32_t m = 0; job->span != NULL && m < job->span->n; m++) {
            if (is_back(job->span, m)) {
                feed_members(job->span, &(struct cst_members_event){
                                            .kind = CST_MEMBERS_ADD, .machine = m, .idle = true});
            }
        }
    }
}

/* See whether transfers have failed, whose links are not down. */
static void see_failures(struct cstd_span *span)
{
    const uint64_t n = cst_core_failed_transfers(span->job->core);

    if (n != span->failed_transfers) {
        span->failed_transfers = n;
        begin_again(span);
    }
}

void cstd_span_stepped(struct cstd_job *job)
{
    struct cstd_span *span = job->span;
    const uint64_t step = cst_core_recorded_step(job->core);

    cstd_span_serve(job);
    cstd_span_answer_states(job);
    see_failures(span);
    if (!span->busy && span->holds && step != span->step) {
        span->step = step;
        span->n_again = 0;
        feed_members(span,
                     &(struct cst_members_event){.kind = CST_MEMBERS_COMMITTED, .step = step});
    }
}

/* -- life ------------------------------------------------------------------------------------- */

/* How long a member may be away. Without other copies of its states the job could not go on without
 * it. */
static uint64_t wait_of(const struct cstd_job *job)
{
    return job->spec.nodes.copies > 1 ? job->daemon->config->node.wait_s * UINT64_C(1000000000)
                                      : CST_MEMBERS_NEVER;
}

/* Open the members of @span. CST_ENOMEM; CST_EPROTO: the record is none. */
static int open_members(struct cstd_span *span, struct cst_err *err)
{
    struct cstd_job *job = span->job;
    const struct cst_members_config config = {.self = span->self,
                                              .life = span->life,
                                              .makes_job = span->self == 0 && !span->replaces,
                                              .wait = wait_of(job),
                                              .committed = cst_core_recorded_step(job->core),
                                              .names = span->names};
    int rc;

    span->timers = calloc(1, sizeof *span->timers);
    rc = span->timers != NULL
             ? cst_members_open(&span->members, &config, span->record, uv_hrtime(), err)
             : cst_err_set(err, CST_ENOMEM, "no memory for its members");
    if (rc != CST_OK) {
        free(span->timers);
        span->timers = NULL;
        return rc;
    }
    span->is_complete = span->record != NULL || span->replaces; /* No other job is kept. */
    span->step = config.committed;
    free(span->record);
    span->record = NULL;
    cstd_span_forget_progress(span);
    for (uint32_t m = 0; m < span->n; m++) {
        span->machines[m].goes_on = false; /* From now on the members are asked. */
    }
    (void)uv_timer_init(&job->daemon->loop, &span->timers->deadline);
    (void)uv_timer_init(&job->daemon->loop, &span->timers->again);
    span->timers->deadline.data = span->timers->again.data = span;
    return CST_OK;
}

void cstd_span_open(struct cstd_job *job)
{
    struct cstd_span *span = job->span;
    struct cst_err err;

    if (span == NULL || span->members != NULL) {
        return;
    }
    if (open_members(span, &err) != CST_OK) {
        cstd_log_about(CSTD_LOG_ERROR, CSTD_JOB_ABOUT(job), "%s", err.text);
        return;
    }
    feed_members(span, &(struct cst_members_event){.kind = CST_MEMBERS_TIME});
    cstd_span_engine_up(job); /* An earlier daemon's part tells of its engine now. */
    for (uint32_t m = 0; job->span == span && m < span->n; m++) {
        if (m != span->self && span->machines[m].peer->up != NULL && span->machines[m].joined) {
            come(span, m);
        }
    }
}

static void on_closed(uv_handle_t *timer)
{
    struct cstd_span_timers *timers = timer->data;

    if (++timers->n_closed == 2) {
        free(timers);
    }
}

void cstd_span_part(struct cstd_span *span)
{
    drop_early(span);
    if (span->timers != NULL) {
        span->timers->deadline.data = span->timers->again.data = span->timers;
        uv_close((uv_handle_t *)&span->timers->deadline, on_closed);
        uv_close((uv_handle_t *)&span->timers->again, on_closed);
    }
    cst_members_close(span->members);
    free(span->record);
    cstd_span_forget_progress(span);
    for (uint32_t m = 0; m < span->n; m++) {
        cstd_span_forget_segments(span, m);
    }
}

void cstd_span_handle_core(struct cstd_daemon *daemon)
{
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_CORE, on_core, daemon);
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_MEMBERS, on_members, daemon);
}
