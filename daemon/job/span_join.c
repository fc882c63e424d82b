/* SPDX-License-Identifier: Apache-2.0 */
/* Joining: the engines of a span learn how the others are reached, and what they serve. */
#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/engine/engines.h"
#include "daemon/engine/net_engine.h"
#include "daemon/engine/net_peers.h"
#include "daemon/job/job.h"
#include "daemon/job/span_parts.h"
#include "daemon/memory/staging.h"

#include <stdlib.h>
#include <string.h>

enum {
    FRAME_SEGMENTS = 2000, /* Segments in one message. */
    MAX_SEGMENTS = 1 << 20 /* Of one machine. */
};

/* Tell @to of the engine here and of the arenas, which it serves. @wants: it has to answer. */
static int tell_net(struct cstd_job *job, struct cstd_span_machine *to, bool wants,
                    struct cst_err *err)
{
    const struct cstd_memory *memory = &job->memory;
    const struct cstd_net_bytes *end = &job->daemon->engines->v[job->span->engine].net->end;
    Span__Segment segments[FRAME_SEGMENTS], *pointers[FRAME_SEGMENTS];
    Span__Net net = SPAN__NET__INIT;
    Span__Key key = cstd_span_key(job);
    int rc = CST_OK;

    net.from = &key;
    net.end.data = end->v;
    net.end.len = end->n;
    net.n_chunks = job->layout.n_chunks;
    net.n_segments = memory->n_arenas + 1;
    net.has_wants = net.wants = wants;
    net.served = pointers;
    for (uint32_t first = 0; rc == CST_OK && first < net.n_segments; first += FRAME_SEGMENTS) {
        uint32_t n = net.n_segments - first;

        n = n < FRAME_SEGMENTS ? n : FRAME_SEGMENTS;
        for (uint32_t i = 0; i < n; i++) {
            /* The window is the last one. */
            const struct cstd_segment *segment =
                first + i < memory->n_arenas ? memory->segments[first + i] : job->span->window;

            span__segment__init(&segments[i]);
            segments[i].id = segment->id;
            segments[i].bytes = segment->bytes;
            pointers[i] = &segments[i];
        }
        net.first = first;
        net.n_served = n;
        rc = cstd_machine_send(to->peer, SPAN__MSG_TYPE__SPAN_NET, &net.base, err);
    }
    return rc;
}

static void look_again(struct cstd_job *job);

/* All segments of machine @m are mapped, or one could not be. */
static void end_connect(struct cstd_span *span, uint32_t m)
{
    struct cstd_span_machine *machine = &span->machines[m];

    if (machine->failed.status == CST_OK) {
        machine->joined = true;
        cstd_span_joined(span, m);
        return;
    }
    /* It is connected anew when it tells its engine again. */
    cstd_log_about(CSTD_LOG_ERROR, CSTD_JOB_ABOUT(span->job), "node '%s': %s",
                   cstd_span_name(span, m), machine->failed.text);
    span->failed = machine->failed;
}

/* All engines have answered for a segment of the span. */
static void on_mounted(struct cstd_segment *segment)
{
    struct cstd_job *job = segment->arg;
    struct cstd_span *span = job->span;
    const uint32_t m = segment->remote ? segment->remote_machine : span->self;
    struct cstd_span_machine *machine = &span->machines[m];

    if (segment->err.status != CST_OK && machine->failed.status == CST_OK) {
        machine->failed = segment->err;
    }
    if (--machine->n_mounting == 0) {
        end_connect(span, m);
        look_again(job);
    }
}

