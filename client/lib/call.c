/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/call.h"

#include "client/lib/job.h"
#include "proto/cistern.pb-c.h"
#include "proto/reason.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* @why: the cause of a failure. */
static void finish(struct cstc_call *call, int status, const struct cst_err *why)
{
    call->status = status;
    if (status != CST_OK) {
        call->err = *why;
        call->err.status = status;
    }
    free(call->queued);
    call->queued = NULL;
    call->next = NULL;
    call->state = CSTC_CALL_DONE;
    /* Comes last, because the callback may start the call again. */
    if (call->done != NULL) {
        call->done(call);
    }
}

int cstc_client_check(const struct cst_client *client, struct cst_err *err)
{
    if (client->forked) {
        return cst_err_set(err, CST_EFORKED,
                           "this handle belongs to the parent process: after fork() the child must "
                           "connect for itself");
    }
    if (client->dead.status != CST_OK) {
        if (err != NULL) {
            *err = client->dead;
        }
        return client->dead.status;
    }
    return CST_OK;
}

/* The lists are emptied from the front, so that no call is in a list when its callback runs. */
void cstc_client_die(struct cst_client *client, const struct cst_err *cause)
{
    struct cstc_call *call;

    if (client->dead.status == CST_OK) {
        client->dead = *cause;
        if (client->returns && (cause->status == CST_ECONN || cause->status == CST_EDRAINING)) {
            (void)cst_err_set(&client->dead, CST_EPEERDIED,
                              "%.256s: sync waits for the next process of the daemon", cause->text);
        }
    }
    if (client->sock >= 0) {
        if (client->job != NULL && client->job->comms != NULL) {
            client->job->comm_ops->hang_up(client->job->comms, &client->dead);
        }
        (void)close(client->sock);
        client->sock = -1;
    }
    while ((call = client->sent) != NULL) {
        client->sent = call->next;
        finish(call, client->dead.status, &client->dead);
    }
    while ((call = client->queue) != NULL) {
        client->queue = call->next;
        finish(call, client->dead.status, &client->dead);
    }
    client->queue_end = &client->queue;
    client->n_sent = 0;
}

int cstc_client_distrust(struct cst_client *client, const struct cst_err *why, struct cst_err *err)
{
    struct cst_err cause;

    (void)cst_err_set(&cause, CST_EPROTO, "daemon at %s: %.256s", client->path, why->text);
    cstc_client_die(client, &cause);
    return cstc_client_check(client, err);
}

/* Read the body of an Error message. Its status must be a final failure, else the daemon is faulty:
 * CST_EPROTO. If it says whether the daemon is started again, and has the job then, *returns is
 * set. */
static int parse_error(const struct cst_frame *frame, struct cst_err *out, bool *returns)
{
    Cistern__Error *msg = cistern__error__unpack(NULL, frame->body_bytes, frame->body);

    if (msg == NULL || msg->status >= 0 || msg->status == CST_EAGAIN) {
        if (msg != NULL) {
            cistern__error__free_unpacked(msg, NULL);
        }
        return cst_err_set(out, CST_EPROTO, "an error reply that does not parse");
    }
    (void)cst_err_give_reason(out, cst_reason_of_number(msg->reason),
                              cst_err_set(out, msg->status, "%s", msg->text));
    *returns = msg->has_returns ? msg->returns : *returns;
    cistern__error__free_unpacked(msg, NULL);
    return CST_OK;
}

/* Process a message that is not a reply: an Error says why the daemon will close the connection.
 * All other types are ignored, because newer daemons may send them. */
static void take_event(struct cst_client *client, const struct cst_frame *frame)
{
    struct cst_err why = {0};

    if (frame->type == CISTERN__MSG_TYPE__MSG_ERROR &&
        parse_error(frame, &why, &client->returns) == CST_OK) {
        client->farewell = why;
    }
}

/* The peer has closed the connection. Its last messages may still be in the socket; look there for
 * the reason. Replies are dropped, because their calls end with the connection. */
