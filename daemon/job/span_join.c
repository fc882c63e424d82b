/* SPDX-License-Identifier: Apache-2.0 */
/* Joining: the engines of a span learn how the others are reached, and what they serve. */
#include "daemon/base/daemon_state.h"
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

const char *cstd_span_listen(const struct cstd_daemon *daemon)
{
    static char host[CSTD_MACHINE_ADDRESS_BYTES];
    char *port;

    (void)snprintf(host, sizeof host, "%s", cstd_links_address(daemon->links));
    port = strrchr(host, ':');
    if (port != NULL) {
        *port = '\0';
    }
    return host;
}

/* Tell @to of the engine here and of the arenas, which it serves. */
static int tell_net(struct cstd_job *job, struct cstd_span_machine *to, struct cst_err *err)
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

/* All engines have answered for a segment of the span. */
static void on_mounted(struct cstd_segment *segment)
{
    struct cstd_job *job = segment->arg;
    struct cstd_span *span = job->span;

    if (segment->err.status != CST_OK && span->failed.status == CST_OK) {
        span->failed = segment->err;
    }
    if (--span->n_mounting > 0 || span->state != CSTD_SPAN_JOINING ||
        job->phase != CSTD_COMMIT_JOIN) {
        return;
    }
    if (span->failed.status == CST_OK && !span->connects) {
        look_again(job);
        return;
    }
    span->state = span->failed.status == CST_OK ? CSTD_SPAN_JOINED : span->state;
    job->daemon->span_ops->met(job, &span->failed);
}

/* Make the window from which the others copy what they have asked for. */
static int open_window(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_engines *engines = job->daemon->engines;
    struct cstd_span *span = job->span;
    int rc =
        cstd_segment_open(&span->window, cstd_engines_segment_id(engines), CSTD_STAGING_MAX_BYTES,
                          job->daemon->host, job->account, job->name, err);

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
    span->n_mounting++;
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
        span->n_mounting++;
    }
    return CST_OK;
}

static int connect_all(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_engines *engines = job->daemon->engines;
    struct cstd_span *span = job->span;
    int rc = CST_OK;

    span->connects = true;
    for (uint32_t m = 0; rc == CST_OK && m < span->n; m++) {
        struct cstd_span_machine *machine = &span->machines[m];

        if (machine->peer == NULL) {
            continue;
        }
        rc = cstd_net_engine_add_peer(&engines->v[span->engine], m, span->token, sizeof span->token,
                                      machine->end, machine->end_bytes, err);
        rc = rc == CST_OK ? add_segments(job, m, err) : rc;
    }
    /* An engine that is up answers later, but one that has failed answers at once: all are counted
     * before the first is asked. */
    span->n_mounting++;
    for (uint32_t m = 0; rc == CST_OK && m < span->n; m++) {
        for (uint32_t i = 0; i < span->machines[m].n_segments; i++) {
            cstd_engines_mount(engines, span->machines[m].segments[i].segment);
        }
    }
    if (--span->n_mounting == 0 && rc == CST_OK) { /* All have failed at once. */
        *err = span->failed;
        return err->status != CST_OK
                   ? err->status
                   : cst_err_set(err, CST_EINTERNAL, "job '%s': no segment was mapped", job->name);
    }
    return rc != CST_OK ? rc : CST_EAGAIN; /* on_mounted follows. */
}

/* True if the engines and segments of all other machines are known. */
static bool all_told(const struct cstd_span *span)
{
    for (uint32_t m = 0; m < span->n; m++) {
        const struct cstd_span_machine *machine = &span->machines[m];

        if (machine->peer != NULL &&
            (machine->end == NULL || machine->n_told < machine->n_segments)) {
            return false;
        }
    }
    return true;
}

/* All nodes have cut the model into the same chunks. */
static int compare_chunks(const struct cstd_job *job, struct cst_err *err)
{
    const struct cstd_span *span = job->span;

    for (uint32_t m = 0; m < span->n; m++) {
        if (span->machines[m].peer != NULL && span->machines[m].n_chunks != job->layout.n_chunks) {
            return cst_err_set(err, CST_EMISMATCH,
                               "job '%s' has %u chunks here, and %u on node '%s'", job->name,
                               job->layout.n_chunks, span->machines[m].n_chunks, span->names[m]);
        }
    }
    return CST_OK;
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
    if (engine->state == CSTD_ENGINE_FAILED) {
        return cst_err_set(err, CST_EENGINE, "job '%s': %s", job->name, engine->why);
    }
    if (engine->net->end.v == NULL || span->n_mounting > 0) {
        return CST_EAGAIN;
    }
    for (uint32_t m = 0; !span->told_net && m < span->n; m++) {
        if (span->machines[m].peer != NULL && tell_net(job, &span->machines[m], err) != CST_OK) {
            return err->status;
        }
    }
    span->told_net = true;
    span->told_restarts = engine->n_restarts;
    if (!all_told(span)) {
        return CST_EAGAIN;
    }
    return compare_chunks(job, err) == CST_OK ? connect_all(job, err) : err->status;
}

