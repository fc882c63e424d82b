/* SPDX-License-Identifier: Apache-2.0 */
/* One connection: greeting, credits, replies out, back-pressure, end.
 *
 *   NEW  --Hello--------------------------------------------> OPEN
 *   NEW  --anything else: an error; or nothing for 10 s-----> DOOMED
 *   OPEN --hang-up, broken frame, does not read for 10 s----> DOOMED
 *   DOOMED --(end of the turn)--> closed, freed
 *
 * A session may be attached to a job as one rank (job.h). It is never closed inside a callback that
 * may still use it: cst_session_doom marks it, the end of the turn closes it. */
#ifndef CST_SESSION_H
#define CST_SESSION_H

#include "daemon/later.h"
#include "daemon/outbox.h"
#include "daemon/peer.h"
#include "daemon/pending.h"

#include <protobuf-c/protobuf-c.h>
#include <uv.h>

struct cst_daemon;
struct cst_job;
struct cst_quota_account;
struct cst_server;
struct cst_staging;

enum cst_session_state { CST_SESSION_NEW, CST_SESSION_OPEN, CST_SESSION_DOOMED };

struct cst_session {
    TAILQ_ENTRY(cst_session) link; /* in the server's list */
    struct cst_daemon *daemon;
    enum cst_session_state state;
    int fd;               /* non-blocking; -1: closed */
    bool manager;         /* came by the manager socket */
    bool hung_up;         /* the peer closed its end */
    bool last_words;      /* to be closed when what waits is sent */
    struct cst_turn turn; /* in the line of sessions with a request to read */
    struct cst_peer peer;
    struct cst_quota_account *account; /* of the peer's uid; a reference */
    struct cst_err refusal;            /* status != 0: what its first message is answered with */
    struct cst_pending_list requests;  /* in flight */
    uint32_t n_requests;               /* of them */
    struct cst_job *job;               /* attached to; NULL */
    uint32_t rank;                     /* in it */
    bool job_removed;                  /* its job was taken away: for words */
    struct cst_staging *staging;       /* NULL: none was asked for */
    struct cst_outbox outbox;          /* replies that wait */
    struct cst_unread unread;          /* descriptors in flight to it */
    int polled;                        /* events that are being polled */
    uv_poll_t poll;
    uv_timer_t stall;     /* runs while replies wait, and in NEW */
    uv_timer_t retry;     /* runs while they do not wait for the socket (outbox.retry) */
    unsigned n_handles;   /* not closed yet */
    struct cst_later end; /* closes it */
};

/* Take over @fd, @peer, and @account, the account of the peer's uid, of which a connection was
 * taken unless it is a manager's or refused. With @refusal->status != 0 its first message is
 * answered with that and it is closed. CST_ENOMEM: nothing was taken over. */
int cst_session_open(struct cst_daemon *daemon, int fd, const struct cst_peer *peer,
                     struct cst_quota_account *account, bool manager, const struct cst_err *refusal,
                     struct cst_err *err);

/* It said Hello, and the version fits: it is OPEN. */
void cst_session_greeted(struct cst_session *session);

/* Close @session at the end of this turn; @why goes to the log unless it is NULL. */
void cst_session_doom(struct cst_session *session, const char *why);

/* Answer request @id with @message of @type (NULL: no body) and @n_fds descriptors, which stay the
 * caller's. */
void cst_session_reply(struct cst_session *session, uint64_t id, uint16_t type,
                       const ProtobufCMessage *message, const int *fds, unsigned n_fds);

/* Answer request @id with an Error. */
void cst_session_error(struct cst_session *session, uint64_t id, const struct cst_err *err);

/* Tell the peer, unasked, why its connection is going to be closed: calls that it makes later fail
 * with these words. */
void cst_session_farewell(struct cst_session *session, const struct cst_err *why);

/* Read requests of the sessions in the line of @server, for READ_NS at most, so that requests of
 * other users that have come meanwhile get into the line. Called after each look at the sockets. */
void cst_session_read_turns(struct cst_server *server);

/* Find out now, not at the next turn, whether the peer has hung up. */
bool cst_session_is_gone(struct cst_session *session);

/* -- requests that are answered later --------------------------------------------------------- */

/* Open one for request @id of @session, in its list and in @job's (NULL: it does not end with a
 * job). As cst_pending_open. */
int cst_session_defer(struct cst_session *session, struct cst_job *job, uint64_t id, uint16_t type,
                      uint32_t n_items, struct cst_pending **out, struct cst_err *err);

/* Give its final reply, if somebody is there to hear it, and close it. */
void cst_session_answer(struct cst_daemon *daemon, struct cst_pending *request, uint16_t type,
                        const ProtobufCMessage *message, const int *fds, unsigned n_fds);
void cst_session_answer_batch(struct cst_daemon *daemon,
                              struct cst_pending *request); /* from its items */
/* Close it without a reply: somebody else gives that. */
void cst_session_drop(struct cst_daemon *daemon, struct cst_pending *request);
void cst_session_fail(struct cst_daemon *daemon, struct cst_pending *request,
                      const struct cst_err *err);

#endif
