/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/frame.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define KNOWN_FLAGS (CST_FRAME_REPLY | CST_FRAME_EVENT)

static uint16_t get16(const uint8_t *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof v);
    return le16toh(v);
}

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

static uint64_t get64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

int cst_frame_length(const uint8_t header[CST_FRAME_HEADER_BYTES], size_t *out, struct cst_err *err)
{
    const uint32_t body_bytes = get32(header + 12);

    if (get32(header) != CST_FRAME_MAGIC) {
        return cst_err_set(err, CST_EPROTO, "magic 0x%08x, expected 0x%08x", get32(header),
                           CST_FRAME_MAGIC);
    }
    if (header[4] != CST_FRAME_VERSION) {
        return cst_err_set(err, CST_EPROTO, "header version %u, expected %d", header[4],
                           CST_FRAME_VERSION);
    }
    if ((get16(header + 8) & ~KNOWN_FLAGS) != 0 || get16(header + 10) != 0) {
        return cst_err_set(err, CST_EPROTO, "unknown flags 0x%04x/0x%04x", get16(header + 8),
                           get16(header + 10));
    }
    if (body_bytes > CST_FRAME_MAX_BODY) {
        return cst_err_set(err, CST_EPROTO, "header says a body of %u bytes, limit %d", body_bytes,
                           CST_FRAME_MAX_BODY);
    }
    *out = CST_FRAME_HEADER_BYTES + (size_t)body_bytes;
    return CST_OK;
}

int cst_frame_parse(const uint8_t *bytes, size_t n, unsigned n_fds, struct cst_frame *out,
                    struct cst_err *err)
{
    size_t length = 0;
    int rc;

    if (n < CST_FRAME_HEADER_BYTES) {
        return cst_err_set(err, CST_EPROTO, "message of %zu bytes, a header has %d", n,
                           CST_FRAME_HEADER_BYTES);
    }
    rc = cst_frame_length(bytes, &length, err);
    if (rc != CST_OK) {
        return rc;
    }
    if (length != n) {
        return cst_err_set(err, CST_EPROTO, "header says a body of %zu bytes, %zu came",
                           length - CST_FRAME_HEADER_BYTES, n - CST_FRAME_HEADER_BYTES);
    }
    if (bytes[5] != n_fds || n_fds > CST_FRAME_MAX_FDS) {
        return cst_err_set(err, CST_EPROTO, "header says %u fds, %u came, limit %d", bytes[5],
                           n_fds, CST_FRAME_MAX_FDS);
    }
    out->type = get16(bytes + 6);
    out->flags = get16(bytes + 8);
    out->request = get64(bytes + 16);
    out->body_bytes = (uint32_t)(length - CST_FRAME_HEADER_BYTES);
    out->body = bytes + CST_FRAME_HEADER_BYTES;
    out->n_fds = n_fds;
    return CST_OK;
}

void cst_frame_header(const struct cst_frame *frame, uint8_t out[CST_FRAME_HEADER_BYTES])
{
    uint32_t magic = htole32(CST_FRAME_MAGIC), body_bytes = htole32(frame->body_bytes);
    uint16_t type = htole16(frame->type), flags = htole16(frame->flags);
    uint64_t request = htole64(frame->request);

    memset(out, 0, CST_FRAME_HEADER_BYTES);
    memcpy(out, &magic, 4);
    out[4] = CST_FRAME_VERSION;
    out[5] = (uint8_t)frame->n_fds;
    memcpy(out + 6, &type, 2);
    memcpy(out + 8, &flags, 2);
    memcpy(out + 12, &body_bytes, 4);
    memcpy(out + 16, &request, 8);
}

void cst_frame_close_fds(struct cst_frame *frame)
{
    for (unsigned i = 0; i < frame->n_fds; i++) {
        (void)close(frame->fds[i]);
    }
    frame->n_fds = 0;
}

/* Space for the descriptors of a message. The kernel closes those that do not fit, and tells so by
 * MSG_CTRUNC. */
union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * CST_FRAME_MAX_FDS)];
};
/* With an odd limit, CMSG_SPACE would have space for one more. */
_Static_assert(sizeof(union control) == CMSG_LEN(sizeof(int) * CST_FRAME_MAX_FDS),
               "there is space for exactly CST_FRAME_MAX_FDS descriptors");

/* Take the descriptors out of @msg, which was received with a union control. Returns the number. */
static unsigned take_fds(struct msghdr *msg, int out[CST_FRAME_MAX_FDS])
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            size_t bytes = c->cmsg_len - CMSG_LEN(0);

            memcpy(out, CMSG_DATA(c), bytes);
            return (unsigned)(bytes / sizeof(int));
        }
    }
    return 0;
}

