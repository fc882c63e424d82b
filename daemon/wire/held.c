/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/wire/held.h"

#include "daemon/daemon.h"

#include <stdlib.h>

struct cstd_held {
    TAILQ_ENTRY(cstd_held) link;
    uint64_t tag; /* Tag of the request, which may be gone. */
    uint64_t about;
    const ProtobufCMessageDescriptor *type;
    cstd_held_fn serve;
    size_t n;       /* Length of body. */
    uint8_t body[]; /* The packed message. */
};

int cstd_hold(struct cstd_held_list *list, uint64_t about, struct cstd_session *session,
              uint64_t id, uint16_t type, const ProtobufCMessage *message, cstd_held_fn serve,
              struct cst_err *err)
{
    size_t n = protobuf_c_message_get_packed_size(message);
    struct cstd_pending *request;
    struct cstd_held *held;
    int rc;

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
    *held = (struct cstd_held){.tag = cstd_pending_tag(request, 0),
                               .about = about,
                               .type = message->descriptor,
                               .serve = serve,
                               .n = n};
    (void)protobuf_c_message_pack(message, held->body);
    TAILQ_INSERT_TAIL(list, held, link);
    return CST_OK;
}

/* Serve @held. Its connection may be closed or closing. */
static void serve(struct cstd_daemon *daemon, const struct cstd_held *held)
{
    uint32_t item;
    struct cstd_pending *request = cstd_pending_find(&daemon->requests, held->tag, &item);
    struct cstd_session *session = request != NULL ? request->session : NULL;
    struct cst_err err = {0};
    uint64_t id;
    void *body;

    if (session == NULL) {
        return;
    }
    id = request->id;
    cstd_session_drop(daemon, request);
    /* A session that is closing must not attach to a job. */
    if (session->state == CSTD_SESSION_DOOMED) {
        return;
    }
    if (cstd_unpack_message(&daemon->unpack, held->type, held->body, (uint32_t)held->n, &body,
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
            TAILQ_INSERT_TAIL(&now, held, link);
        }
    }
    while ((held = TAILQ_FIRST(&now)) != NULL) {
        TAILQ_REMOVE(&now, held, link);
        serve(daemon, held);
        free(held);
    }
}

void cstd_held_drop(struct cstd_held_list *list)
{
    struct cstd_held *held;

    while ((held = TAILQ_FIRST(list)) != NULL) {
        TAILQ_REMOVE(list, held, link);
        free(held);
    }
}
