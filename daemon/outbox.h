/* SPDX-License-Identifier: Apache-2.0 */
/* What waits to be sent on one non-blocking socket. A frame is sent at once where that is possible;
 * else a copy of it waits until cst_outbox_flush. It waits for one of two things: for the socket,
 * which is full (poll it for POLLOUT), or for something that no socket tells about (@retry: flush
 * again after CST_OUTBOX_RETRY_MS): memory, descriptors in flight on this machine, or a client that
 * has not read descriptors that it was sent before. */
#ifndef CST_OUTBOX_H
#define CST_OUTBOX_H

#include "daemon/unread.h"
#include "proto/frame.h"

#include <stddef.h>
#include <sys/queue.h>

enum { CST_OUTBOX_RETRY_MS = 10 };

struct cst_outbox_item; /* private */

struct cst_outbox {
    TAILQ_HEAD(, cst_outbox_item) items; /* oldest first */
    size_t bytes;                        /* bodies and headers that wait */
    size_t n_fds;                        /* descriptors that wait with them */
    bool retry; /* With something waiting: it does not wait for POLLOUT, but for some time. */
    struct cst_unread *unread; /* A session's account of descriptors, which bounds those in flight;
                                  the owner's. NULL: the peer is an engine, which always reads. */
};

/* With @unread a frame that waits keeps duplicates of its descriptors. Without it the descriptors
 * themselves must stay open until the frame is sent or the outbox closed. */
void cst_outbox_init(struct cst_outbox *outbox, struct cst_unread *unread);

/* Drop what waits and close its fds. */
void cst_outbox_close(struct cst_outbox *outbox);

/* Send @frame on @sock after everything that waits. CST_OK: sent. CST_EAGAIN: it waits. Otherwise
 * it was neither sent nor queued. CST_ECONN: the peer is gone. CST_ENOCREDIT: too many descriptors
 * wait for clients that do not read. CST_ENOMEM: no memory, or no descriptor, for the copy.
 * CST_EINVAL: it is over a frame's limits. CST_EINTERNAL: a mistake of the daemon's. */
int cst_outbox_send(struct cst_outbox *outbox, int sock, const struct cst_frame *frame,
                    struct cst_err *err);

/* Send what waits. CST_OK: nothing waits any more. CST_EAGAIN: something still does. CST_ECONN: the
 * peer is gone. CST_EINTERNAL: a mistake of the daemon's. *n_sent (may be NULL): frames that went.
 */
int cst_outbox_flush(struct cst_outbox *outbox, int sock, unsigned *n_sent, struct cst_err *err);

#endif
