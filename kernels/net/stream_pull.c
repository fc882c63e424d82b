/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/stream.h"

#include "kernels/net/pull.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>

#define SILENCE_S 24

/* A connection of a lane, over which replies come in the order of the requests. */
struct link {
    struct cste_net_peer *peer; /* Held. */
    struct cste_channel channel;
    struct cste_net_pull *first, **last; /* Pulls that wait for a reply, the oldest first. */
    struct link *next;
};

struct cste_stream_lane {
    struct link *links;
    uint64_t last_id; /* Of a request. */
};

int cste_stream_open_lanes(struct cste_stream *stream, struct cst_err *err)
{
    stream->lanes = calloc(stream->net->n_threads, sizeof *stream->lanes);
    return stream->lanes != NULL
               ? CST_OK
               : cst_err_set(err, CST_ENOMEM, "no memory for %u lanes", stream->net->n_threads);
}

/* Close the link to which @at points. No pull waits for it. */
static void close_link(struct cste_stream *stream, struct link **at)
{
    struct link *link = *at;

    *at = link->next;
    cste_channel_close(&link->channel);
    cste_net_peers_release(&stream->net->peers, link->peer);
    free(link);
}

void cste_stream_close_lanes(struct cste_stream *stream)
{
    for (unsigned i = 0; stream->lanes != NULL && i < stream->net->n_threads; i++) {
        while (stream->lanes[i].links != NULL) {
            close_link(stream, &stream->lanes[i].links);
        }
    }
    free(stream->lanes);
}

/* The connection is over: all its pulls fail, and the next one of the lane makes a new connection.
 */
static void break_link(struct cste_stream *stream, struct link *link, const struct cst_err *why)
{
    cste_channel_close(&link->channel);
    while (link->first != NULL) {
        struct cste_net_pull *pull = link->first;

        link->first = pull->next;
        cste_net_pull_lose(stream->net, pull, why);
    }
    link->last = &link->first;
}

/* Let the connection end when nothing of the other machine's kernel has come for SILENCE_S seconds,
 * as when something between the machines has forgotten an idle connection. A process that has
 * stopped is not silent in this sense. */
static void end_silence(int fd)
{
    const int on = 1, idle_s = SILENCE_S / 2, pause_s = SILENCE_S / 8, probes = 4;
    const unsigned silence_ms = SILENCE_S * 1000;

    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &pause_s, sizeof pause_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof silence_ms);
}

/* Connect the socket of @channel to @address. CST_ECONN, CST_ECANCELLED. */
static int connect_to(struct cste_channel *channel, const struct sockaddr_storage *address,
                      socklen_t bytes, int wake, struct cst_err *err)
{
    socklen_t size = sizeof(int);
    int failure = 0, rc;

    if (connect(channel->fd, (const struct sockaddr *)(const void *)address, bytes) != 0 &&
        errno != EINPROGRESS) {
        return cst_err_errno(err, CST_ECONN, errno, "connecting");
    }
    channel->wants = POLLOUT;
    rc = cste_channel_wait(channel, wake, 0, err);
    if (rc == CST_OK &&
        (getsockopt(channel->fd, SOL_SOCKET, SO_ERROR, &failure, &size) != 0 || failure != 0)) {
        rc = cst_err_errno(err, CST_ECONN, failure, "connecting");
    }
    return rc;
}

/* Connect to @peer. Statuses as of connect_to; CST_EINVAL: its address; CST_ENOMEM. */
static int dial(struct cste_stream *stream, const struct cste_net_peer *peer,
                struct cste_channel *out, struct cst_err *err)
{
    struct sockaddr_storage address;
    socklen_t bytes;
    int rc = cste_address_read(peer->address, &address, &bytes, err);

    if (rc != CST_OK) {
        return rc;
    }
    out->fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (out->fd < 0) {
        return cst_err_errno(err, CST_ECONN, errno, "socket");
    }
    end_silence(out->fd);
    rc = connect_to(out, &address, bytes, peer->dropped, err);
    if (rc == CST_OK) {
        rc = cste_channel_open(out, stream->ops, stream->shared, peer, err);
    }
    if (rc != CST_OK) {
        cste_channel_close(out);
    }
    return rc;
}

