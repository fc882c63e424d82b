/* SPDX-License-Identifier: Apache-2.0 */
/* One request and its one final reply. A call is embedded in whoever asks; many may be in flight,
 * and replies come in any order.
 *
 *   IDLE --start--> SENT --reply, or the connection's end--> DONE --reset--> IDLE
 *             \--> QUEUED --/
 *
 * QUEUED: there is no credit, or the socket is full; its bytes are kept, and sent by the next pump
 * or wait.
 *
 * A call in SENT or QUEUED must not be freed: it is linked into its client. */
#ifndef CST_CALL_H
#define CST_CALL_H

#include "client/client.h"

#include <protobuf-c/protobuf-c.h>

enum cst_call_state { CST_CALL_IDLE, CST_CALL_QUEUED, CST_CALL_SENT, CST_CALL_DONE };

struct cst_call {
    enum cst_call_state state;                    /* as drawn above */
    uint16_t type;                                /* of the request */
    uint16_t reply_type;                          /* of the reply that is not an Error */
    const ProtobufCMessageDescriptor *reply_form; /* of the reply's body; NULL: it has none */
    unsigned max_fds;                             /* most fds that the reply may bring */
    uint64_t request;                             /* id */
    int status;                                   /* when DONE */
    struct cst_err err;                           /* words of it */
    ProtobufCMessage *reply;    /* when DONE and status is 0 and reply_form is set; the call's */
    int fds[CST_FRAME_MAX_FDS]; /* that came with the reply; the call's until taken */
    unsigned n_fds;             /* how many of them */
    uint8_t *queued;            /* body, while QUEUED; the call's */
    uint32_t queued_bytes;      /* length of it */
    struct cst_call *next;      /* in the client's list */
    void (*done)(struct cst_call *call); /* called when it is DONE; may be NULL */
};

/* Send a request of @type with @body (NULL: none) and expect @reply_type. Set max_fds and done
 * before. CST_EFORKED, CST_ECONN or what ended the connection; CST_EINVAL: the body is over 64 KiB;
 * CST_ENOMEM. On failure the call stays IDLE. */
int cst_call_start(struct cst_client *client, struct cst_call *call, uint16_t type,
                   const ProtobufCMessage *body, uint16_t reply_type,
                   const ProtobufCMessageDescriptor *reply_form, struct cst_err *err);

/* CST_EAGAIN until the call is DONE, then its status. Reads nothing: pump or wait do. */
int cst_call_result(const struct cst_call *call, struct cst_err *err);

/* Free the reply, close fds that nobody took; IDLE again. The call must be DONE or IDLE. */
void cst_call_reset(struct cst_call *call);

/* Start, and wait until it is DONE. On failure the call is reset. CST_EBUSY: a try call is pending.
 */
int cst_call_sync(struct cst_client *client, struct cst_call *call, uint16_t type,
                  const ProtobufCMessage *body, uint16_t reply_type,
                  const ProtobufCMessageDescriptor *reply_form, struct cst_err *err);

/* Send what is queued, as far as credits and the socket allow, and take in all replies that are
 * there. Never waits. CST_OK, or what ended the connection. */
int cst_call_pump(struct cst_client *client, struct cst_err *err);

/* Send what is queued and wait for a reply, @timeout_ms at most (-1: without end). CST_OK:
 * something happened; CST_ETIMEDOUT; or what ended the connection. */
int cst_call_wait(struct cst_client *client, int timeout_ms, struct cst_err *err);

#endif