static void hear_farewell(struct cst_client *client)
{
    struct cst_frame frame = {0};

    while (client->farewell.status == CST_OK && client->sock >= 0 &&
           cst_frame_recv(client->sock, MSG_DONTWAIT, &client->in, &frame, NULL) == CST_OK) {
        if ((frame.flags & CST_FRAME_EVENT) != 0) {
            take_event(client, &frame);
        }
        cst_frame_close_fds(&frame);
    }
}

/* End the connection with @status and the text of @why, after the socket's path. If the daemon said
 * why it closed the connection, its status and text are used. Returns the status; @err receives the
 * cause. */
static int die(struct cst_client *client, int status, struct cst_err *why, struct cst_err *err)
{
    struct cst_err cause;

    if (status == CST_ECONN) {
        hear_farewell(client);
        if (client->farewell.status != CST_OK) {
            status = client->farewell.status;
            why = &client->farewell;
        }
    }
    (void)cst_err_give_reason(
        &cause, why->reason,
        cst_err_set(&cause, status, "daemon at %s: %s", client->path, why->text));
    /* A daemon that was killed says nothing. */
    if (status == CST_ECONN && !client->returns && client->job != NULL) {
        (void)cst_err_set(&cause, status,
                          "daemon at %s: %.256s: if it has ended, job '%s' has, too: start the "
                          "workers again, with the last checkpoint if there is one",
                          client->path, why->text, client->job->name);
    }
    cstc_client_die(client, &cause);
    return cstc_client_check(client, err);
}

/* Send a request. CST_EAGAIN: it cannot be sent now, and client->wake will poll readable when it
 * should be sent again; any other failure: the connection is over. */
static int transmit(struct cst_client *client, struct cstc_call *call, const uint8_t *body,
                    uint32_t body_bytes, struct cst_err *err)
{
    struct cst_frame frame = {
        .type = call->type, .request = call->request, .body = body, .body_bytes = body_bytes};
    struct cst_err why = {0};
    int rc;

    frame.n_fds = call->n_sent_fds;
    for (unsigned i = 0; i < call->n_sent_fds; i++) {
        frame.fds[i] = call->sent_fds[i];
    }
    rc = cst_frame_send(client->sock, MSG_DONTWAIT, &frame, &why);
    cstc_wake_resend(&client->wake, client->sock,
                     rc == CST_EAGAIN   ? CSTC_RESEND_SPACE
                     : rc == CST_ENOMEM ? CSTC_RESEND_LATER
                                        : CSTC_RESEND_NONE);
    if (rc == CST_EAGAIN || rc == CST_ENOMEM) {
        return CST_EAGAIN;
    }
    if (rc != CST_OK) {
        return die(client, rc, &why, err);
    }
    call->state = CSTC_CALL_SENT;
    call->next = client->sent;
    client->sent = call;
    client->n_sent++;
    return CST_OK;
}

static int enqueue(struct cst_client *client, struct cstc_call *call, const uint8_t *body,
                   uint32_t body_bytes, struct cst_err *err)
{
    call->queued = malloc(body_bytes > 0 ? body_bytes : 1);
    if (call->queued == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to queue a request of %u bytes", body_bytes);
    }
    if (body_bytes > 0) {
        memcpy(call->queued, body, body_bytes);
    }
    call->queued_bytes = body_bytes;
    call->state = CSTC_CALL_QUEUED;
    call->next = NULL;
    *client->queue_end = call;
    client->queue_end = &call->next;
    return CST_OK;
}

/* Send queued requests, oldest first. CST_OK: the queue is empty, or there is no credit left;
 * CST_EAGAIN: the socket is full; other statuses: the connection is over. */
static int drain(struct cst_client *client, struct cst_err *err)
{
    while (client->queue != NULL && client->n_sent < client->credits) {
        struct cstc_call *call = client->queue, *rest = call->next;
        int rc = transmit(client, call, call->queued, call->queued_bytes, err);

        if (rc != CST_OK) {
            return rc;
        }
        client->queue = rest;
        if (rest == NULL) {
            client->queue_end = &client->queue;
        }
        free(call->queued);
        call->queued = NULL;
    }
    return CST_OK;
}

