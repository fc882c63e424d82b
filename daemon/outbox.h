/* What waits to be sent on one non-blocking socket. A frame is sent at once where the socket takes
 * it; else a copy waits, with duplicates of its fds, until cst_outbox_flush. */
#ifndef CST_OUTBOX_H
#define CST_OUTBOX_H

#include "proto/frame.h"

#include <stddef.h>
#include <sys/queue.h>

struct cst_outbox_item; /* private */

struct cst_outbox {
    TAILQ_HEAD(, cst_outbox_item) items; /* oldest first */
    size_t bytes;                        /* bodies and headers that wait */
    size_t n_fds;                        /* duplicates that wait with them */
};

void cst_outbox_init(struct cst_outbox *outbox);

/* Drop what waits and close its fds. */
void cst_outbox_close(struct cst_outbox *outbox);

/* Send @frame on @sock after everything that waits. CST_OK: sent; CST_EAGAIN: it waits; CST_ECONN:
 * the peer is gone; CST_ENOMEM; CST_EINVAL: over a frame's limits. */
int cst_outbox_send(struct cst_outbox *outbox, int sock, const struct cst_frame *frame,
                    struct cst_err *err);

/* Send what waits. CST_OK: nothing waits any more; CST_EAGAIN: the socket is full; CST_ECONN.
 * *n_sent (may be NULL): frames that went. */
int cst_outbox_flush(struct cst_outbox *outbox, int sock, unsigned *n_sent, struct cst_err *err);

#endif
