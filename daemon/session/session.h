/* SPDX-License-Identifier: Apache-2.0 */
/* One connection: greeting, credits (the limit of requests in flight), replies, back-pressure, end.
 *
 *   NEW  --Hello--------------------------------------------> OPEN
 *   NEW  --anything else: an error; or nothing for 10 s-----> DOOMED
 *   OPEN --hang-up, broken frame, does not read for 10 s, cstd_session_doom--> DOOMED
 *   DOOMED --(end of the loop's iteration)--> closed, freed
 *
 * A session may be attached to a job as one rank (job.h). A session is never closed inside a
 * callback that may still use it: cstd_session_doom marks it, and it is closed at the end of the
 * loop's iteration. Loop thread only. */
#ifndef CST_SESSION_H
#define CST_SESSION_H

#include "daemon/base/deferred.h"
#include "daemon/session/outbox.h"
#include "daemon/session/peer.h"
#include "daemon/session/pending.h"

#include <protobuf-c/protobuf-c.h>
#include <uv.h>

struct cst_frame;
struct cstd_daemon;
struct cstd_job;
struct cstd_quota_account;
struct cstd_reader;
struct cstd_server;
struct cstd_staging;
struct cstd_standby;

struct cstd_session;

/* What the owner of a session does for it. All functions are required. */
struct cstd_session_ops {
    /* Serve a request. The descriptors of @frame are taken over. */
    void (*on_frame)(struct cstd_session *session, struct cst_frame *frame);
    /* The session ends: its job and its staging segment must forget it. Its requests are still
     * listed. */
    void (*on_gone)(struct cstd_session *session);
    /* The socket of the session is closed: whoever counts the session must forget it. */
    void (*on_closed)(struct cstd_session *session);
};

enum cstd_session_state { CSTD_SESSION_NEW, CSTD_SESSION_OPEN, CSTD_SESSION_DOOMED };

struct cstd_session {
    TAILQ_ENTRY(cstd_session) link; /* Entry in the server's list. */
    struct cstd_daemon *daemon;
    const struct cstd_session_ops *ops;
    enum cstd_session_state state;
    int fd;                /* Non-blocking; -1: closed. */
    bool manager;          /* The connection came through the manager socket. */
    bool hung_up;          /* The peer closed its end. */
    bool last_words;       /* Close the session when the waiting replies are sent. */
    struct cstd_turn turn; /* Place in the line of sessions with a request to read. */
    struct cstd_peer peer;
    struct cstd_quota_account *account; /* Account of the peer's uid; a reference. */
    /* Error with which the first message is answered; status 0: the session was admitted. */
    struct cst_err refusal;
    struct cst_pending_list requests; /* Requests in flight. */
    uint32_t n_requests;              /* Number of requests in flight. */
    struct cstd_job *job;             /* Job to which the session is attached; NULL: none. */
    uint32_t rank;                    /* Rank in the job. */
    struct cstd_reader *reads;        /* The job that the session reads (readers.h); NULL: none. */
    struct cstd_standby *standby; /* Waits for a rank, or holds one (standby.h); NULL: neither. */
    struct cstd_job *saves;       /* Job that the session saves (saver.h); NULL: none. */
    /* The job was removed; explains later errors to the client. */
    bool job_removed;
    struct cst_err why_removed;   /* job_removed: what has ended the job. */
    bool bars_jobs;               /* No new job is taken while this session, of a manager, lives. */
    struct cstd_staging *staging; /* Staging segment; NULL: none was requested. */
    struct cstd_outbox outbox;    /* Replies that wait. */
    struct cstd_unread unread;    /* Descriptors in flight to the client. */
    int polled;                   /* The uv events that are being polled. */
    uv_poll_t poll;
    uv_timer_t stall; /* Runs while replies wait, and in state NEW. */
    /* Runs while replies wait for something other than the socket (outbox.retry). */
    uv_timer_t retry;
    unsigned n_handles;       /* Number of uv handles that are not closed yet. */
    struct cstd_deferred end; /* Closes the session. */
};

/* Make a session; takes over @fd, @peer and the reference to @account, the account of the peer's
 * uid. The account is charged with the connection already, unless the session is a manager's or
 * refused. If @refusal->status != 0, the session's first message is answered with @refusal, and the
 * session is closed. CST_ENOMEM, also if the loop cannot watch @fd: nothing was taken over. */
int cstd_session_open(struct cstd_session **out, struct cstd_daemon *daemon,
                      const struct cstd_session_ops *ops, int fd, const struct cstd_peer *peer,
                      struct cstd_quota_account *account, bool manager,
                      const struct cst_err *refusal, struct cst_err *err);

/* The client has sent Hello with a version that the daemon supports: the session is OPEN. */
void cstd_session_greeted(struct cstd_session *session);

/* Close @session at the end of the loop's iteration. @why is logged unless it is NULL. */
void cstd_session_doom(struct cstd_session *session, const char *why);

/* Answer request @id with @message (NULL: no body) of @type and @n_fds descriptors, which still
 * belong to the caller. */
void cstd_session_reply(struct cstd_session *session, uint64_t id, uint16_t type,
                        const ProtobufCMessage *message, const int *fds, unsigned n_fds);

/* Answer request @id with an Error. */
void cstd_session_error(struct cstd_session *session, uint64_t id, const struct cst_err *err);

/* Tell the peer, without a request, why its connection is about to be closed. Later calls of the
 * client fail with these words. */
void cstd_session_farewell(struct cstd_session *session, const struct cst_err *why);

/* Read requests of the sessions in the line of @server for READ_NS at most. After that, requests of
 * other users that came meanwhile can enter the line. Called each time when the sockets were
 * polled. */
void cstd_session_read_turns(struct cstd_server *server);

/* Return whether the peer has hung up; the session is then DOOMED. Checks the socket now instead of
 * at the loop's next iteration. */
bool cstd_session_is_gone(struct cstd_session *session);

/* -- requests that are answered later --------------------------------------------------------- */

/* Open request @id of @session, which is answered later. It is put in the lists of @session and of
 * @job; @job NULL: the request does not end with a job. Statuses are those of cstd_pending_open,
 * and CST_ENOCREDIT: the user has too many requests in flight. */
int cstd_session_defer(struct cstd_session *session, struct cstd_job *job, uint64_t id,
                       uint16_t type, uint32_t n_items, struct cstd_pending **out,
                       struct cst_err *err);

/* Send the final reply, if the session still exists, and close the request.
 * cstd_session_answer_batch makes the reply from the request's items. */
void cstd_session_answer(struct cstd_daemon *daemon, struct cstd_pending *request, uint16_t type,
                         const ProtobufCMessage *message, const int *fds, unsigned n_fds);
void cstd_session_answer_batch(struct cstd_daemon *daemon, struct cstd_pending *request);
/* Close the request without a reply, because the caller has another way to answer it. */
void cstd_session_drop(struct cstd_daemon *daemon, struct cstd_pending *request);
/* Send @err as the final reply, if the session still exists, and close the request. */
void cstd_session_fail(struct cstd_daemon *daemon, struct cstd_pending *request,
                       const struct cst_err *err);

#endif
