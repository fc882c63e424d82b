/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/session/session.h"

#include "daemon/session/batch.h"
#include "daemon/base/daemon_state.h"
#include "daemon/job/job.h"
#include "daemon/base/log.h"
#include "proto/cistern.pb-c.h"
#include "daemon/budget/quota.h"
#include "daemon/ledger/ledger.h"
#include "daemon/serve/server.h"
#include "daemon/session/linger.h"
#include "daemon/session/unread.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    /* Bytes of waiting replies at which the daemon stops reading requests. */
    OUTBOX_FULL = 1 << 20,
    /* A peer that connects and sends nothing for this time is disconnected, because a session that
     * is not used could serve others. The library sends Hello at once. */
    HELLO_MS = 10000,
    STALL_MS = 10000, /* A session whose replies wait for this time is disconnected. */
    /* If all sessions together are at the limit of descriptors in flight, or all sessions of a
     * user, a session that leaves some unread for this time is disconnected. */
    HOARD_MS = 5000,
    /* Longest time for which the daemon reads requests before it polls the sockets again: another
     * user may have sent a request. */
    READ_NS = 20000,
    /* Interval between searches for sessions that leave descriptors unread, while a reply waits for
     * their limit. */
    LOOK_MS = 50,
};

static void on_socket(uv_poll_t *poll, int status, int events);
static void on_end(struct cstd_deferred *later);

/* -- polling -------------------------------------------------------------------------------- */

/* Poll for messages, unless a megabyte of replies or a reply with descriptors waits; descriptors
 * are scarce. Poll for space in the socket if replies wait for that. Poll for a hang-up always. */
static void update_poll(struct cstd_session *session)
{
    int events = UV_DISCONNECT;

    if (session->state == CSTD_SESSION_DOOMED) {
        return;
    }
    if (session->outbox.bytes < OUTBOX_FULL && session->outbox.n_fds == 0 && !session->last_words) {
        events |= UV_READABLE;
    }
    if (session->outbox.bytes > 0 && !session->outbox.retry) {
        events |= UV_WRITABLE;
    }
    if (events != session->polled) {
        session->polled = events;
        (void)uv_poll_start(&session->poll, events, on_socket);
    }
}

static void on_stall(uv_timer_t *timer)
{
    struct cstd_session *session = timer->data;

    cstd_session_doom(session, session->state == CSTD_SESSION_NEW && session->outbox.bytes == 0
                                   ? "has sent no Hello within 10 s"
                                   : "does not read its replies");
}

void cstd_session_greeted(struct cstd_session *session)
{
    session->state = CSTD_SESSION_OPEN;
    (void)uv_timer_stop(&session->stall);
}

static void on_retry(uv_timer_t *timer);

/* Return whether a limit of descriptors in flight is reached that @session shares with others. */
static bool is_crowded(const struct cstd_session *session)
{
    return cstd_unread_shared_limit(&session->unread, CST_FRAME_MAX_FDS) != CSTD_UNREAD_FITS;
}

/* Replies wait for something other than the socket: try again soon. Many sessions can wait for the
 * same limit; with a longer interval their attempts do not keep the daemon busy. */
static void update_retry(struct cstd_session *session)
{
    if (session->outbox.retry && session->outbox.bytes > 0) {
        (void)uv_timer_start(&session->retry, on_retry,
                             is_crowded(session) ? LOOK_MS : CSTD_OUTBOX_RETRY_MS, 0);
    }
}

static void flush(struct cstd_session *session)
{
    struct cst_err err = {0};
    unsigned n_sent;
    int rc = cstd_outbox_flush(&session->outbox, session->fd, &n_sent, &err);

    if (rc == CST_OK) {
        (void)uv_timer_stop(&session->stall);
        if (session->last_words) {
            cstd_session_doom(session, NULL);
        }
    } else if (rc == CST_EAGAIN && n_sent > 0) {
        /* The peer reads, even if slowly: the time for the rest starts anew. */
        (void)uv_timer_start(&session->stall, on_stall, STALL_MS, 0);
    } else if (rc != CST_EAGAIN) {
        session->hung_up = session->hung_up || rc == CST_ECONN;
        cstd_session_doom(session, rc == CST_ECONN ? NULL : err.text);
    }
    update_retry(session);
}

/* A reply waits because sessions, of the same user or of all users, have unread descriptors. Count
 * again for all sessions, and disconnect those that leave descriptors unread for too long. */
