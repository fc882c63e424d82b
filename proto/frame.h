/* SPDX-License-Identifier: Apache-2.0 */
/* One message on a SOCK_SEQPACKET socket: a 24-byte little-endian header, a protobuf body, file
 * descriptors. The kernel keeps message edges, so there is no partial-frame state. Knows nothing of
 * message contents.
 *
 *   0        4         5      6       8        10          12            16
 *   +--------+---------+------+-------+--------+-----------+-------------+------------------+
 *   | magic  | version | n_fd | type  | flags  | reserved  | body_bytes  | request id (u64) |
 *   | u32    | u8      | u8   | u16   | u16    | u16 = 0   | u32         |                  |  then
 * body_bytes of body
 *   +--------+---------+------+-------+--------+-----------+-------------+------------------+ */
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
#define CST_FRAME_DECLARE_BYTES 2048

enum cst_frame_flags {
    CST_FRAME_REPLY = 1, /* final reply to the request with this id */
    CST_FRAME_EVENT = 2, /* unasked; request id 0 */
};

struct cst_frame {
    uint16_t type;       /* message type: enum Cistern__MsgType or Engine__MsgType */
    uint16_t flags;      /* enum cst_frame_flags */
    uint64_t request;    /* chosen by the requester, echoed in the reply */
    uint32_t body_bytes; /* length of body */
    const uint8_t *body; /* borrowed: into the buffer given to cst_frame_recv, or the caller's */
    int fds[CST_FRAME_MAX_FDS]; /* received: owned by the caller; to send: borrowed */
    unsigned n_fds;             /* how many of them */
};

/* Buffer that cst_frame_recv reads into. One per connection; 64 KiB and a header. */
struct cst_frame_buf {
    uint8_t bytes[CST_FRAME_HEADER_BYTES + CST_FRAME_MAX_BODY];
};

/* Read the header of @bytes (a whole message of @n bytes that came with @n_fds fds) into @out;
 * out->fds is not touched. Pure. CST_EPROTO with the reason in @err: short, wrong magic or version,
 * unknown flags, body length or fd count that lies, oversize. */
int cst_frame_parse(const uint8_t *bytes, size_t n, unsigned n_fds, struct cst_frame *out,
                    struct cst_err *err);

/* Write the 24 header bytes of @frame. Pure. */
void cst_frame_header(const struct cst_frame *frame, uint8_t out[CST_FRAME_HEADER_BYTES]);

/* Receive one message from @sock without blocking if the socket or MSG_DONTWAIT in @recv_flags says
 * so. All fds that arrive are CLOEXEC and, on any failure, closed. CST_OK; CST_EAGAIN: nothing
 * there; CST_ECONN: the peer hung up; CST_EPROTO: the connection must be closed (bad frame,
 * MSG_TRUNC, MSG_CTRUNC, fd count). */
int cst_frame_recv(int sock, int recv_flags, struct cst_frame_buf *buf, struct cst_frame *out,
                   struct cst_err *err);

/* Send one message. Where it fails nothing was sent. Never raises SIGPIPE.
 * CST_EAGAIN: the socket is full (only with MSG_DONTWAIT or a non-blocking socket). Poll it for
 * POLLOUT. CST_ENOMEM: this process or the kernel is short of memory, or this user has too many
 * descriptors in flight that their receivers have not read (ETOOMANYREFS). The peer is not to
 * blame. POLLOUT does not tell the end of it. CST_ECONN: the peer is gone. CST_EINVAL: body or fd
 * count is over the limit. CST_EINTERNAL: anything else; a mistake of this process. */
int cst_frame_send(int sock, int send_flags, const struct cst_frame *frame, struct cst_err *err);

/* Close all fds in @frame and set n_fds to 0. */
void cst_frame_close_fds(struct cst_frame *frame);

#endif