int cstd_span_open_window(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_engines *engines = job->daemon->engines;
    struct cstd_span *span = job->span;
    const uint32_t id = span->window_id != 0 ? span->window_id : cstd_engines_segment_id(engines);
    int rc = cstd_segment_open(&span->window, id, CSTD_STAGING_MAX_BYTES, job->daemon->host,
                               job->account, job->name, err);

    if (rc != CST_OK) {
        return rc;
    }
    cstd_segment_keep_private(span->window);
    span->window->engines =
        cst_set_union(cst_set_range(0, engines->n_nodes), cst_set_of(span->engine));
    span->window->populate = 0;
    span->window->bind = -1;
    span->window->served = true;
    span->window->on_mounted = on_mounted;
    span->window->arg = job;
    span->machines[span->self].n_mounting++;
    cstd_engines_mount(engines, span->window);
    return CST_OK;
}

/* Let the engine here copy from the segments of machine @m. */
static int add_segments(struct cstd_job *job, uint32_t m, struct cst_err *err)
{
    struct cstd_engines *engines = job->daemon->engines;
    struct cstd_span *span = job->span;
    struct cstd_span_machine *machine = &span->machines[m];

    for (uint32_t i = 0; i < machine->n_segments; i++) {
        struct cstd_span_segment *there = &machine->segments[i];

        if (cstd_segment_open_remote(&there->segment, cstd_engines_segment_id(engines),
                                     there->bytes, m, there->id, span->engine, err) != CST_OK) {
            return err->status;
        }
        there->segment->on_mounted = on_mounted;
        there->segment->arg = job;
    }
    /* An engine that is up answers later, but one that has failed answers at once: all are counted
     * before the first is asked, and one more until all are. */
    machine->n_mounting = machine->n_segments + 1;
    for (uint32_t i = 0; i < machine->n_segments; i++) {
        cstd_engines_mount(engines, machine->segments[i].segment);
    }
    if (--machine->n_mounting == 0) {
        end_connect(span, m);
    }
    return CST_OK;
}

/* Machine @m has told its engine and all of its segments: connect the engine here with it. */
static int connect_machine(struct cstd_job *job, uint32_t m, struct cst_err *err)
{
    struct cstd_span *span = job->span;
    struct cstd_span_machine *machine = &span->machines[m];
    int rc;

    if (machine->n_chunks != job->layout.n_chunks) {
        return cst_err_set(err, CST_EMISMATCH, "job '%s' has %u chunks here, and %u on node '%s'",
                           job->name, job->layout.n_chunks, machine->n_chunks, span->names[m]);
    }
    machine->connects = true;
    machine->failed = (struct cst_err){0};
    rc = cstd_net_engine_add_peer(&job->daemon->engines->v[span->engine], m, span->token,
                                  sizeof span->token, machine->end, machine->end_bytes, err);
    rc = rc == CST_OK ? add_segments(job, m, err) : rc;
    if (rc != CST_OK) {
        machine->failed = *err;
    }
    return rc;
}

/* Connect the machines that have told all. CST_EAGAIN: some have not, or are being connected. */
static int connect_told(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_span *span = job->span;
    bool all = true;

    for (uint32_t m = 0; m < span->n; m++) {
        struct cstd_span_machine *machine = &span->machines[m];
        const bool told = machine->end != NULL && machine->n_told == machine->n_segments;

        if (m != span->self && told && !machine->connects &&
            connect_machine(job, m, err) != CST_OK) {
            return err->status;
        }
        all = all && machine->joined;
    }
    return all ? CST_OK : CST_EAGAIN;
}

/* What the joining waits for may have come. */
static int look(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_span *span = job->span;
    const struct cstd_engine *engine = &job->daemon->engines->v[span->engine];

    if (span->gone.status != CST_OK) {
        *err = span->gone;
        return err->status;
    }
    if (span->failed.status != CST_OK) {
        *err = span->failed;
        return err->status;
    }
    if (engine->state == CSTD_ENGINE_FAILED) {
        return cst_err_set(err, CST_EENGINE, "job '%s': %s", job->name, engine->why);
    }
    if (engine->net->end.v == NULL || !span->machines[span->self].joined) {
        return CST_EAGAIN;
    }
    for (uint32_t m = 0; !span->told_net && m < span->n; m++) {
        if (m != span->self && tell_net(job, &span->machines[m], span->replaces, err) != CST_OK) {
            return err->status;
        }
    }
    span->told_net = true;
    span->told_restarts = engine->n_restarts;
    return connect_told(job, err);
}