int cstc_call_start(struct cst_client *client, struct cstc_call *call, uint16_t type,
                    const ProtobufCMessage *body, uint16_t reply_type,
                    const ProtobufCMessageDescriptor *reply_form, struct cst_err *err)
{
    size_t bytes = body == NULL ? 0 : protobuf_c_message_get_packed_size(body);
    int rc = cstc_client_check(client, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (bytes > sizeof client->out) {
        return cst_err_set(err, CST_EINVAL, "request of %zu bytes, a message has at most %zu",
                           bytes, sizeof client->out);
    }
    if (body != NULL) {
        (void)protobuf_c_message_pack(body, client->out);
    }
    call->type = type;
    call->reply_type = reply_type;
    call->reply_form = reply_form;
    call->request = ++client->last_request;
    call->status = CST_OK;
    /* If requests are queued, this one waits behind them: the daemon must get requests in order. */
    if (client->queue == NULL && client->n_sent < client->credits) {
        rc = transmit(client, call, client->out, (uint32_t)bytes, err);
        if (rc != CST_EAGAIN) {
            return rc;
        }
    }
    return enqueue(client, call, client->out, (uint32_t)bytes, err);
}

/* Remove the call with the id @request from the list of sent calls and return it; NULL: there is
 * none. */
static struct cstc_call *take(struct cst_client *client, uint64_t request)
{
    for (struct cstc_call **link = &client->sent; *link != NULL; link = &(*link)->next) {
        struct cstc_call *call = *link;

        if (call->request == request) {
            *link = call->next;
            client->n_sent--;
            return call;
        }
    }
    return NULL;
}

static int parse_reply(struct cstc_call *call, struct cst_frame *frame, struct cst_err *why)
{
    if (frame->type != call->reply_type) {
        return cst_err_set(why, CST_EPROTO, "reply of type %u to a request of type %u", frame->type,
                           call->type);
    }
    if (frame->n_fds > call->max_fds) {
        return cst_err_set(why, CST_EPROTO, "%u fds with a reply of type %u, at most %u expected",
                           frame->n_fds, frame->type, call->max_fds);
    }
    if (call->reply_form != NULL) {
        call->reply =
            protobuf_c_message_unpack(call->reply_form, NULL, frame->body_bytes, frame->body);
        if (call->reply == NULL) {
            return cst_err_set(why, CST_EPROTO, "a reply of type %u that does not parse",
                               frame->type);
        }
    }
    memcpy(call->fds, frame->fds, sizeof frame->fds);
    call->n_fds = frame->n_fds;
    frame->n_fds = 0; /* The call owns the fds now; the caller closes those of the frame. */
    return CST_OK;
}

/* Finish the call to which @frame is the reply. Fails only if the daemon is faulty, and the
 * connection must end. */
static int route(struct cst_client *client, struct cst_frame *frame, struct cst_err *why)
{
    struct cstc_call *call;
    struct cst_err words = {0};
    int rc;

    if ((frame->flags & CST_FRAME_EVENT) != 0) {
        take_event(client, frame);
        return CST_OK;
    }
    if ((frame->flags & CST_FRAME_REPLY) == 0) {
        return cst_err_set(why, CST_EPROTO, "a request of type %u instead of a reply", frame->type);
    }
    call = take(client, frame->request);
    if (call == NULL) {
        return cst_err_set(why, CST_EPROTO, "a reply to request %llu, which is not in flight",
                           (unsigned long long)frame->request);
    }
    if (frame->type == CISTERN__MSG_TYPE__MSG_ERROR) {
        rc = parse_error(frame, &words, &(bool){false});
        if (rc == CST_OK) {
            finish(call, words.status, &words);
            return CST_OK;
        }
    } else {
        rc = parse_reply(call, frame, &words);
        if (rc == CST_OK) {
            finish(call, CST_OK, NULL);
            return CST_OK;
        }
    }
    /* The call is in no list any more; the end of the connection would not finish it. */
    finish(call, rc, &words);
    *why = words;
    return rc;
}

static int receive(struct cst_client *client, int recv_flags, struct cst_err *err)
{
    struct cst_frame frame = {0};
    struct cst_err why = {0};
    int rc = cst_frame_recv(client->sock, recv_flags, &client->in, &frame, &why);

    if (rc == CST_EAGAIN) {
        return rc;
    }
    if (rc == CST_OK) {
        rc = route(client, &frame, &why);
        cst_frame_close_fds(&frame);
    }
    return rc == CST_OK ? CST_OK : die(client, rc, &why, err);
}

int cstc_call_pump(struct cst_client *client, struct cst_err *err)
{
    int rc = cstc_client_check(client, err);

    /* Replies come first, because each one returns a credit for a queued request. */
    while (rc == CST_OK) {
        rc = receive(client, MSG_DONTWAIT, err);
    }
    if (rc == CST_EAGAIN) {
        rc = drain(client, err);
    }
    return rc == CST_EAGAIN ? CST_OK : rc;
}

/* Wait at most @timeout_ms until something arrives, or a queued request should be sent again. Sets
 * *n_out to the result of epoll_wait(). */
static int wait_ready(struct cst_client *client, int timeout_ms, int *n_out, struct cst_err *err)
{
    struct epoll_event events[3];
    struct cst_err why;

    *n_out = epoll_wait(client->wake.epoll, events, 3, timeout_ms);
    if (*n_out < 0 && errno != EINTR) {
        (void)cst_err_errno(&why, CST_EIO, errno, "epoll_wait");
        return die(client, CST_EIO, &why, err);
    }
    for (int i = 0; i < *n_out; i++) {
        if (events[i].data.fd == client->watched) {
            client->watch(client);
        }
    }
    return CST_OK;
}

int cstc_call_wait(struct cst_client *client, int timeout_ms, struct cst_err *err)
{
    int rc = cstc_client_check(client, err), n = 0;

    rc = rc == CST_OK ? drain(client, err) : rc;
    /* Without a time limit and a device, a blocking read is enough and saves the poll. */
    if (rc == CST_OK && timeout_ms < 0 && client->watch == NULL) {
        return receive(client, 0, err);
    }
    if (rc == CST_OK || rc == CST_EAGAIN) {
        rc = wait_ready(client, timeout_ms, &n, err);
        if (rc == CST_OK && n == 0) {
            return cst_err_set(err, CST_ETIMEDOUT, "daemon at %s: no answer within %d ms",
                               client->path, timeout_ms);
        }
    }
    return rc == CST_OK ? cstc_call_pump(client, err) : rc;
}

int cstc_call_result(const struct cstc_call *call, struct cst_err *err)
{
    if (call->state != CSTC_CALL_DONE) {
        return CST_EAGAIN;
    }
    if (call->status != CST_OK && err != NULL) {
        *err = call->err;
    }
    return call->status;
}

void cstc_call_reset(struct cstc_call *call)
{
    if (call->reply != NULL) {
        protobuf_c_message_free_unpacked(call->reply, NULL);
        call->reply = NULL;
    }
    for (unsigned i = 0; i < call->n_fds; i++) {
        if (call->fds[i] >= 0) {
            (void)close(call->fds[i]);
        }
    }
    call->n_fds = 0;
    call->state = CSTC_CALL_IDLE;
}

int cstc_call_sync(struct cst_client *client, struct cstc_call *call, uint16_t type,
                   const ProtobufCMessage *body, uint16_t reply_type,
                   const ProtobufCMessageDescriptor *reply_form, struct cst_err *err)
{
    int rc = cstc_client_check(client, err);

    /* A wait here would read the reply of the pending call, and the client's descriptor would not
     * become readable for it. */
    if (rc == CST_OK && client->pending) {
        rc = cst_err_set(err, CST_EBUSY, "another call is pending: repeat it until it has ended");
    }
    if (rc == CST_OK) {
        rc = cstc_call_start(client, call, type, body, reply_type, reply_form, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    while (call->state != CSTC_CALL_DONE) {
        /* If the connection ends, the call is finished with the cause. */
        (void)cstc_call_wait(client, -1, err);
    }
    rc = cstc_call_result(call, err);
    if (rc != CST_OK) {
        cstc_call_reset(call);
    }
    return rc;
}
