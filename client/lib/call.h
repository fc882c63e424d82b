/* SPDX-License-Identifier: Apache-2.0 */
/* Calls: one request and its one final reply. A struct cstc_call is embedded in the object that
 * makes the request. Many calls can be in flight; their replies come in any order.
 *
 *   IDLE --start--> SENT --reply, or the end of the connection--> DONE --reset--> IDLE
 *             \--> QUEUED --/
 *
 * QUEUED: the client has no credit left, the socket is full, or the kernel has no memory. The call
 * keeps the request's bytes until a later pump or wait sends them.
 *
 * A call in the state SENT or QUEUED must not be freed, because it is linked into its client. Used
 * by the client's thread only. */
#ifndef CST_CALL_H
#define CST_CALL_H

#include "client/lib/client.h"

#include <protobuf-c/protobuf-c.h>

enum cstc_call_state { CSTC_CALL_IDLE, CSTC_CALL_QUEUED, CSTC_CALL_SENT, CSTC_CALL_DONE };

struct cstc_call {
    enum cstc_call_state state; /* As in the diagram above. */
    uint16_t type;              /* Message type of the request. */
    uint16_t reply_type;        /* Message type of a successful reply. */
    /* Form of the body of a successful reply; NULL: the reply has no body. */
    const ProtobufCMessageDescriptor *reply_form;
    unsigned max_fds; /* Largest number of fds that the reply may have. */
    /* Descriptors that the request has; borrowed until the call is DONE. */
    const int *sent_fds;
    unsigned n_sent_fds;
    uint64_t request;   /* Id of the request. */
    int status;         /* DONE: result of the call. */
    struct cst_err err; /* DONE with a failure: the cause. */
    /* DONE with CST_OK and a reply_form: the reply's body. Owned by the call. */
    ProtobufCMessage *reply;
    /* Fds of the reply. Owned by the call; a caller that takes one replaces it with -1. */
    int fds[CST_FRAME_MAX_FDS];
    unsigned n_fds;         /* Number of entries in fds. */
    uint8_t *queued;        /* QUEUED: the body of the request. Owned by the call. */
    uint32_t queued_bytes;  /* QUEUED: length of the body. */
    struct cstc_call *next; /* Next call in the client's list. */
    /* Called when the call becomes DONE; may be NULL. */
    void (*done)(struct cstc_call *call);
};

/* Send a request of @type with the body @body (NULL: no body). The caller sets max_fds, done
 * and the descriptors before. @body is borrowed during this function. On failure the call stays
 * IDLE. Never waits. CST_EFORKED, CST_ECONN or the status that ended the connection; CST_EINVAL:
 * the body is larger than a message can be; CST_ENOMEM. */
int cstc_call_start(struct cst_client *client, struct cstc_call *call, uint16_t type,
                    const ProtobufCMessage *body, uint16_t reply_type,
                    const ProtobufCMessageDescriptor *reply_form, struct cst_err *err);

/* Return CST_EAGAIN until the call is DONE, then its status. Reads nothing from the socket:
 * cstc_call_pump and cstc_call_wait do. */
int cstc_call_result(const struct cstc_call *call, struct cst_err *err);

/* Free the reply and close its remaining fds; the call is then IDLE. The call must be DONE or
 * IDLE. */
void cstc_call_reset(struct cstc_call *call);

/* Start a call and wait until it is DONE. After a failure the call is IDLE. Statuses of
 * cstc_call_start and of the reply; CST_EBUSY: a cst_try_... call is pending. */
int cstc_call_sync(struct cst_client *client, struct cstc_call *call, uint16_t type,
                   const ProtobufCMessage *body, uint16_t reply_type,
                   const ProtobufCMessageDescriptor *reply_form, struct cst_err *err);

/* Send queued requests, as far as credits and the socket allow, and process all replies that have
 * arrived. Never waits. CST_OK, or the status that ended the connection. */
int cstc_call_pump(struct cst_client *client, struct cst_err *err);

/* Send queued requests and wait for a reply, at most @timeout_ms milliseconds (-1: no limit).
 * CST_OK: something happened, perhaps not the reply; CST_ETIMEDOUT; or the status that ended the
 * connection. */
int cstc_call_wait(struct cst_client *client, int timeout_ms, struct cst_err *err);

#endif