int cstd_span_join(struct cstd_job *job, struct cst_err *err)
{
    if (job->span == NULL) {
        return CST_OK;
    }
    job->span->state = CSTD_SPAN_JOINING;
    return open_window(job, err) == CST_OK ? look(job, err) : err->status;
}

/* Look again, outside of a call of cstd_span_join. */
static void look_again(struct cstd_job *job)
{
    struct cst_err err = {0};

    if (job->phase == CSTD_COMMIT_JOIN && job->span->state == CSTD_SPAN_JOINING &&
        !job->span->connects && job->span->n_mounting == 0 && look(job, &err) != CST_EAGAIN) {
        job->daemon->span_ops->met(job, &err);
    }
}

/* The engine was started again: the others must know how it is reached now. */
static void tell_again(struct cstd_job *job)
{
    struct cstd_span *span = job->span;
    const struct cstd_engine *engine = &job->daemon->engines->v[span->engine];
    struct cst_err unused;

    if (engine->net->end.v == NULL || engine->n_restarts == span->told_restarts) {
        return;
    }
    span->told_restarts = engine->n_restarts;
    for (uint32_t m = 0; m < span->n; m++) {
        if (span->machines[m].peer != NULL) {
            /* If the link is down, it is told when that is up again. */
            (void)tell_net(job, &span->machines[m], &unused);
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

void cstd_span_tell_engine(struct cstd_span *span, uint32_t m)
{
    struct cst_err unused;

    if (span->job->daemon->engines->v[span->engine].net->end.v != NULL) {
        (void)tell_net(span->job, &span->machines[m], &unused);
    }
}

/* Another machine has another engine: what was being copied from it has failed, and the members
 * begin anew. */
static int take_engine(struct cstd_job *job, struct cstd_span_machine *machine,
                       const Span__Net *net, struct cst_err *err)
{
    struct cstd_span *span = job->span;
    const uint32_t m = (uint32_t)(machine - span->machines);

    if (net->first > 0 || (machine->end_bytes == net->end.len &&
                           memcmp(machine->end, net->end.data, net->end.len) == 0)) {
        return CST_OK;
    }
    free(machine->end);
    machine->end = malloc(net->end.len + 1);
    if (machine->end == NULL) {
        machine->end_bytes = 0;
        return cst_err_set(err, CST_ENOMEM, "no memory for the engine of node '%s'",
                           span->names[m]);
    }
    memcpy(machine->end, net->end.data, net->end.len);
    machine->end_bytes = net->end.len;
    if (cstd_net_engine_add_peer(&job->daemon->engines->v[span->engine], m, span->token,
                                 sizeof span->token, machine->end, machine->end_bytes,
                                 err) != CST_OK) {
        return err->status;
    }
    cstd_span_anew(span, m);
    return CST_OK;
}

/* -- NET -------------------------------------------------------------------------------------- */

static int take_net(struct cstd_job *job, struct cstd_span_machine *machine, const Span__Net *net,
                    struct cst_err *err)
{
    const uint32_t n = net->first == 0 ? net->n_segments : machine->n_segments;

    if (n == 0 || n > MAX_SEGMENTS || net->n_segments != n || net->first != machine->n_told ||
        net->first > n || net->n_served > n - net->first) {
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
        machine->n_segments = 0;
        machine->end = malloc(net->end.len + 1);
        machine->segments = calloc(net->n_segments, sizeof *machine->segments);
        if (machine->end == NULL || machine->segments == NULL) {
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
    job = cstd_span_job(arg, net->from);
    machine = job != NULL ? cstd_span_find(job->span, peer) : NULL;
    if (machine != NULL && machine->life == net->from->life) {
        rc = job->span->state == CSTD_SPAN_JOINED ? take_engine(job, machine, net, err)
                                                  : take_net(job, machine, net, err);
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

void cstd_span_forget_segments(struct cstd_span *span)
{
    forget(span, span->window);
    for (uint32_t m = 0; m < span->n; m++) {
        for (uint32_t i = 0; i < span->machines[m].n_segments; i++) {
            forget(span, span->machines[m].segments[i].segment);
        }
    }
}