/* Close the links that nobody needs: those of peers that were dropped, and those that are over. */
static void sweep(struct cste_stream *stream, struct cste_stream_lane *lane)
{
    struct link **at = &lane->links;

    while (*at != NULL) {
        if ((*at)->first == NULL && ((*at)->channel.fd < 0 ||
                                     cste_net_peers_is_dropped(&stream->net->peers, (*at)->peer))) {
            close_link(stream, at);
        } else {
            at = &(*at)->next;
        }
    }
}

/* Find or make the link of @lane to the peer of @pull. NULL: @err says why there is none,
 * CST_ENOMEM or a status of dial. */
static struct link *find_link(struct cste_stream *stream, struct cste_stream_lane *lane,
                              const struct cste_net_pull *pull, struct cst_err *err)
{
    struct link *link = lane->links;

    while (link != NULL && (link->peer != pull->peer || link->channel.fd < 0)) {
        link = link->next;
    }
    if (link != NULL) {
        return link;
    }
    link = calloc(1, sizeof *link);
    if (link == NULL) {
        (void)cst_err_set(err, CST_ENOMEM, "no memory for a connection");
        return NULL;
    }
    link->peer = pull->peer;
    link->last = &link->first;
    if (dial(stream, link->peer, &link->channel, err) != CST_OK) {
        free(link);
        return NULL;
    }
    cste_net_peers_hold_again(&stream->net->peers, link->peer);
    link->next = lane->links;
    lane->links = link;
    return link;
}

/* Send the request of @pull and put it behind those that wait. */
static int ask(struct cste_stream *stream, struct cste_stream_lane *lane, struct link *link,
               struct cste_net_pull *pull, struct cst_err *err)
{
    uint8_t request[CSTE_WIRE_BYTES];
    int rc;

    cste_net_pull_request(stream->net, pull, ++lane->last_id, request);
    rc =
        cste_channel_send(&link->channel, link->peer->dropped, request, sizeof request, false, err);
    if (rc == CST_OK) {
        pull->connection = link;
        pull->next = NULL;
        *link->last = pull;
        link->last = &pull->next;
    }
    return rc;
}

int cste_stream_begin(void *state, unsigned thread, struct cste_net_pull *pull, struct cst_err *err)
{
    struct cste_stream *stream = state;
    struct cste_stream_lane *lane = &stream->lanes[thread];
    struct link *link;
    struct cst_err why;

    sweep(stream, lane);
    link = find_link(stream, lane, pull, &why);
    if (link != NULL && ask(stream, lane, link, pull, &why) == CST_OK) {
        return CST_OK;
    }
    if (link != NULL) {
        break_link(stream, link, &why);
    }
    if (why.status != CST_ENOMEM) {
        cste_net_pull_lose(stream->net, pull, &why);
        why = pull->err;
    }
    *err = why;
    return why.status;
}

/* Receive the oldest reply of @link, which at least one pull waits for. */
static int receive(struct cste_stream *stream, struct cste_stream_lane *lane, struct link *link,
                   struct cst_err *err)
{
    struct cste_net_pull *pull = link->first;
    int wake = link->peer->dropped;
    uint8_t reply[CSTE_WIRE_BYTES];
    uint32_t sum = 0;
    int rc = cste_channel_receive(&link->channel, wake, 0, reply, sizeof reply, err);

    if (rc == CST_OK) {
        rc = cste_net_pull_reply(pull, reply, sizeof reply, &sum, err);
    }
    if (rc == CST_OK && !pull->done) {
        rc = cste_channel_receive(&link->channel, wake, 0, pull->to, pull->bytes, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    if (!pull->done) {
        cste_net_pull_check(pull, sum);
    }
    link->first = pull->next;
    link->last = link->first == NULL ? &link->first : link->last;
    /* The bytes came damaged. */
    return pull->done ? CST_OK : ask(stream, lane, link, pull, err);
}

void cste_stream_finish(void *state, unsigned thread, struct cste_net_pull *pull)
{
    struct cste_stream *stream = state;
    struct cste_stream_lane *lane = &stream->lanes[thread];
    struct cst_err why;

    while (!pull->done) {
        struct link *link = pull->connection;
        struct cste_net_pull *asked = link->first;

        if (receive(stream, lane, link, &why) != CST_OK) {
            /* A pull whose repeated request did not go out waits no more. */
            if (!asked->done && asked != link->first) {
                cste_net_pull_lose(stream->net, asked, &why);
            }
            break_link(stream, link, &why);
        }
    }
}
