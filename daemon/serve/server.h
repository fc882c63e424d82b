/* SPDX-License-Identifier: Apache-2.0 */
/* Accepts connections: two sockets (for users and for managers), access rules, limits on the number
 * of sessions. Loop thread only. */
#ifndef CST_SERVER_H
#define CST_SERVER_H

#include "daemon/base/log.h"
#include "daemon/session/linger.h"
#include "daemon/session/listen.h"
#include "daemon/session/session.h"

#include <uv.h>

struct cstd_daemon;

struct cstd_server {
    struct cstd_daemon *daemon;
    struct cstd_listen user, manager;
    uv_poll_t user_poll, manager_poll;
    uv_timer_t pause; /* Runs while no connection is accepted because memory is short. */
    /* Descriptor that is closed for a moment to accept and refuse a connection when the daemon is
     * out of descriptors. */
    int spare_fd;
    TAILQ_HEAD(, cstd_session) sessions;
    uint32_t n_sessions; /* Number of sessions in the list that were admitted. */
    uint32_t n_managers; /* Number of admitted sessions on the manager socket. */
    /* Number of sessions in the list that only wait to be told why they are refused. */
    uint32_t n_refused;
    struct cstd_unread_total unread; /* Descriptors in flight to all sessions. */
    /* When sessions that do not read their descriptors were last searched for; monotonic. */
    uint64_t looked_ns;
    struct cstd_log_pace told;   /* Lines about connections for which there is no descriptor. */
    struct cstd_turns turns;     /* Sessions with a request to read. */
    struct cstd_lingers lingers; /* Sockets of ended sessions with descriptors in flight. */
};

/* Listen on both sockets: those that systemd passed, or the configured paths. The caller has
 * initialised @server->unread. Statuses are those of cstd_listen_open, and CST_ENOMEM: the loop
 * cannot watch a socket. */
int cstd_server_open(struct cstd_server *server, struct cstd_daemon *daemon, struct cst_err *err);

/* Accept connections from now on. Those that came earlier have waited. */
void cstd_server_accept(struct cstd_server *server);

/* Make a session of the connected socket @fd and enter it in the list. Arguments and CST_ENOMEM are
 * those of cstd_session_open. When the session ends, the connection that @account was charged with
 * is given back, and the reference to @account is dropped. */
int cstd_server_take(struct cstd_server *server, int fd, const struct cstd_peer *peer,
                     struct cstd_quota_account *account, bool manager,
                     const struct cst_err *refusal, struct cst_err *err);

/* Stop accepting and remove the sockets. Sessions stay. */
void cstd_server_stop(struct cstd_server *server);

#endif
