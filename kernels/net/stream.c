/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/stream.h"

#include <stdlib.h>

static void stream_close(void *state)
{
    struct cste_stream *stream = state;

    cste_stream_close_server(stream);
    cste_stream_close_lanes(stream);
    stream->ops->close(stream->shared);
    free(stream);
}

static int stream_open(void **state, const struct cste_channel_ops *ops, struct cste_net *net,
                       struct cste_net_end *end, struct cst_err *err)
{
    struct cste_stream *stream = calloc(1, sizeof *stream);
    int rc;

    if (stream == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a transport");
    }
    stream->net = net;
    stream->ops = ops;
    rc = ops->open(&stream->shared, net, end, err);
    if (rc != CST_OK) {
        free(stream);
        return rc;
    }
    rc = cste_stream_open_lanes(stream, err);
    if (rc == CST_OK) {
        rc = cste_stream_open_server(stream, err);
    }
    if (rc != CST_OK) {
        stream_close(stream);
        return rc;
    }
    end->address = stream->address;
    *state = stream;
    return CST_OK;
}

static int tcp_open(void **state, struct cste_net *net, struct cste_net_end *end,
                    struct cst_err *err)
{
    return stream_open(state, &cste_channel_plain, net, end, err);
}

static int tls_open(void **state, struct cste_net *net, struct cste_net_end *end,
                    struct cst_err *err)
{
    return stream_open(state, &cste_channel_encrypted, net, end, err);
}

/* Any versions of the kernel and of a TLS library understand each other. */
static const char *stream_version(void)
{
    return "1";
}

/* A thread that waits for a peer is woken by peer->dropped, and none holds a segment while it
 * waits. */
static void stream_interrupt(void *state)
{
    (void)state;
}

const struct cste_net_transport cste_net_tcp = {.name = "tcp",
                                                .version = stream_version,
                                                .open = tcp_open,
                                                .close = stream_close,
                                                .begin = cste_stream_begin,
                                                .finish = cste_stream_finish,
                                                .interrupt = stream_interrupt};

const struct cste_net_transport cste_net_tls = {.name = "tls",
                                                .version = stream_version,
                                                .open = tls_open,
                                                .close = stream_close,
                                                .begin = cste_stream_begin,
                                                .finish = cste_stream_finish,
                                                .interrupt = stream_interrupt};
