/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of another daemon that takes over all jobs (daemon/revive/handover.h), and of managers
 * who end this one. */
#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/serve/serve.h"
#include "proto/cistern.pb-c.h"
#include "daemon/job/jobs.h"
#include "daemon/ledger/ledger.h"
#include "daemon/serve/server.h"
#include "daemon/session/session.h"

#include <signal.h>

/* Only managers may end the daemon. */
static bool admit(struct cstd_session *session, uint64_t id)
{
    if (!session->manager) {
        cstd_serve_error(session, id, CST_EDENIED,
                         "a daemon is ended on its manager socket, and this is another one: "
                         "cistern --manager-socket %s drain",
                         session->daemon->server->manager.path);
    }
    return session->manager;
}

void cstd_serve_handover(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__HandoverGet *get = body;
    struct cstd_daemon *daemon = session->daemon;
    const struct cstd_keeper *keeper = &daemon->keeper;
    Cistern__HandoverPart part = CISTERN__HANDOVER_PART__INIT;
    char texts[CST_FRAME_MAX_FDS][CSTD_KEPT_NAME_BYTES], *names[CST_FRAME_MAX_FDS];
    int fds[CST_FRAME_MAX_FDS];
    uint32_t n = 0;
    struct cst_err err = {0};

    if (!admit(session, id)) {
        return;
    }
    if (get->first == 0 && cstd_ledger_keep_all(daemon, &err) != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    for (; n < CST_FRAME_MAX_FDS && get->first < keeper->n_stored &&
           get->first + n < keeper->n_stored;
         n++) {
        /* Earlier versions read long names only. */
        (void)cstd_kept_name_write(&keeper->stored[get->first + n].name, true, texts[n]);
        names[n] = texts[n];
        fds[n] = keeper->stored[get->first + n].fd;
    }
    part.total = keeper->n_stored;
    part.has_changes = 1;
    part.changes = keeper->n_changes;
    part.n_names = n;
    part.names = names;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_HANDOVER_PART, &part.base, fds, n);
}

void cstd_serve_handover_end(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__HandoverEnd *end = body;
    struct cstd_daemon *daemon = session->daemon;
    struct cst_err err = {0};

    if (!admit(session, id)) {
        return;
    }
    if (cstd_ledger_keep_all(daemon, &err) != CST_OK || end->total != daemon->keeper.n_stored ||
        (end->has_changes && end->changes != daemon->keeper.n_changes)) {
        cstd_serve_error(session, id, CST_EBUSY,
                         "jobs have come or gone while they were handed over: try again");
        return;
    }
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
    daemon->leave(daemon);
}

void cstd_serve_bar(struct cstd_session *session, uint64_t id, void *body)
{
    struct cstd_daemon *daemon = session->daemon;

    (void)body;
    if (!admit(session, id)) {
        return;
    }
    cstd_log(CSTD_LOG_NOTICE, "no new jobs while pid %d (uid %u) waits for %u job%s",
             (int)session->peer.pid, (unsigned)session->peer.uid, daemon->jobs->n,
             daemon->jobs->n == 1 ? "" : "s");
    daemon->n_barring += !session->bars_jobs;
    session->bars_jobs = true;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
}

void cstd_serve_drain(struct cstd_session *session, uint64_t id, void *body)
{
    const struct cstd_daemon *daemon = session->daemon;

    (void)body;
    if (!admit(session, id)) {
        return;
    }
    cstd_log(CSTD_LOG_NOTICE, "ended by pid %d (uid %u); %u job%s", (int)session->peer.pid,
             (unsigned)session->peer.uid, daemon->jobs->n, daemon->jobs->n == 1 ? "" : "s");
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
    (void)raise(SIGTERM); /* Handled when this request has been served. */
}
