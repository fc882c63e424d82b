/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/channel.h"

#include "proto/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

/* -- plain ---------------------------------------------------------------------------------- */

static int plain_open(void **shared, struct cste_net *net, struct cste_net_end *end,
                      struct cst_err *err)
{
    (void)net;
    (void)end;
    (void)err;
    *shared = NULL;
    return CST_OK;
}

static void plain_close(void *shared)
{
    (void)shared;
}

static int plain_start(void *shared, struct cste_channel *channel, const struct cste_net_peer *peer,
                       struct cst_err *err)
{
    (void)shared;
    (void)channel;
    (void)peer;
    (void)err;
    return CST_OK;
}

static void plain_stop(struct cste_channel *channel)
{
    (void)channel;
}

/* Returns 0 if the call that failed with errno has to wait for @events, otherwise -1. */
static ssize_t failed(struct cste_channel *channel, short events, const char *what,
                      struct cst_err *err)
{
    if (errno == EAGAIN || errno == EINTR) {
        channel->wants = events;
        return 0;
    }
    (void)cst_err_errno(err, CST_ECONN, errno, "%s", what);
    return -1;
}

static ssize_t plain_send(struct cste_channel *channel, const void *from, size_t bytes, bool more,
                          struct cst_err *err)
{
    ssize_t n = send(channel->fd, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0));

    return n >= 0 ? n : failed(channel, POLLOUT, "sending", err);
}

static ssize_t plain_receive(struct cste_channel *channel, void *to, size_t bytes,
                             struct cst_err *err)
{
    ssize_t n = recv(channel->fd, to, bytes, MSG_DONTWAIT);

    if (n == 0) {
        (void)cst_err_set(err, CST_ECONN, "it has closed the connection");
        return -1;
    }
    return n > 0 ? n : failed(channel, POLLIN, "receiving", err);
}

static bool plain_is_peer(const struct cste_channel *channel, const struct cste_net_peer *peer)
{
    (void)channel;
    (void)peer;
    return true;
}

const struct cste_channel_ops cste_channel_plain = {.open = plain_open,
                                                    .close = plain_close,
                                                    .start = plain_start,
                                                    .stop = plain_stop,
                                                    .send = plain_send,
                                                    .receive = plain_receive,
                                                    .is_peer = plain_is_peer};

/* -- all channels --------------------------------------------------------------------------- */

int cste_channel_open(struct cste_channel *channel, const struct cste_channel_ops *ops,
                      void *shared, const struct cste_net_peer *peer, struct cst_err *err)
{
    int on = 1;

    channel->ops = ops;
    /* Requests are small and must not wait for others. */
    (void)setsockopt(channel->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return ops->start(shared, channel, peer, err);
}

void cste_channel_close(struct cste_channel *channel)
{
    if (channel->fd >= 0) {
        if (channel->ops != NULL) {
            channel->ops->stop(channel);
        }
        (void)close(channel->fd);
        channel->fd = -1;
    }
}

static int timeout_until(uint64_t until)
{
    uint64_t now = cst_clock_ns();

    if (until == 0) {
        return -1;
    }
    return until <= now ? 0 : (int)((until - now) / 1000000u + 1);
}

int cste_channel_wait(const struct cste_channel *channel, int wake, uint64_t until,
                      struct cst_err *err)
{
    struct pollfd fds[2] = {{.fd = channel->fd, .events = channel->wants},
                            {.fd = wake, .events = POLLIN}};

    for (;;) {
        int n = poll(fds, 2, timeout_until(until));

        if (n < 0 && errno != EINTR) {
            return cst_err_errno(err, CST_ECONN, errno, "poll");
        }
        if (n > 0 && fds[1].revents != 0) {
            return cst_err_set(err, CST_ECANCELLED, "the machine was dropped");
        }
        if (n > 0) {
            return CST_OK;
        }
        if (until != 0 && cst_clock_ns() >= until) {
            return cst_err_set(err, CST_ETIMEDOUT, "no whole request came in time");
        }
    }
}

int cste_channel_send(struct cste_channel *channel, int wake, const void *from, size_t bytes,
                      bool more, struct cst_err *err)
{
    const char *at = from;
    int rc = CST_OK;

    while (bytes > 0 && rc == CST_OK) {
        ssize_t n = channel->ops->send(channel, at, bytes, more, err);

        if (n < 0) {
            return err->status;
        }
        rc = n == 0 ? cste_channel_wait(channel, wake, 0, err) : CST_OK;
        at += n;
        bytes -= (size_t)n;
    }
    return rc;
}

int cste_channel_receive(struct cste_channel *channel, int wake, uint64_t until, void *to,
                         size_t bytes, struct cst_err *err)
{
    char *at = to;
    int rc = CST_OK;

    while (bytes > 0 && rc == CST_OK) {
        ssize_t n = channel->ops->receive(channel, at, bytes, err);

        if (n < 0) {
            return err->status;
        }
        rc = n == 0 ? cste_channel_wait(channel, wake, until, err) : CST_OK;
        at += n;
        bytes -= (size_t)n;
    }
    return rc;
}
