/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the daemon that the socket has not taken yet. Messages are never dropped. While the
 * socket is full, messages wait here. Completions wait unpacked: a longer wait lets more
 * completions share one message. Loop thread. */
#ifndef CSTE_OUTBOX_H
#define CSTE_OUTBOX_H

#include "proto/engine.pb-c.h"
#include "proto/frame.h"

struct cste_outbox_message; /* A packed message; private to outbox.c. */

/* One finished command. */
struct cste_completion {
    uint64_t ticket; /* Ticket of the command. */
    int status;      /* Result of the command. */
    bool has_value;  /* NORM: the command has a value. */
    double value;    /* NORM: the value. */
    char *text;      /* Message text; owned. NULL if status is 0. */
    /* Monotonic times of the work of the command. 0: there was no work to do. */
    uint64_t began_ns, ended_ns;
    struct cste_completion *next; /* Next younger completion. */
};

enum { CSTE_OUTBOX_RETRY_MS = 10 };

/* Messages and completions that wait for the socket. */
struct cste_outbox {
    int sock;  /* A SOCK_SEQPACKET socket; borrowed. */
    bool full; /* The socket took not all messages. */
    /* If full: the kernel had no memory for a message. POLLOUT does not say when it has, so that
     * the owner sends again after CSTE_OUTBOX_RETRY_MS. */
    bool starved;
    struct cste_outbox_message *messages,
        **messages_tail; /* Packed messages, first in first out. */
    /* Completions that are not packed yet. These completions are younger than all messages. */
    struct cste_completion *completions, **completions_tail;
};

/* Initialise an empty outbox for @sock, which is borrowed. */
void cste_outbox_init(struct cste_outbox *outbox, int sock);

/* Queue @message of @type after everything that was queued before. @fd (-1: none) goes with the
 * message and is taken over, also on failure. @flags and @request as in a frame. CST_ENOMEM;
 * CST_EINVAL: the message is larger than a frame may be. */
int cste_outbox_say(struct cste_outbox *outbox, Engine__MsgType type, uint16_t flags,
                    uint64_t request, const ProtobufCMessage *message, int fd, struct cst_err *err);

/* Queue the completion of a command. @value and @text are copied; NULL: none. @began_ns and
 * @ended_ns are the monotonic times of the work; 0: there was no work. CST_ENOMEM. */
int cste_outbox_complete(struct cste_outbox *outbox, uint64_t ticket, int status,
                         const double *value, const char *text, uint64_t began_ns,
                         uint64_t ended_ns, struct cst_err *err);

/* Send as much as the socket takes. outbox->full then says whether something is left, and
 * outbox->starved when to call again. CST_ECONN: the daemon has closed the connection; CST_ENOMEM:
 * no memory to pack completions. */
int cste_outbox_send(struct cste_outbox *outbox, struct cst_err *err);

#endif
