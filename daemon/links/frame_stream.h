/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a stream of bytes into frames (proto/frame.h). Pure computation. */
#ifndef CSTD_FRAME_STREAM_H
#define CSTD_FRAME_STREAM_H

#include "proto/frame.h"

struct cstd_frame_stream {
    uint8_t *bytes;  /* Begin of the frame that is being received; owned. */
    size_t n;        /* Number of bytes that have come. */
    size_t wanted;   /* Length of the frame, or of a header while that is incomplete. */
    size_t max_body; /* Longest body that is accepted. */
};

/* Accept frames with bodies of up to @max_body bytes from now on; at first, and again with a larger
 * number between frames. Memory for one such frame is allocated. CST_ENOMEM. */
int cstd_frame_stream_admit(struct cstd_frame_stream *stream, size_t max_body, struct cst_err *err);
void cstd_frame_stream_close(struct cstd_frame_stream *stream);

/* Return where the next bytes of the stream go; *n: how many at most (at least 1). */
uint8_t *cstd_frame_stream_next(struct cstd_frame_stream *stream, size_t *n);

/* The next @n bytes have come. CST_OK: they complete the frame *out, whose body is valid until the
 * next call. CST_EAGAIN: they do not. CST_EPROTO: they are no frame, or a longer one than is
 * accepted; the stream cannot go on. */
int cstd_frame_stream_take(struct cstd_frame_stream *stream, size_t n, struct cst_frame *out,
                           struct cst_err *err);

#endif
