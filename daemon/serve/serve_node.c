/* SPDX-License-Identifier: Apache-2.0 */
/* Serves what managers ask about links to other nodes. */
#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/links/connection.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/job/span.h"
#include "daemon/job/span_view.h"
#include "daemon/links/links.h"
#include "daemon/serve/job_info.h"
#include "daemon/serve/serve.h"
#include "daemon/serve/server.h"
#include "proto/cistern.pb-c.h"

/* Most nodes of a NodeListPart, and most jobs that each of them names. */
enum { NODE_PAGE = 32, NAMED_JOBS = 16 };

/* Check that there are links and, if something is to change, that a manager asks. */
static bool admit(struct cstd_session *session, uint64_t id, bool changes)
{
    if (session->daemon->links == NULL) {
        cstd_serve_error(session, id, CST_EUNSUPPORTED,
                         "this daemon has no links to other nodes: set 'listen' in [node] of its "
                         "configuration (see cistern-nodes(7))");
        return false;
    }
    if (changes && !session->manager) {
        cstd_serve_error(session, id, CST_EDENIED,
                         "nodes are changed on the manager socket, and this is another one: "
                         "cistern --manager-socket %s node ...",
                         session->daemon->server->manager.path);
        return false;
    }
    return true;
}

static void answer(struct cstd_session *session, uint64_t id, int rc, const struct cst_err *err)
{
    if (rc != CST_OK) {
        cstd_session_error(session, id, err);
    } else {
        cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
    }
}

static void tell(const struct cstd_session *session, const char *what, const char *name)
{
    cstd_log(CSTD_LOG_NOTICE, "node '%s' is %s by pid %d (uid %u)", name, what,
             (int)session->peer.pid, (unsigned)session->peer.uid);
}

static void describe_self(const struct cstd_links *links, Cistern__NodeInfo *out)
{
    const struct cstd_hello *self = cstd_links_self(links);

    out->name = (char *)(uintptr_t)self->name;
    out->address = (char *)(uintptr_t)cstd_links_address(links);
    out->identity = (char *)(uintptr_t)cstd_links_fingerprint(links);
    out->state = (char *)(uintptr_t) "self";
    out->program = (char *)(uintptr_t)self->program;
    out->has_protocol = 1;
    out->protocol = self->max_version;
    out->isa = (char *)(uintptr_t)self->isa;
    out->has_instance = 1;
    out->instance = self->instance;
}

static const char *state_of(const struct cstd_machine *node)
{
    if (node->entry.drained) {
        return node->up != NULL ? "draining" : "drained";
    }
    return node->up != NULL ? "up" : "down";
}

static void describe(const struct cstd_machine *node, Cistern__NodeInfo *out)
{
    const struct cstd_connection *up = node->up;

    out->name = (char *)(uintptr_t)node->entry.name;
    out->address = (char *)(uintptr_t)node->entry.address;
    out->identity = (char *)(uintptr_t)node->entry.identity;
    out->state = (char *)(uintptr_t)state_of(node);
    out->has_since_s = 1;
    out->since_s = (double)(uv_hrtime() - node->since_ns) / 1e9;
    out->reason = node->why.status != CST_OK ? (char *)(uintptr_t)node->why.text : NULL;
    if (node->hello.instance != 0) {
        out->program = (char *)(uintptr_t)node->hello.program;
        out->has_protocol = 1;
        out->protocol = node->hello.max_version < CSTD_LINK_PROTOCOL ? node->hello.max_version
                                                                     : CSTD_LINK_PROTOCOL;
        out->isa = (char *)(uintptr_t)node->hello.isa;
        out->has_instance = 1;
        out->instance = node->hello.instance;
    }
    if (up != NULL) {
        out->has_round_trip_s = node->round_trip_ns > 0;
        out->round_trip_s = (double)node->round_trip_ns / 1e9;
        out->has_sent_bytes = out->has_received_bytes = out->has_waiting_bytes = 1;
        out->sent_bytes = up->sent_bytes;
        out->received_bytes = up->received_bytes;
        out->waiting_bytes = cstd_connection_waiting(up);
    }
}