static void look_for_hoarders(struct cstd_server *server)
{
    struct cstd_session *session;
    uint64_t now = uv_hrtime();

    if (now - server->looked_ns < LOOK_MS * UINT64_C(1000000)) {
        return;
    }
    server->looked_ns = now;
    TAILQ_FOREACH(session, &server->sessions, link)
    {
        cstd_unread_refresh(&session->unread, session->fd);
        if (session->unread.n > 0 && is_crowded(session) &&
            now - session->unread.since_ns > HOARD_MS * UINT64_C(1000000)) {
            bool all =
                cstd_unread_shared_limit(&session->unread, CST_FRAME_MAX_FDS) == CSTD_UNREAD_ALL;

            cstd_session_doom(session,
                              all ? "does not read the descriptors that it was sent, while all "
                                    "sessions together are at the limit of them (a quarter of "
                                    "LimitNOFILE)"
                                  : "does not read the descriptors that it was sent, while its "
                                    "user is at the limit of them ('descriptors' in [quota])");
        }
    }
}

static void on_retry(uv_timer_t *timer)
{
    struct cstd_session *session = timer->data;

    if (session->state == CSTD_SESSION_DOOMED) {
        return;
    }
    if (is_crowded(session)) {
        look_for_hoarders(session->daemon->server);
    }
    flush(session);
    update_poll(session);
}

/* -- messages in ---------------------------------------------------------------------------- */

static void read_one(struct cstd_session *session)
{
    struct cstd_daemon *daemon = session->daemon;
    struct cst_frame frame;
    /* Set by a call that fails. Clearing it here would cost time for each request. */
    struct cst_err err;

    switch (cst_frame_recv(session->fd, MSG_DONTWAIT, &daemon->in, &frame, &err)) {
    case CST_OK:
        daemon->n_requests++;
        session->ops->on_frame(session, &frame);
        break;
    case CST_EAGAIN:
        break;
    case CST_ECONN:
        session->hung_up = true;
        cstd_session_doom(session, NULL);
        break;
    default:
        cstd_session_doom(session, err.text);
        break;
    }
}

void cstd_session_read_turns(struct cstd_server *server)
{
    uint64_t began_ns = uv_hrtime();
    struct cstd_turn *turn;

    while ((turn = cstd_turns_next(&server->turns)) != NULL) {
        struct cstd_session *session = cstd_owner_of(turn, struct cstd_session, turn);

        /* Replies since the last poll may have filled the outbox. */
        if ((session->polled & UV_READABLE) != 0) {
            read_one(session);
            update_poll(session);
        }
        if (uv_hrtime() - began_ns > READ_NS) {
            break; /* Sockets that still have requests are reported again. */
        }
    }
}

static void on_socket(uv_poll_t *poll, int status, int events)
{
    struct cstd_session *session = poll->data;

    if (session->state == CSTD_SESSION_DOOMED) {
        return;
    }
    /* An error is pending on the socket: the peer closed it without reading. */
    if (status < 0) {
        session->hung_up = true;
        cstd_session_doom(session, NULL);
        return;
    }
    if ((events & UV_WRITABLE) != 0) {
        flush(session);
    }
    if ((events & UV_READABLE) != 0 && session->state != CSTD_SESSION_DOOMED) {
        cstd_turns_add(&session->daemon->server->turns, &session->account->turns, &session->turn);
    } else if ((events & UV_DISCONNECT) != 0) {
        session->hung_up = true;
        cstd_session_doom(session, NULL);
    }
    update_poll(session);
}

bool cstd_session_is_gone(struct cstd_session *session)
{
    struct pollfd p = {.fd = session->fd, .events = POLLRDHUP};

    if (!session->hung_up && session->fd >= 0 && poll(&p, 1, 0) > 0) {
        session->hung_up = true;
        cstd_session_doom(session, NULL);
    }
    return session->hung_up;
}

/* -- replies out ---------------------------------------------------------------------------- */

/* Send a message whose packed body is in the first @n_bytes of the daemon's buffer `out`. */
static void send_packed(struct cstd_session *session, uint8_t flags, uint64_t id, uint16_t type,
                        size_t n_bytes, const int *fds, unsigned n_fds)
{
    struct cst_frame frame;
    struct cst_err err;
    bool waited = session->outbox.bytes > 0;
    int rc;

    frame.type = type;
    frame.flags = flags;
    frame.request = id;
    frame.body = session->daemon->out;
    frame.body_bytes = (uint32_t)n_bytes;
    frame.n_fds = n_fds;
    if (n_fds > 0) {
        memcpy(frame.fds, fds, n_fds * sizeof *fds);
    }
    rc = cstd_outbox_send(&session->outbox, session->fd, &frame, &err);
    if (rc == CST_OK) {
        return;
    }
    if (rc == CST_EAGAIN) {
        if (!waited) {
            (void)uv_timer_start(&session->stall, on_stall, STALL_MS, 0);
            update_retry(session);
        }
        update_poll(session);
        return;
    }
    if (n_fds > 0 && (rc == CST_ENOMEM || rc == CST_ENOCREDIT)) {
        /* An error has no descriptors, and can wait in the outbox. */
        cstd_session_error(session, id, &err);
        return;
    }
    session->hung_up = session->hung_up || rc == CST_ECONN;
    cstd_session_doom(session, rc == CST_ECONN ? NULL : err.text);
}

