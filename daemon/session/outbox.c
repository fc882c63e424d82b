/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/session/outbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct cstd_outbox_item {
    TAILQ_ENTRY(cstd_outbox_item) link;
    /* body points to the end of this item; the descriptors are duplicates if the outbox has an
     * unread. */
    struct cst_frame frame;
    uint8_t body[];
};

void cstd_outbox_init(struct cstd_outbox *outbox, struct cstd_unread *unread)
{
    *outbox = (struct cstd_outbox){.unread = unread};
    TAILQ_INIT(&outbox->items);
}

static void drop_item(struct cstd_outbox *outbox, struct cstd_outbox_item *item)
{
    TAILQ_REMOVE(&outbox->items, item, link);
    outbox->bytes -= CST_FRAME_HEADER_BYTES + item->frame.body_bytes;
    outbox->n_fds -= item->frame.n_fds;
    if (outbox->unread != NULL) {
        cstd_unread_unkeep(outbox->unread, item->frame.n_fds);
        cst_frame_close_fds(&item->frame);
    }
    free(item);
}

void cstd_outbox_close(struct cstd_outbox *outbox)
{
    while (!TAILQ_EMPTY(&outbox->items)) {
        drop_item(outbox, TAILQ_FIRST(&outbox->items));
    }
}

static int copy_fds(struct cstd_unread *unread, struct cst_frame *to, const struct cst_frame *from,
                    struct cst_err *err)
{
    if (!cstd_unread_keep(unread, from->n_fds)) {
        return cst_err_set(err, CST_ENOCREDIT,
                           "%u descriptors wait for clients that do not read their replies, the "
                           "limit is %u (a quarter of LimitNOFILE)",
                           unread->total->waiting, unread->total->limit);
    }
    to->n_fds = 0;
    for (unsigned i = 0; i < from->n_fds; i++) {
        int fd = fcntl(from->fds[i], F_DUPFD_CLOEXEC, 0);

        if (fd < 0) {
            int saved = errno;

            cst_frame_close_fds(to);
            cstd_unread_unkeep(unread, from->n_fds);
            return cst_err_errno(err, CST_ENOMEM, saved, "dup of a descriptor to send");
        }
        to->fds[to->n_fds++] = fd;
    }
    return CST_OK;
}

static int enqueue(struct cstd_outbox *outbox, const struct cst_frame *frame, struct cst_err *err)
{
    struct cstd_outbox_item *item = malloc(sizeof *item + frame->body_bytes);
    int rc = CST_OK;

    if (item == NULL) {
        return cst_err_set(err, CST_ENOMEM, "a reply of %u bytes", frame->body_bytes);
    }
    item->frame = *frame;
    if (outbox->unread != NULL) {
        rc = copy_fds(outbox->unread, &item->frame, frame, err);
    }
    if (rc != CST_OK) {
        free(item);
        return rc;
    }
    if (frame->body_bytes > 0) {
        memcpy(item->body, frame->body, frame->body_bytes);
    }
    item->frame.body = item->body;
    TAILQ_INSERT_TAIL(&outbox->items, item, link);
    outbox->bytes += CST_FRAME_HEADER_BYTES + frame->body_bytes;
    outbox->n_fds += frame->n_fds;
    return CST_EAGAIN;
}

/* Send @frame now if that is possible. CST_EAGAIN: not possible now; outbox->retry tells whether to
 * poll the socket or to wait for some time. */
static int try_send(struct cstd_outbox *outbox, int sock, const struct cst_frame *frame,
                    struct cst_err *err)
{
    int rc;

    outbox->retry =
        outbox->unread != NULL && !cstd_unread_admits(outbox->unread, sock, frame->n_fds);
    if (outbox->retry) {
        return CST_EAGAIN;
    }
    rc = cst_frame_send(sock, MSG_DONTWAIT, frame, err);
    /* POLLOUT does not signal the end of a shortage of memory or descriptors. */
    if (rc == CST_ENOMEM) {
        outbox->retry = true;
        return CST_EAGAIN;
    }
    if (rc == CST_OK && outbox->unread != NULL) {
        cstd_unread_sent(outbox->unread, frame->n_fds);
    }
    return rc;
}

int cstd_outbox_send(struct cstd_outbox *outbox, int sock, const struct cst_frame *frame,
                     struct cst_err *err)
{
    int rc;

    if (frame->body_bytes > CST_FRAME_MAX_BODY || frame->n_fds > CST_FRAME_MAX_FDS) {
        return cst_err_set(err, CST_EINVAL, "frame of %u bytes and %u fds", frame->body_bytes,
                           frame->n_fds);
    }
    /* Frames keep their order. */
    if (!TAILQ_EMPTY(&outbox->items)) {
        return enqueue(outbox, frame, err);
    }
    rc = try_send(outbox, sock, frame, err);
    return rc == CST_EAGAIN ? enqueue(outbox, frame, err) : rc;
}

int cstd_outbox_flush(struct cstd_outbox *outbox, int sock, unsigned *n_sent, struct cst_err *err)
{
    unsigned n = 0;
    int rc = CST_OK;

    while (!TAILQ_EMPTY(&outbox->items)) {
        struct cstd_outbox_item *item = TAILQ_FIRST(&outbox->items);

        rc = try_send(outbox, sock, &item->frame, err);
        if (rc != CST_OK) {
            break;
        }
        drop_item(outbox, item);
        n++;
    }
    if (n_sent != NULL) {
        *n_sent = n;
    }
    return rc;
}