int cst_frame_recv(int sock, int recv_flags, struct cst_frame_buf *buf, struct cst_frame *out,
                   struct cst_err *err)
{
    union control control;
    struct iovec iov = {.iov_base = buf->bytes, .iov_len = sizeof buf->bytes};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;
    unsigned n_fds;
    int rc;

    msg.msg_control = control.bytes;
    msg.msg_controllen = sizeof control.bytes;
    do {
        n = recvmsg(sock, &msg, recv_flags | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return CST_EAGAIN;
        }
        return cst_err_errno(err, CST_ECONN, errno, "recvmsg");
    }
    n_fds = take_fds(&msg, out->fds);
    out->n_fds = n_fds;
    /* A valid message has a header; 0 bytes mean the end of the connection. */
    if (n == 0 && n_fds == 0) {
        return cst_err_set(err, CST_ECONN, "the peer closed the connection");
    }
    if ((msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        rc = cst_err_set(err, CST_EPROTO, "message over the limit of %zu bytes or %d fds",
                         sizeof buf->bytes, CST_FRAME_MAX_FDS);
        goto err_after_fds;
    }
    rc = cst_frame_parse(buf->bytes, (size_t)n, n_fds, out, err);
    if (rc != CST_OK) {
        goto err_after_fds;
    }
    return CST_OK;

err_after_fds:
    cst_frame_close_fds(out);
    return rc;
}

/* Most messages are small and have no descriptors. Copying such a body costs less than a second
 * iovec. */
enum { SMALL_BYTES = 1024 };

static ssize_t send_small(int sock, int send_flags, const struct cst_frame *frame)
{
    uint8_t bytes[CST_FRAME_HEADER_BYTES + SMALL_BYTES];

    cst_frame_header(frame, bytes);
    if (frame->body_bytes > 0) {
        memcpy(bytes + CST_FRAME_HEADER_BYTES, frame->body, frame->body_bytes);
    }
    return send(sock, bytes, CST_FRAME_HEADER_BYTES + frame->body_bytes, send_flags);
}

static ssize_t send_large(int sock, int send_flags, const struct cst_frame *frame)
{
    union control control;
    uint8_t header[CST_FRAME_HEADER_BYTES];
    struct iovec iov[2] = {
        {.iov_base = header, .iov_len = sizeof header},
        {.iov_base = (void *)(uintptr_t)frame->body, .iov_len = frame->body_bytes}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

    cst_frame_header(frame, header);
    if (frame->n_fds > 0) {
        struct cmsghdr *c;

        memset(&control, 0, sizeof control);
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * frame->n_fds);
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * frame->n_fds);
        memcpy(CMSG_DATA(c), frame->fds, sizeof(int) * frame->n_fds);
    }
    return sendmsg(sock, &msg, send_flags);
}

/* Classify an error of sending: the socket is full, this process is short of something, or the peer
 * is gone. */
static int classify_send(int errnum, struct cst_err *err)
{
    switch (errnum) {
    case EAGAIN:
        return CST_EAGAIN;
    case ETOOMANYREFS:
    case ENOBUFS:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
        return cst_err_errno(err, CST_ENOMEM, errnum, "sendmsg");
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
    case ECONNREFUSED:
        return cst_err_errno(err, CST_ECONN, errnum, "sendmsg");
    default:
        return cst_err_errno(err, CST_EINTERNAL, errnum, "sendmsg");
    }
}

int cst_frame_send(int sock, int send_flags, const struct cst_frame *frame, struct cst_err *err)
{
    bool small = frame->n_fds == 0 && frame->body_bytes <= SMALL_BYTES;
    ssize_t n;

    if (frame->body_bytes > CST_FRAME_MAX_BODY || frame->n_fds > CST_FRAME_MAX_FDS) {
        return cst_err_set(err, CST_EINVAL, "body of %u bytes and %u fds, limits %d and %d",
                           frame->body_bytes, frame->n_fds, CST_FRAME_MAX_BODY, CST_FRAME_MAX_FDS);
    }
    do {
        n = small ? send_small(sock, send_flags | MSG_NOSIGNAL, frame)
                  : send_large(sock, send_flags | MSG_NOSIGNAL, frame);
    } while (n < 0 && errno == EINTR);
    if (n >= 0) {
        return CST_OK;
    }
    return classify_send(errno, err);
}