void cstd_session_reply(struct cstd_session *session, uint64_t id, uint16_t type,
                        const ProtobufCMessage *message, const int *fds, unsigned n_fds)
{
    size_t n_bytes = 0;

    if (session->state == CSTD_SESSION_DOOMED) {
        return;
    }
    if (message != NULL) {
        n_bytes = protobuf_c_message_get_packed_size(message);
        if (n_bytes > sizeof session->daemon->out) {
            struct cst_err err;

            (void)cst_err_set(&err, CST_EUNSUPPORTED,
                              "the answer takes %zu bytes, and a frame has %zu at most", n_bytes,
                              sizeof session->daemon->out);
            cstd_session_error(session, id, &err);
            return;
        }
        (void)protobuf_c_message_pack(message, session->daemon->out);
    }
    send_packed(session, CST_FRAME_REPLY, id, type, n_bytes, fds, n_fds);
}

static Cistern__Error error_message(const struct cst_err *err)
{
    Cistern__Error message = CISTERN__ERROR__INIT;

    message.status = err->status;
    message.retryable = cst_status_retryable(err->status);
    message.text = (char *)(uintptr_t)err->text;
    message.has_reason = err->reason != CST_REASON_NONE;
    message.reason = err->reason;
    return message;
}

void cstd_session_error(struct cstd_session *session, uint64_t id, const struct cst_err *err)
{
    Cistern__Error message = error_message(err);

    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_ERROR, &message.base, NULL, 0);
}

void cstd_session_farewell(struct cstd_session *session, const struct cst_err *why)
{
    Cistern__Error message = error_message(why);

    message.has_returns = session->job != NULL; /* Otherwise the job may be still to be opened. */
    message.returns = session->daemon->leaving && session->job != NULL &&
                      session->job->ledger.state == CSTD_LEDGER_KEPT;
    if (session->state != CSTD_SESSION_DOOMED) {
        size_t n_bytes = protobuf_c_message_pack(&message.base, session->daemon->out);

        send_packed(session, CST_FRAME_EVENT, 0, CISTERN__MSG_TYPE__MSG_ERROR, n_bytes, NULL, 0);
    }
}

/* -- requests that are answered later --------------------------------------------------------- */

