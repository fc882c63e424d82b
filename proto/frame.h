/* SPDX-License-Identifier: Apache-2.0 */
/* One message on a SOCK_SEQPACKET socket: a 24-byte little-endian header, a protobuf body, file
 * descriptors. The kernel preserves message boundaries, hence there are no partial frames. On the
 * streams between daemons (daemon/links), frames follow each other, and have no descriptors. This
 * module does not interpret the contents. No state; any thread.
 *
 *   0        4         5      6       8        10          12            16                 24
 *   +--------+---------+------+-------+--------+-----------+-------------+------------------+-----
 *   | magic  | version | n_fd | type  | flags  | reserved  | body_bytes  | request id (u64) | body
 *   | u32    | u8      | u8   | u16   | u16    | u16 = 0   | u32         |                  |
 *   +--------+---------+------+-------+--------+-----------+-------------+------------------+-----
 */
#ifndef CST_FRAME_H
#define CST_FRAME_H

#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

#define CST_FRAME_MAGIC 0x4e545343u /* "CSTN" */
#define CST_FRAME_VERSION 1
#define CST_FRAME_HEADER_BYTES 24
#define CST_FRAME_MAX_BODY 65536 /* bytes */
#define CST_FRAME_MAX_FDS 16
/* Longest body of a Declare with several declarations, in bytes. The daemon serves one message at a
 * time, so that a longer message would delay the requests of other users. */
#define CST_FRAME_DECLARE_BYTES 512

enum cst_frame_flags {
    CST_FRAME_REPLY = 1, /* Final reply to the request with this id. */
    CST_FRAME_EVENT = 2, /* A message that nobody requested; request id 0. */
};

struct cst_frame {
    uint16_t type;       /* Message type: enum Cistern__MsgType or Engine__MsgType. */
    uint16_t flags;      /* enum cst_frame_flags */
    uint64_t request;    /* Chosen by the requester, repeated in the reply. */
    uint32_t body_bytes; /* Length of body. */
    /* Borrowed: part of the buffer given to cst_frame_recv, or the sender's. */
    const uint8_t *body;
    /* Descriptors. Received: the caller owns them. To send: borrowed. */
    int fds[CST_FRAME_MAX_FDS];
    unsigned n_fds; /* Number of descriptors. */
};

/* Buffer for cst_frame_recv, one per connection: 64 KiB and a header. */
struct cst_frame_buf {
    uint8_t bytes[CST_FRAME_HEADER_BYTES + CST_FRAME_MAX_BODY];
};

/* Parse the header of @bytes into @out. @bytes is a whole message of @n bytes that arrived with
 * @n_fds descriptors; out->fds is not changed. Pure. CST_EPROTO, with the reason in @err: too
 * short, wrong magic or version, unknown flags, wrong body length or number of descriptors, too
 * long. */
int cst_frame_parse(const uint8_t *bytes, size_t n, unsigned n_fds, struct cst_frame *out,
                    struct cst_err *err);

/* Check the header at the begin of a message on a stream, and store the length of the whole message
 * in *out. Pure. CST_EPROTO, with the reason in @err: wrong magic or version, unknown flags, or a
 * body over the limit. */
int cst_frame_length(const uint8_t header[CST_FRAME_HEADER_BYTES], size_t *out,
                     struct cst_err *err);

/* Write the 24 header bytes of @frame. Pure. */
void cst_frame_header(const struct cst_frame *frame, uint8_t out[CST_FRAME_HEADER_BYTES]);

/* Receive one message from @sock. Does not block if the socket is non-blocking or @recv_flags has
 * MSG_DONTWAIT. Descriptors that arrive are CLOEXEC; on any failure they are closed. CST_OK;
 * CST_EAGAIN: there is no message; CST_ECONN: the peer hung up; CST_EPROTO: a bad frame, MSG_TRUNC,
 * MSG_CTRUNC or too many descriptors, and the caller must close the connection. */
int cst_frame_recv(int sock, int recv_flags, struct cst_frame_buf *buf, struct cst_frame *out,
                   struct cst_err *err);

/* Send one message. On failure nothing was sent. Never raises SIGPIPE.
 *
 * - CST_EAGAIN: the socket is full (only with MSG_DONTWAIT or a non-blocking socket). Poll it for
 *   POLLOUT.
 * - CST_ENOMEM: this process or the kernel is short of memory or descriptors, or this user has too
 *   many descriptors in flight (ETOOMANYREFS). It is not the peer's fault, and POLLOUT does not
 *   signal its end.
 * - CST_ECONN: the peer is gone.
 * - CST_EINVAL: body_bytes or n_fds is over the limit.
 * - CST_EINTERNAL: any other error; a bug in this process. */
int cst_frame_send(int sock, int send_flags, const struct cst_frame *frame, struct cst_err *err);

/* Close all descriptors in @frame and set n_fds to 0. */
void cst_frame_close_fds(struct cst_frame *frame);

#endif
