/* SPDX-License-Identifier: Apache-2.0 */
/* A connection over which bytes go in order: plain or encrypted. The socket does not block; whoever
 * waits for it also waits for the end of the peer. One thread uses a channel. */
#ifndef CST_NET_CHANNEL_H
#define CST_NET_CHANNEL_H

#include "kernels/net/transport.h"

#include <sys/types.h>

struct cste_channel;

/* How bytes go into the socket and out of it. */
struct cste_channel_ops {
    /* Make what all channels of an engine share, in *shared; sets the certificate of *end, if there
     * is one. CST_ENOMEM, CST_EINTERNAL. */
    int (*open)(void **shared, struct cste_net *net, struct cste_net_end *end, struct cst_err *err);
    void (*close)(void *shared);
    /* Begin on a new connection. @peer: the machine that was called; NULL: this side was called. */
    int (*start)(void *shared, struct cste_channel *channel, const struct cste_net_peer *peer,
                 struct cst_err *err);
    /* Also after a start that has failed. */
    void (*stop)(struct cste_channel *channel);
    /* Return the number of bytes that went; 0: none now, poll for channel->wants; -1: the
     * connection is over, @err says why. @more: further bytes follow at once. */
    ssize_t (*send)(struct cste_channel *channel, const void *from, size_t bytes, bool more,
                    struct cst_err *err);
    ssize_t (*receive)(struct cste_channel *channel, void *to, size_t bytes, struct cst_err *err);
    /* Returns whether the other side has proved to be @peer. */
    bool (*is_peer)(const struct cste_channel *channel, const struct cste_net_peer *peer);
};

struct cste_channel {
    const struct cste_channel_ops *ops; /* NULL: it was not set up. */
    int fd;                             /* Owned; -1: none. */
    short wants;  /* Events that the last call of send or receive has to wait for. */
    void *secret; /* State of ops. */
};

extern const struct cste_channel_ops cste_channel_plain, cste_channel_encrypted;

/* Set up @channel, of which fd is set and all else is zero. Only cste_channel_close closes the
 * socket, also after a failure. CST_ENOMEM, CST_EINTERNAL. */
int cste_channel_open(struct cste_channel *channel, const struct cste_channel_ops *ops,
                      void *shared, const struct cste_net_peer *peer, struct cst_err *err);

void cste_channel_close(struct cste_channel *channel);

/* Wait until @channel has what it wants. CST_ECANCELLED: @wake (-1: none) is readable;
 * CST_ETIMEDOUT: it is @until (cst_clock_ns; 0: never). */
int cste_channel_wait(const struct cste_channel *channel, int wake, uint64_t until,
                      struct cst_err *err);

/* Send or receive all @bytes. CST_ECONN: the connection is over; CST_ECANCELLED, CST_ETIMEDOUT as
 * for cste_channel_wait. */
int cste_channel_send(struct cste_channel *channel, int wake, const void *from, size_t bytes,
                      bool more, struct cst_err *err);
int cste_channel_receive(struct cste_channel *channel, int wake, uint64_t until, void *to,
                         size_t bytes, struct cst_err *err);

#endif