/* Look, and note it when all are connected. */
static int advance(struct cstd_job *job, struct cst_err *err)
{
    const int rc = look(job, err);

    if (rc == CST_OK) {
        job->span->state = CSTD_SPAN_JOINED;
    }
    return rc;
}

int cstd_span_join(struct cstd_job *job, struct cst_err *err)
{
    if (job->span == NULL) {
        return CST_OK;
    }
    job->span->state = CSTD_SPAN_JOINING;
    return cstd_span_open_window(job, err) == CST_OK ? advance(job, err) : err->status;
}

/* Look again, outside of a call of cstd_span_join. */
static void look_again(struct cstd_job *job)
{
    struct cstd_span *span = job->span;
    struct cst_err err = {0};
    int rc;

    if (span->state == CSTD_SPAN_JOINED) {
        rc = connect_told(job, &err);
        if (rc != CST_OK && rc != CST_EAGAIN) {
            cstd_log_about(CSTD_LOG_ERROR, CSTD_JOB_ABOUT(job), "%s", err.text);
        }
    } else if (job->phase == CSTD_COMMIT_JOIN && span->state == CSTD_SPAN_JOINING &&
               advance(job, &err) != CST_EAGAIN) {
        job->daemon->span_ops->met(job, &err);
    }
}

void cstd_span_tell_engine(struct cstd_span *span, uint32_t m)
{
    const struct cstd_engine *engine = &span->job->daemon->engines->v[span->engine];
    struct cst_err unused;

    /* If the link goes down it is told when that is up again. */
    if (engine->net->end.v != NULL && span->machines[m].peer->up != NULL) {
        (void)tell_net(span->job, &span->machines[m], !span->machines[m].joined, &unused);
    }
}

/* The engine was started: the others must know how it is reached now. */
static void tell_again(struct cstd_job *job)
{
    struct cstd_span *span = job->span;
    const struct cstd_engine *engine = &job->daemon->engines->v[span->engine];

    if (engine->net->end.v == NULL || span->members == NULL ||
        (span->told_net && engine->n_restarts == span->told_restarts)) {
        return;
    }
    span->told_net = true;
    span->told_restarts = engine->n_restarts;
    for (uint32_t m = 0; m < span->n; m++) {
        if (m != span->self) {
            cstd_span_tell_engine(span, m);
        }
    }
}

void cstd_span_engine_up(struct cstd_job *job)
{
    if (job->span != NULL && job->span->state == CSTD_SPAN_JOINED) {
        tell_again(job);
    } else if (job->span != NULL) {
        look_again(job);
    }
}

/* Another machine, which is connected, has another engine: what was being copied from it has
 * failed, and the members begin anew. Its segments have the numbers that they had. */
static int take_engine(struct cstd_job *job, struct cstd_span_machine *machine,
                       const Span__Net *net, struct cst_err *err)
{
    struct cstd_span *span = job->span;
    const uint32_t m = cstd_span_number(span, machine);
    uint8_t *end;

    if (net->first > 0 || (machine->end_bytes == net->end.len &&
                           memcmp(machine->end, net->end.data, net->end.len) == 0)) {
        return CST_OK;
    }
    end = malloc(net->end.len + 1);
    if (end == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the engine of node '%s'",
                           span->names[m]);
    }
    memcpy(end, net->end.data, net->end.len);
    if (cstd_net_engine_add_peer(&job->daemon->engines->v[span->engine], m, span->token,
                                 sizeof span->token, end, net->end.len, err) != CST_OK) {
        /* Its link serves other jobs, too. It tells again when it has another engine. */
        cstd_log_about(CSTD_LOG_ERROR, CSTD_JOB_ABOUT(job), "node '%s': %s", span->names[m],
                       err->text);
        free(end);
        return CST_OK;
    }
    free(machine->end);
    machine->end = end;
    machine->end_bytes = net->end.len;
    cstd_span_anew(span, m);
    return CST_OK;
}

