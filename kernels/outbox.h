/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine has to say and the socket has not taken yet. Nothing is ever dropped: while the
 * socket is full messages wait here, completions unpacked, so that the later they leave, the more
 * of them share a message. Loop thread. */
#ifndef CST_OUTBOX_H
#define CST_OUTBOX_H

#include "proto/engine.pb-c.h"
#include "proto/frame.h"

struct cst_outbox_message; /* private: a packed message */

/* One finished command. */
struct cst_completion {
    uint64_t ticket;             /* of the command */
    int status;                  /* outcome */
    bool has_value;              /* NORM */
    double value;                /* NORM */
    char *text;                  /* owned; NULL where status is 0 */
    uint64_t began_ns, ended_ns; /* monotonic; 0: there was nothing to do */
    struct cst_completion *next; /* younger */
};

struct cst_outbox {
    int sock;  /* borrowed, a SOCK_SEQPACKET */
    bool full; /* the socket takes no more: wait until it is writable */
    struct cst_outbox_message *messages, **messages_tail; /* packed, first in first out */
    struct cst_completion *completions,
        **completions_tail; /* not packed; younger than all messages */
};

void cst_outbox_init(struct cst_outbox *outbox, int sock);

/* Forget what is in it. */
void cst_outbox_close(struct cst_outbox *outbox);

/* Say @message of @type after everything said before, with @fd (-1: none), which is taken over,
 * also on failure. @flags and @request as in a frame. CST_ENOMEM; CST_EINVAL: it is over the limit.
 */
int cst_outbox_say(struct cst_outbox *outbox, Engine__MsgType type, uint16_t flags,
                   uint64_t request, const ProtobufCMessage *message, int fd, struct cst_err *err);

/* Say that a command is over. @text is copied; NULL: none. @began_ns, @ended_ns: monotonic times of
 * its work; 0: there was none. CST_ENOMEM. */
int cst_outbox_complete(struct cst_outbox *outbox, uint64_t ticket, int status, const double *value,
                        const char *text, uint64_t began_ns, uint64_t ended_ns,
                        struct cst_err *err);

/* Send what the socket takes; outbox->full tells whether something is left. CST_ECONN: the peer is
 * gone; CST_ENOMEM. */
int cst_outbox_send(struct cst_outbox *outbox, struct cst_err *err);

#endif
