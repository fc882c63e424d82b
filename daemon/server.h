/* SPDX-License-Identifier: Apache-2.0 */
/* Accepting connections: two sockets (everybody's and the managers'), access rules, the limit on
 * sessions. */
#ifndef CST_SERVER_H
#define CST_SERVER_H

#include "daemon/linger.h"
#include "daemon/listen.h"
#include "daemon/session.h"

#include <uv.h>

struct cst_daemon;

struct cst_server {
    struct cst_daemon *daemon;
    struct cst_listen user, manager;
    uv_poll_t user_poll, manager_poll;
    int spare_fd; /* given up for a moment to refuse a connection when descriptors run out */
    TAILQ_HEAD(, cst_session) sessions;
    uint32_t n_sessions;            /* in the list, admitted */
    uint32_t n_managers;            /* of these, on the manager socket */
    uint32_t n_refused;             /* in the list, to be told why they are not */
    struct cst_unread_total unread; /* descriptors in flight to all of them */
    uint64_t looked_ns;     /* when those who do not read them were last looked for; monotonic */
    struct cst_turns turns; /* sessions with a request to read */
    struct cst_lingers lingers; /* sockets of ended sessions with some in flight */
};

/* Listen on both sockets: those that systemd passed, or the configured paths. @server->unread has
 * been initialised. As cst_listen_open. */
int cst_server_open(struct cst_server *server, struct cst_daemon *daemon, struct cst_err *err);

/* Enter @session in the list, and take it out when it ends: with the connection that its account
 * counts, and the account's reference. */
void cst_server_add(struct cst_server *server, struct cst_session *session);
void cst_server_remove(struct cst_server *server, struct cst_session *session);

/* Stop accepting and remove the sockets. Sessions stay. */
void cst_server_stop(struct cst_server *server);

#endif