/* Add the jobs that use the link to @machine, of those that the user may see. */
static void describe_jobs(const struct cstd_session *session, const struct cstd_machine *machine,
                          char *names[NAMED_JOBS], Cistern__NodeInfo *out)
{
    const struct cstd_job *job;

    out->jobs = names;
    TAILQ_FOREACH(job, &session->daemon->jobs->living, link)
    {
        struct cstd_span_node part;
        uint32_t m;

        if (!cstd_serve_may_see(session, job) || !cstd_span_view_find(job, machine, &m)) {
            continue;
        }
        cstd_span_view_node(job, m, &part);
        if (out->n_jobs < NAMED_JOBS) {
            names[out->n_jobs++] = (char *)(uintptr_t)job->name;
        }
        out->job_count++;
        out->jobs_received_bytes += part.received;
        out->jobs_sent_bytes += part.sent;
    }
    out->has_job_count = out->has_jobs_received_bytes = out->has_jobs_sent_bytes =
        out->job_count > 0;
}

void cstd_serve_node_list(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__NodeListGet *get = body;
    Cistern__NodeListPart part = CISTERN__NODE_LIST_PART__INIT;
    Cistern__NodeInfo infos[NODE_PAGE], *pointers[NODE_PAGE];
    char *names[NODE_PAGE][NAMED_JOBS];
    const struct cstd_machine *node = NULL;
    bool more = true;

    if (!admit(session, id, false)) {
        return;
    }
    /* Number 0 is this node. */
    for (uint32_t i = 0; more && part.n_nodes < NODE_PAGE; i++) {
        Cistern__NodeInfo *info = &infos[part.n_nodes];

        if (i >= get->first) {
            cistern__node_info__init(info);
            if (node == NULL) {
                describe_self(session->daemon->links, info);
            } else {
                describe(node, info);
                describe_jobs(session, node, names[part.n_nodes], info);
            }
            pointers[part.n_nodes++] = info;
        }
        node = node == NULL ? TAILQ_FIRST(cstd_links_machines(session->daemon->links))
                            : TAILQ_NEXT(node, link);
        more = node != NULL;
    }
    part.nodes = pointers;
    part.more = more;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_NODE_LIST_PART, &part.base, NULL, 0);
}

void cstd_serve_node_add(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__NodeAdd *add = body;
    struct cst_err err = {0};
    int rc;

    if (!admit(session, id, true)) {
        return;
    }
    rc = cstd_links_add(session->daemon->links, add->name, add->address, add->identity, &err);
    if (rc == CST_OK) {
        tell(session, "added", add->name);
        cstd_span_add_nodes(session->daemon);
    }
    answer(session, id, rc, &err);
}

/* Remove the node from the jobs of which it is a member. Returns whether there was one. */
static bool drop_from_jobs(struct cstd_daemon *daemon, const char *name)
{
    struct cstd_job *job, *next;
    bool any = false;

    for (job = TAILQ_FIRST(&daemon->jobs->living); job != NULL; job = next) {
        next = TAILQ_NEXT(job, link);
        any = cstd_span_drop_node(job, name) || any;
    }
    return any;
}

void cstd_serve_node_drop(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__NodeName *drop = body;
    struct cst_err err = {0};
    int rc;

    if (!admit(session, id, true)) {
        return;
    }
    rc = cstd_links_drop(session->daemon->links, drop->name, &err);
    if (rc == CST_OK || rc == CST_ENOTFOUND) {
        const bool waited = drop_from_jobs(session->daemon, drop->name);

        rc = waited ? CST_OK : rc; /* Jobs that waited for a node that was dropped before. */
    }
    if (rc == CST_OK) {
        tell(session, "dropped", drop->name);
    }
    answer(session, id, rc, &err);
}

void cstd_serve_node_drain(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__NodeName *drain = body;
    struct cst_err err = {0};
    int rc;

    if (!admit(session, id, true)) {
        return;
    }
    rc = cstd_links_drain(session->daemon->links, drain->name, &err);
    if (rc == CST_OK) {
        tell(session, "drained", drain->name);
    }
    answer(session, id, rc, &err);
}
