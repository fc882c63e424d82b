/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of cst_client_fd(). It polls readable when
 *   - the daemon has sent something,
 *   - the stream of the job's device may have passed a mark,
 *   - a request that could not be sent should be sent again.
 * Used by the client's thread only. */
#ifndef CST_WAKE_H
#define CST_WAKE_H

#include "cistern/cistern.h"

/* When the oldest request in a client's queue should be sent again. */
enum cstc_resend {
    CSTC_RESEND_NONE,  /* No request waits, or it waits for a reply, which returns a credit. */
    CSTC_RESEND_SPACE, /* When the socket has space. */
    /* After some time: the kernel had no memory for the request, and does not say when it has. */
    CSTC_RESEND_LATER,
};

struct cstc_wake {
    int epoll;               /* Polls all the others; -1: not open. */
    int timer;               /* Expires when CSTC_RESEND_LATER is due; -1: not open. */
    enum cstc_resend resend; /* What cstc_wake_resend was told last. */
};

/* Make the descriptors, and poll @sock. On failure, @wake can be closed. CST_EIO. */
int cstc_wake_open(struct cstc_wake *wake, int sock, struct cst_err *err);

/* Close the descriptors. Does nothing if they are closed or were never opened (-1). */
void cstc_wake_close(struct cstc_wake *wake);

/* Poll @sock instead of an earlier socket, which is closed. CST_EIO. */
int cstc_wake_add_socket(struct cstc_wake *wake, int sock, struct cst_err *err);

/* Poll the device's descriptor @fd, too, until it is closed. CST_EINVAL: it cannot be polled. */
int cstc_wake_add_device(struct cstc_wake *wake, int fd, struct cst_err *err);

/* Say when the oldest queued request should be sent again. Called after each attempt to send one.
 * @sock is the socket of cstc_wake_open. */
void cstc_wake_resend(struct cstc_wake *wake, int sock, enum cstc_resend resend);

#endif
