/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/session/held.h"

#include "daemon/base/daemon_state.h"
#include "daemon/session/session.h"
#include "daemon/session/unpack.h"

#include <stdlib.h>

struct cstd_held {
    TAILQ_ENTRY(cstd_held) link;
    struct cstd_held_list *list;  /* The list in which it is. */
    struct cstd_pending *request; /* The request, which ends with its connection. */
    uint64_t about;
    const ProtobufCMessageDescriptor *type;
    cstd_held_fn serve;
    size_t n;       /* Length of body. */
    uint8_t body[]; /* The packed message. */
};

static void insert(struct cstd_held_list *list, struct cstd_held *held)
{
    held->list = list;
    TAILQ_INSERT_TAIL(list, held, link);
}

/* Take @held out of its list. Its request does not know it any more. */
static void take_out(struct cstd_held *held)
{
    held->request->on_close = NULL;
    held->request->held = NULL;
    TAILQ_REMOVE(held->list, held, link);
}

/* The connection has ended. */
static void on_close(struct cstd_pending *request)
{
    struct cstd_held *held = request->held;

    take_out(held);
    free(held);
}

/* One request is as much as a connection can keep of the daemon's memory in this way. */
static int check_first(const struct cstd_session *session, struct cst_err *err)
{
    const struct cstd_pending *request;

    TAILQ_FOREACH(request, &session->requests, link)
    {
        if (request->held != NULL) {
            return cst_err_set(err, CST_ENOCREDIT,
                               "a request of this connection already waits until a job of the "
                               "earlier daemon goes on, the GPUs are known, or memory for staging "
                               "comes back");
        }
    }
    return CST_OK;
}

int cstd_hold(struct cstd_held_list *list, uint64_t about, struct cstd_session *session,
              uint64_t id, uint16_t type, const ProtobufCMessage *message, cstd_held_fn serve,
              struct cst_err *err)
{
    size_t n = protobuf_c_message_get_packed_size(message);
    struct cstd_pending *request;
    struct cstd_held *held;
    int rc = check_first(session, err);

    if (rc != CST_OK) {
        return rc;
    }
    /* A list that came unpacked is packed now, and can be one or two bytes longer. */
    if (n > CST_FRAME_MAX_BODY) {
        return cst_err_set(err, CST_EPROTO, "a %s of %zu bytes, at most %d are allowed",
                           message->descriptor->short_name, n, (int)CST_FRAME_MAX_BODY);
    }
    held = malloc(sizeof *held + n);
    if (held == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a request that waits");
    }
    rc = cstd_session_defer(session, NULL, id, type, 1, &request, err);
    if (rc != CST_OK) {
        free(held);
        return rc;
    }
    *held = (struct cstd_held){
        .request = request, .about = about, .type = message->descriptor, .serve = serve, .n = n};
    (void)protobuf_c_message_pack(message, held->body);
    request->held = held;
    request->on_close = on_close;
    insert(list, held);
    return CST_OK;
}

/* Serve @held, which is in no list. Its connection may be closing. */
static void serve(struct cstd_daemon *daemon, const struct cstd_held *held)
{
    struct cstd_session *session = held->request->session;
    uint64_t id = held->request->id;
    struct cst_err err = {0};
    void *body;

    cstd_session_drop(daemon, held->request);
    /* A session that is closing must not attach to a job. */
    if (session->state == CSTD_SESSION_DOOMED) {
        return;
    }
    if (cstd_unpack_message(daemon->unpack, held->type, held->body, (uint32_t)held->n, &body,
                            &err) == CST_OK) {
        held->serve(session, id, body);
    } else {
        cstd_session_error(session, id, &err);
    }
}

void cstd_held_serve(struct cstd_held_list *list, uint64_t about, struct cstd_daemon *daemon)
{
    struct cstd_held_list now = TAILQ_HEAD_INITIALIZER(now);
    struct cstd_held *held, *next;

    /* Those that are held again meanwhile wait for something else. */
    for (held = TAILQ_FIRST(list); held != NULL; held = next) {
        next = TAILQ_NEXT(held, link);
        if (held->about == about) {
            TAILQ_REMOVE(list, held, link);
            insert(&now, held);
        }
    }
    while ((held = TAILQ_FIRST(&now)) != NULL) {
        take_out(held);
        serve(daemon, held);
        free(held);
    }
}

void cstd_held_drop(struct cstd_held_list *list)
{
    struct cstd_held *held;

    while ((held = TAILQ_FIRST(list)) != NULL) {
        take_out(held);
        free(held);
    }
}