/* -- NET -------------------------------------------------------------------------------------- */

static int take_net(struct cstd_job *job, struct cstd_span_machine *machine, const Span__Net *net,
                    struct cst_err *err)
{
    const uint32_t n = net->first == 0 ? net->n_segments : machine->n_segments;

    if (n == 0 || n > MAX_SEGMENTS || net->n_segments != n ||
        (net->first != 0 && net->first != machine->n_told) || net->first > n ||
        net->n_served > n - net->first) {
        return cst_err_set(err, CST_EPROTO, "segments %u to %zu of %u do not follow %u", net->first,
                           net->first + net->n_served, net->n_segments, machine->n_told);
    }
    if (net->n_chunks == 0) {
        return cst_err_set(err, CST_EPROTO, "a layout without chunks");
    }
    machine->n_chunks = net->n_chunks;
    if (net->first == 0) {
        free(machine->end);
        free(machine->segments);
        machine->n_segments = machine->n_told = 0;
        machine->end = malloc(net->end.len + 1);
        machine->segments = calloc(net->n_segments, sizeof *machine->segments);
        if (machine->end == NULL || machine->segments == NULL) {
            free(machine->end);
            machine->end = NULL; /* It has told nothing. */
            return cst_err_set(err, CST_ENOMEM, "no memory for %u segments", net->n_segments);
        }
        memcpy(machine->end, net->end.data, net->end.len);
        machine->end_bytes = net->end.len;
        machine->n_segments = net->n_segments;
    }
    for (size_t i = 0; i < net->n_served; i++) {
        machine->segments[machine->n_told++] =
            (struct cstd_span_segment){.id = net->served[i]->id, .bytes = net->served[i]->bytes};
    }
    look_again(job);
    return CST_OK;
}

static int on_net(void *arg, struct cstd_machine *peer, const uint8_t *body, size_t n,
                  struct cst_err *err)
{
    Span__Net *net = span__net__unpack(NULL, n, body);
    struct cstd_span_machine *machine;
    struct cstd_job *job;
    int rc = CST_OK;

    if (net == NULL) {
        return cst_err_set(err, CST_EPROTO, "no engine of a job");
    }
    machine = cstd_span_sender(arg, peer, net->from, &job);
    if (machine != NULL) {
        if (machine->failed.status != CST_OK) {
            cstd_span_forget_segments(job->span, cstd_span_number(job->span, machine));
        }
        rc = machine->connects ? take_engine(job, machine, net, err)
                               : take_net(job, machine, net, err);
        if (rc == CST_OK && net->wants && job->span->members != NULL) {
            (void)tell_net(job, machine, false, &(struct cst_err){0});
        }
    } else {
        cstd_span_tell_none(arg, job, peer, net->from);
    }
    span__net__free_unpacked(net, NULL);
    return rc;
}

void cstd_span_handle_net(struct cstd_daemon *daemon)
{
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_NET, on_net, daemon);
}

static void forget(struct cstd_span *span, struct cstd_segment *segment)
{
    if (segment != NULL) {
        segment->on_mounted = NULL;
        cstd_engines_unmount(span->job->daemon->engines, segment);
        cstd_segment_unref(segment);
    }
}

void cstd_span_forget_segments(struct cstd_span *span, uint32_t m)
{
    struct cstd_span_machine *machine = &span->machines[m];

    if (m == span->self) {
        forget(span, span->window);
        span->window = NULL;
    }
    for (uint32_t i = 0; i < machine->n_segments; i++) {
        forget(span, machine->segments[i].segment);
    }
    free(machine->segments);
    machine->segments = NULL;
    machine->n_segments = machine->n_told = machine->n_mounting = 0;
    machine->connects = machine->joined = false;
    machine->failed = (struct cst_err){0};
}
