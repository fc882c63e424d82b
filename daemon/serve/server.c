/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/server.h"

#include "daemon/base/daemon_state.h"
#include "daemon/serve/route.h"
#include "daemon/base/log.h"
#include "daemon/memory/staging.h"
#include "daemon/job/readers.h"
#include "daemon/job/saver.h"
#include "daemon/job/standby.h"
#include "daemon/job/worker.h"
#include "daemon/base/access.h"
#include "daemon/budget/quota.h"
#include "daemon/job/job.h"
#include "daemon/session/peer.h"
#include "daemon/settings/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Most refused connections that wait at a time for their first message, to be answered with the
 * reason. Beyond this number a connection is closed at once. Refused connections do not count as
 * sessions. */
enum { REFUSED_AT_A_TIME = 16 };

/* Connections reserved for managers when users have all of max_sessions: enough for all people who
 * look after one machine. */
enum { MANAGERS_RESERVE = 16 };

/* Argument for cstd_log_about: an event of a process. */
#define ABOUT(peer_) (&(struct cstd_log_about){.rank = CSTD_LOG_NONE, .uid = (peer_)->uid})

static int open_spare(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* While a connection cannot be accepted, it stays in the queue and would wake the loop again and
 * again. */

/* How long no connection is accepted after the kernel had no memory for one. */
enum { PAUSE_MS = 100 };

/* The daemon is out of descriptors. Accept a connection with the spare descriptor and close it.
 * Returns whether it is gone. */
static bool refuse_one(struct cstd_server *server, int listen_fd)
{
    int fd;

    cstd_log(cstd_log_due(&server->told, uv_hrtime()) ? CSTD_LOG_ERROR : CSTD_LOG_DEBUG,
             "out of file descriptors: a connection is refused (raise LimitNOFILE)");
    (void)close(server->spare_fd);
    fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) {
        (void)close(fd);
    }
    server->spare_fd = open_spare();
    return fd >= 0;
}

static void on_connection(uv_poll_t *poll, int status, int events);

void cstd_server_accept(struct cstd_server *server)
{
    (void)uv_poll_start(&server->user_poll, UV_READABLE, on_connection);
    (void)uv_poll_start(&server->manager_poll, UV_READABLE, on_connection);
}

static void accept_again(uv_timer_t *timer)
{
    cstd_server_accept(timer->data);
}

static void pause_accepting(struct cstd_server *server)
{
    (void)uv_poll_stop(&server->user_poll);
    (void)uv_poll_stop(&server->manager_poll);
    (void)uv_timer_start(&server->pause, accept_again, PAUSE_MS, 0);
}

/* max_sessions limits the users' connections. Managers may connect beyond it, up to their
 * reserve. */
static int check_number(const struct cstd_server *server, bool manager, struct cst_err *refusal)
{
    uint32_t limit = server->daemon->config->max_sessions;
    uint32_t n_users = server->n_sessions - server->n_managers;

    if (manager && server->n_sessions >= limit + MANAGERS_RESERVE) {
        return cst_err_set(refusal, CST_EBUSY,
                           "%u connections, %u of them managers': the limit is %u (max_sessions in "
                           "[job]) and %d for managers",
                           server->n_sessions, server->n_managers, limit, MANAGERS_RESERVE);
    }
    if (!manager && n_users >= limit) {
        return cst_err_set(refusal, CST_EBUSY,
                           "%u connections, the limit is %u (max_sessions in [job])", n_users,
                           limit);
    }
    return CST_OK;
}

/* Check whether @peer may connect, and charge the connection to @account. A manager's connection is
 * not charged. */
static void check_access(const struct cstd_server *server, const struct cstd_peer *peer,
                         struct cstd_quota_account *account, bool manager, struct cst_err *refusal)
{
    const struct cstd_settings *config = server->daemon->config;

    if (!cstd_access_allows(&config->access, peer->uid, peer->groups, peer->n_groups)) {
        (void)cst_err_set(refusal, CST_EDENIED, "uid %u is not allowed by 'access' in [daemon]",
                          (unsigned)peer->uid);
        cstd_log_about(CSTD_LOG_WARNING, ABOUT(peer), "pid %d: %s", (int)peer->pid, refusal->text);
    } else if (check_number(server, manager, refusal) == CST_OK && !manager) {
        (void)cstd_quota_take(account, CSTD_QUOTA_SESSIONS, 1, "this process", refusal);
    }
}

static void on_closed(struct cstd_session *session)
{
    struct cstd_server *server = session->daemon->server;

    TAILQ_REMOVE(&server->sessions, session, link);
    if (session->refusal.status != CST_OK) {
        server->n_refused--;
    } else {
        server->n_sessions--;
        server->n_managers -= session->manager;
        cstd_quota_give(session->manager ? NULL : session->account, CSTD_QUOTA_SESSIONS, 1);
    }
    cstd_quota_unref(session->account);
}

static void on_gone(struct cstd_session *session)
{
    if (session->staging != NULL) {
        cstd_staging_abandon(session->staging);
        session->staging = NULL;
    }
    cstd_saver_gone(session);
    cstd_readers_gone(session);
    cstd_standby_drop(session);
    session->daemon->n_barring -= session->bars_jobs;
    if (session->job != NULL) {
        cstd_worker_hangup(session->job, session->rank);
    }
}