int cstd_session_defer(struct cstd_session *session, struct cstd_job *job, uint64_t id,
                       uint16_t type, uint32_t n_items, struct cstd_pending **out,
                       struct cst_err *err)
{
    struct cstd_quota_account *account = session->manager ? NULL : session->account;
    int rc = cstd_quota_take(account, CSTD_QUOTA_REQUESTS, 1, "a request", err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = cstd_pending_open(out, session->daemon->requests, id, type, n_items, err);
    if (rc != CST_OK) {
        cstd_quota_give(account, CSTD_QUOTA_REQUESTS, 1);
    } else {
        (*out)->account = cstd_quota_ref(account);
        (*out)->session = session;
        (*out)->job = job;
        TAILQ_INSERT_TAIL(&session->requests, *out, link);
        session->n_requests++;
        if (job != NULL) {
            TAILQ_INSERT_TAIL(&job->requests, *out, job_link);
        }
    }
    return rc;
}

static void unlink_request(struct cstd_pending *request)
{
    if (request->session != NULL) {
        TAILQ_REMOVE(&request->session->requests, request, link);
        request->session->n_requests--;
        request->session = NULL;
    }
    if (request->job != NULL) {
        TAILQ_REMOVE(&request->job->requests, request, job_link);
        request->job = NULL;
    }
}

static void close_request(struct cstd_daemon *daemon, struct cstd_pending *request)
{
    unlink_request(request);
    if (request->on_close != NULL) {
        request->on_close(request);
    }
    cstd_quota_give(request->account, CSTD_QUOTA_REQUESTS, 1);
    cstd_quota_unref(request->account);
    request->account = NULL;
    cstd_pending_close(daemon->requests, request);
}

void cstd_session_answer(struct cstd_daemon *daemon, struct cstd_pending *request, uint16_t type,
                         const ProtobufCMessage *message, const int *fds, unsigned n_fds)
{
    if (request->session != NULL) {
        cstd_session_reply(request->session, request->id, type, message, fds, n_fds);
    }
    close_request(daemon, request);
}

void cstd_session_answer_batch(struct cstd_daemon *daemon, struct cstd_pending *request)
{
    if (request->session != NULL && request->session->state != CSTD_SESSION_DOOMED) {
        send_packed(
            request->session, CST_FRAME_REPLY, request->id, CISTERN__MSG_TYPE__MSG_BATCH_DONE,
            cstd_batch_write(request->items, request->n_items, request->paused, daemon->out), NULL,
            0);
    }
    close_request(daemon, request);
}

void cstd_session_drop(struct cstd_daemon *daemon, struct cstd_pending *request)
{
    close_request(daemon, request);
}

void cstd_session_fail(struct cstd_daemon *daemon, struct cstd_pending *request,
                       const struct cst_err *err)
{
    if (request->session != NULL) {
        cstd_session_error(request->session, request->id, err);
    }
    close_request(daemon, request);
}

/* -- opening and closing -------------------------------------------------------------------- */

int cstd_session_open(struct cstd_session **out, struct cstd_daemon *daemon,
                      const struct cstd_session_ops *ops, int fd, const struct cstd_peer *peer,
                      struct cstd_quota_account *account, bool manager,
                      const struct cst_err *refusal, struct cst_err *err)
{
    struct cstd_session *session = calloc(1, sizeof *session);
    int rc;

    if (session == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a connection");
    }
    rc = uv_poll_init(&daemon->loop, &session->poll, fd);
    if (rc != 0) {
        free(session);
        return cst_err_set(err, CST_ENOMEM, "a connection cannot be watched: %s", uv_strerror(rc));
    }
    session->daemon = daemon;
    session->ops = ops;
    session->fd = fd;
    session->peer = *peer;
    session->account = account;
    session->manager = manager;
    session->refusal = *refusal;
    session->end.fn = on_end;
    TAILQ_INIT(&session->requests);
    session->unread.total = &daemon->server->unread;
    session->unread.account = manager ? NULL : account;
    cstd_outbox_init(&session->outbox, &session->unread);
    (void)uv_timer_init(&daemon->loop, &session->stall);
    (void)uv_timer_init(&daemon->loop, &session->retry);
    session->poll.data = session->stall.data = session->retry.data = session;
    session->n_handles = 3;
    (void)uv_timer_start(&session->stall, on_stall, HELLO_MS, 0);
    update_poll(session);
    cstd_log(CSTD_LOG_DEBUG, "pid %d (uid %u): connected%s", (int)peer->pid, (unsigned)peer->uid,
             manager ? " as manager" : "");
    *out = session;
    return CST_OK;
}

void cstd_session_doom(struct cstd_session *session, const char *why)
{
    if (session->state == CSTD_SESSION_DOOMED) {
        return;
    }
    if (why != NULL) {
        cstd_log_about(CSTD_LOG_WARNING,
                       &(struct cstd_log_about){.rank = CSTD_LOG_NONE, .uid = session->peer.uid},
                       "pid %d (uid %u): disconnected: %s", (int)session->peer.pid,
                       (unsigned)session->peer.uid, why);
    }
    session->state = CSTD_SESSION_DOOMED;
    cstd_turns_remove(&session->daemon->server->turns, &session->turn);
    cstd_deferred_add(&session->daemon->later, &session->end);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct cstd_session *session = handle->data;

    if (--session->n_handles == 0) {
        free(session);
    }
}

/* Requests of the session's job stay, without a session, because the core or an engine will still
 * complete them. All other requests end with the session. */
static void orphan_requests(struct cstd_session *session)
{
    while (!TAILQ_EMPTY(&session->requests)) {
        struct cstd_pending *request = TAILQ_FIRST(&session->requests);

        if (request->job != NULL && !request->waits_commit) {
            TAILQ_REMOVE(&session->requests, request, link);
            request->session = NULL;
        } else {
            close_request(session->daemon, request);
        }
    }
    session->n_requests = 0;
}

static void on_end(struct cstd_deferred *later)
{
    struct cstd_session *session = cstd_owner_of(later, struct cstd_session, end);
    struct cstd_daemon *daemon = session->daemon;

    session->ops->on_gone(session);
    orphan_requests(session);
    /* Stop before close: epoll must forget the descriptor first. */
    (void)uv_poll_stop(&session->poll);
    cstd_outbox_close(&session->outbox);
    cstd_lingers_close_socket(&daemon->server->lingers, session->fd, &session->unread);
    session->ops->on_closed(session);
    cstd_peer_close(&session->peer);
    (void)uv_timer_stop(&session->stall);
    (void)uv_timer_stop(&session->retry);
    uv_close((uv_handle_t *)&session->poll, on_handle_closed);
    uv_close((uv_handle_t *)&session->stall, on_handle_closed);
    uv_close((uv_handle_t *)&session->retry, on_handle_closed);
    session->fd = -1;
}
