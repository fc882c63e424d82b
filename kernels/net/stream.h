/* SPDX-License-Identifier: Apache-2.0 */
/* The transports "tcp" and "tls": each lane has a connection to each machine from which it reads,
 * and a thread serves each connection of others. The parts are stream_pull.c (lanes) and
 * stream_serve.c (connections of others). */
#ifndef CST_NET_STREAM_H
#define CST_NET_STREAM_H

#include "kernels/net/address.h"
#include "kernels/net/channel.h"

struct cste_stream_server;
struct cste_stream_lane;

struct cste_stream {
    struct cste_net *net; /* Borrowed. */
    const struct cste_channel_ops *ops;
    void *shared; /* Of ops. */
    char address[CSTE_ADDRESS_MAX];
    struct cste_stream_lane *lanes;    /* One for each thread; owned. */
    struct cste_stream_server *server; /* Owned. */
};

/* Functions of the table, for stream_pull.c. @state is a struct cste_stream. */
int cste_stream_begin(void *state, unsigned thread, struct cste_net_pull *pull,
                      struct cst_err *err);
void cste_stream_finish(void *state, unsigned thread, struct cste_net_pull *pull);

/* Make the lanes. CST_ENOMEM. */
int cste_stream_open_lanes(struct cste_stream *stream, struct cst_err *err);
void cste_stream_close_lanes(struct cste_stream *stream);

/* Listen at net->listen and serve; writes stream->address. CST_EINVAL: it is no address of this
 * machine; CST_ENOMEM, CST_EIO. */
int cste_stream_open_server(struct cste_stream *stream, struct cst_err *err);
void cste_stream_close_server(struct cste_stream *stream);

#endif