static const struct cstd_session_ops ops = {
    .on_frame = cstd_route, .on_gone = on_gone, .on_closed = on_closed};

int cstd_server_take(struct cstd_server *server, int fd, const struct cstd_peer *peer,
                     struct cstd_quota_account *account, bool manager,
                     const struct cst_err *refusal, struct cst_err *err)
{
    struct cstd_session *session;
    int rc =
        cstd_session_open(&session, server->daemon, &ops, fd, peer, account, manager, refusal, err);

    if (rc != CST_OK) {
        return rc;
    }
    TAILQ_INSERT_TAIL(&server->sessions, session, link);
    if (refusal->status == CST_OK) {
        server->n_sessions++;
        server->n_managers += manager;
    } else {
        server->n_refused++;
    }
    return CST_OK;
}

static void admit(struct cstd_server *server, int fd, bool manager)
{
    struct cstd_daemon *daemon = server->daemon;
    struct cstd_quota_account *account = NULL;
    struct cst_err refusal = {0}, err;
    struct cstd_peer peer;
    int rc;

    if (!cstd_peer_open(&peer, fd)) {
        (void)close(fd);
        return;
    }
    rc = cstd_quota_open(daemon->quota, peer.uid, peer.groups, peer.n_groups, &account, &err);
    if (rc == CST_OK) {
        check_access(server, &peer, account, manager, &refusal);
        rc = refusal.status != CST_OK && server->n_refused >= REFUSED_AT_A_TIME
                 ? cst_err_set(&err, refusal.status, "refused without a message to the client: %s",
                               refusal.text)
                 : cstd_server_take(server, fd, &peer, account, manager, &refusal, &err);
    }
    if (rc != CST_OK) {
        cstd_log_about(refusal.status != CST_OK ? CSTD_LOG_DEBUG : CSTD_LOG_ERROR, ABOUT(&peer),
                       "pid %d: %s", (int)peer.pid, err.text);
        /* check_access charged the connection. */
        if (account != NULL && !manager && refusal.status == CST_OK) {
            cstd_quota_give(account, CSTD_QUOTA_SESSIONS, 1);
        }
        cstd_quota_unref(account);
        cstd_peer_close(&peer);
        (void)close(fd);
    }
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct cstd_server *server = poll->data;
    bool manager = poll == &server->manager_poll;
    int listen_fd = manager ? server->manager.fd : server->user.fd;
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    (void)status;
    (void)events;
    if (fd >= 0) {
        admit(server, fd, manager);
    } else if (errno == ENOMEM || errno == ENOBUFS ||
               ((errno == EMFILE || errno == ENFILE) && !refuse_one(server, listen_fd))) {
        pause_accepting(server);
    }
}

static int init_poll(struct cstd_server *server, uv_poll_t *poll, const struct cstd_listen *at,
                     struct cst_err *err)
{
    const int rc = uv_poll_init(&server->daemon->loop, poll, at->fd);

    poll->data = server;
    return rc == 0 ? CST_OK
                   : cst_err_set(err, CST_ENOMEM, "%.108s cannot be watched: %s", at->path,
                                 uv_strerror(rc));
}

int cstd_server_open(struct cstd_server *server, struct cstd_daemon *daemon, struct cst_err *err)
{
    const struct cstd_settings *config = daemon->config;
    int rc;

    server->daemon = daemon;
    server->n_sessions = server->n_managers = server->n_refused = 0;
    server->looked_ns = 0;
    cstd_lingers_init(&server->lingers, &daemon->loop);
    server->spare_fd = -1;
    TAILQ_INIT(&server->sessions);
    cstd_turns_init(&server->turns);
    rc = cstd_listen_inherit(&server->user, &server->manager, &daemon->keeper, err);
    if (rc == CST_OK && server->user.fd < 0) {
        rc = cstd_listen_open(&server->user, config->socket, 0660, err);
    }
    if (rc != CST_OK) {
        goto err_after_inherit;
    }
    if (server->manager.fd < 0) {
        rc = cstd_listen_open(&server->manager, config->manager_socket, 0600, err);
        if (rc != CST_OK) {
            goto err_after_user;
        }
    }
    rc = init_poll(server, &server->user_poll, &server->user, err);
    if (rc != CST_OK) {
        goto err_after_user;
    }
    rc = init_poll(server, &server->manager_poll, &server->manager, err);
    if (rc != CST_OK) {
        goto err_after_poll;
    }
    server->spare_fd = open_spare();
    (void)uv_timer_init(&daemon->loop, &server->pause);
    server->pause.data = server;
    return CST_OK;

err_after_poll:
    uv_close((uv_handle_t *)&server->user_poll, NULL);
err_after_user:
    cstd_listen_close(&server->user);
err_after_inherit:
    cstd_listen_close(&server->manager);
    cstd_lingers_close(&server->lingers);
    return rc;
}

void cstd_server_stop(struct cstd_server *server)
{
    (void)uv_poll_stop(&server->user_poll);
    (void)uv_poll_stop(&server->manager_poll);
    uv_close((uv_handle_t *)&server->pause, NULL);
    uv_close((uv_handle_t *)&server->user_poll, NULL);
    uv_close((uv_handle_t *)&server->manager_poll, NULL);
    cstd_listen_close(&server->user);
    cstd_listen_close(&server->manager);
    if (server->spare_fd >= 0) {
        (void)close(server->spare_fd);
        server->spare_fd = -1;
    }
}
