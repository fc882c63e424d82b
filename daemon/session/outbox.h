/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that wait to be sent on one non-blocking socket. A frame is sent at once if possible;
 * otherwise a copy of the frame waits until cstd_outbox_flush. A frame waits for one of two
 * reasons:
 * - The socket is full. The owner polls it for POLLOUT.
 * - Something is short for which there is no event: memory, descriptors in flight on this machine,
 *   or a client's reading of descriptors that were sent to it before. Then @retry is true, and the
 *   owner flushes again after CSTD_OUTBOX_RETRY_MS. */
#ifndef CSTD_OUTBOX_H
#define CSTD_OUTBOX_H

#include "daemon/session/unread.h"
#include "proto/frame.h"

#include <stddef.h>
#include <sys/queue.h>

enum { CSTD_OUTBOX_RETRY_MS = 10 };

struct cstd_outbox_item; /* private */

struct cstd_outbox {
    TAILQ_HEAD(, cstd_outbox_item) items; /* Frames that wait, oldest first. */
    size_t bytes;                         /* Bytes of the headers and bodies that wait. */
    size_t n_fds;                         /* Number of descriptors in the frames that wait. */
    /* Valid while a frame waits. The owner must flush again after some time instead of polling for
     * POLLOUT. */
    bool retry;
    /* The session's count of descriptors in flight, which limits them; belongs to the owner. NULL:
     * the peer is an engine, which always reads. */
    struct cstd_unread *unread;
};

/* Initialise @outbox. With @unread, a frame that waits keeps duplicates of its descriptors. Without
 * @unread, the caller keeps the descriptors of a frame open until the frame is sent or the outbox
 * is closed. */
void cstd_outbox_init(struct cstd_outbox *outbox, struct cstd_unread *unread);

/* Drop the frames that wait and close their duplicated descriptors. */
void cstd_outbox_close(struct cstd_outbox *outbox);

/* Send @frame on @sock after all frames that wait.
 *
 * - CST_OK: sent.
 * - CST_EAGAIN: a copy of @frame waits.
 * - Every other status: @frame was neither sent nor queued.
 * - CST_ECONN: the peer is gone.
 * - CST_ENOCREDIT: too many descriptors wait for clients that do not read.
 * - CST_ENOMEM: no memory or no descriptor for the copy.
 * - CST_EINVAL: @frame exceeds the limits of a frame.
 * - CST_EINTERNAL: a bug in the daemon. */
int cstd_outbox_send(struct cstd_outbox *outbox, int sock, const struct cst_frame *frame,
                     struct cst_err *err);

/* Send the frames that wait. CST_OK: no frame waits any more. CST_EAGAIN: at least one still waits.
 * CST_ECONN: the peer is gone. CST_EINTERNAL: a bug in the daemon. *n_sent (may be NULL) is set to
 * the number of frames that were sent. */
int cstd_outbox_flush(struct cstd_outbox *outbox, int sock, unsigned *n_sent, struct cst_err *err);

#endif
