/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/stream.h"

#include "kernels/net/answer.h"
#include "proto/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <unistd.h>

/* Connections of whom nobody knows yet who they are, and of all. A stranger that is one too many
 * takes the place of the oldest one. */
#define MAX_STRANGERS 64
#define MAX_CONNECTIONS 4096
/* Time that a stranger has for a request that shows who it is. */
#define STRANGER_NS 10000000000u
#define STACK_BYTES (256u << 10)
/* Bytes that go into a socket at a time, for which the segment is held. */
#define STEP (256u << 10)

/* A connection of another machine, with a thread of its own. */
struct connection {
    TAILQ_ENTRY(connection) link;
    struct cste_stream_server *server;
    /* Its socket is open while the connection is in a list. */
    struct cste_channel channel;
    char address[CSTE_ADDRESS_MAX];
    struct cste_net_peer *peer; /* Who it is; held. NULL: a stranger. */
};

TAILQ_HEAD(connections, connection);

struct cste_stream_server {
    struct cste_stream *stream;
    int listener;
    int stop; /* An eventfd, readable when the server ends. */
    pthread_t thread;
    bool accepts; /* The thread was started. */
    pthread_mutex_t mutex;
    pthread_cond_t ended; /* A connection has ended. */
    struct connections strangers, known;
    unsigned n_strangers, n;
};

/* -- one connection ------------------------------------------------------------------------- */

/* Send the payload of @answer. The segment is held while bytes of it go into the socket, and not
 * while the other side lets this one wait. CST_ECONN: also if the segment was removed. */
static int send_payload(struct connection *connection, struct cste_net_answer *answer,
                        struct cst_err *err)
{
    struct cste_net *net = connection->server->stream->net;
    struct cste_channel *channel = &connection->channel;
    const uint32_t id = answer->segment->id;
    const uint64_t offset = (uint64_t)(answer->payload - answer->segment->base);
    uint64_t at = 0, there;
    int rc = CST_OK;

    while (at < answer->bytes && rc == CST_OK) {
        size_t step = answer->bytes - at < STEP ? answer->bytes - at : STEP;
        ssize_t n =
            channel->ops->send(channel, answer->payload + at, step, at + step < answer->bytes, err);

        if (n < 0) {
            return err->status;
        }
        at += (uint64_t)n;
        if (n > 0) {
            continue;
        }
        cste_net_answer_release_segment(net, answer);
        rc = cste_channel_wait(channel, connection->peer->dropped, 0, err);
        if (rc == CST_OK && cste_served_hold(&net->served, id, offset, answer->bytes,
                                             &answer->segment, &there) != CST_OK) {
            rc = cst_err_set(err, CST_ECONN, "segment %u was removed while it was read", id);
        }
        /* Nobody adds another segment with the id of one that was removed. */
    }
    return rc;
}

/* Check who sends the request to which @answer was made. CST_EDENIED: a peer, but not the one that
 * this connection belongs to. A stranger whose request is admitted is none any more. */
static int identify(struct connection *connection, const struct cste_net_answer *answer,
                    struct cst_err *err)
{
    struct cste_stream_server *server = connection->server;

    if (answer->peer == NULL) {
        return CST_OK;
    }
    if (connection->peer != NULL) {
        return answer->peer == connection->peer
                   ? CST_OK
                   : cst_err_set(err, CST_EDENIED,
                                 "a request of machine %u on a connection of "
                                 "machine %u",
                                 answer->peer->number, connection->peer->number);
    }
    if (!connection->channel.ops->is_peer(&connection->channel, answer->peer)) {
        return cst_err_set(err, CST_EDENIED, "its certificate is not that of machine %u",
                           answer->peer->number);
    }
    connection->peer = answer->peer;
    cste_net_peers_hold_again(&server->stream->net->peers, connection->peer);
    (void)pthread_mutex_lock(&server->mutex);
    TAILQ_REMOVE(&server->strangers, connection, link);
    server->n_strangers--;
    TAILQ_INSERT_TAIL(&server->known, connection, link);
    (void)pthread_mutex_unlock(&server->mutex);
    return CST_OK;
}

/* Send @answer. CST_EDENIED: it is a refusal. */
static int send_answer(struct connection *connection, struct cste_net_answer *answer,
                       struct cst_err *err)
{
    struct cste_channel *channel = &connection->channel;
    int wake = connection->peer != NULL ? connection->peer->dropped : -1;
    int rc = cste_channel_send(channel, wake, answer->reply, sizeof answer->reply,
                               answer->segment != NULL, err);

    if (rc == CST_OK && answer->segment != NULL) {
        rc = send_payload(connection, answer, err);
    }
    if (rc == CST_OK && answer->peer == NULL) {
        rc = cst_err_set(err, CST_EDENIED, "it is no machine of this job, or its token is another");
    }
    return rc;
}

/* Receive one request and answer it. */
static int serve_one(struct connection *connection, uint64_t until, struct cst_err *err)
{
    struct cste_net *net = connection->server->stream->net;
    int wake = connection->peer != NULL ? connection->peer->dropped : -1;
    uint8_t request[CSTE_WIRE_BYTES];
    struct cste_net_answer answer;
    int rc = cste_channel_receive(&connection->channel, wake, until, request, sizeof request, err);

    if (rc == CST_OK) {
        rc = cste_net_answer_make(net, request, sizeof request, &answer, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    rc = identify(connection, &answer, err);
    if (rc == CST_OK) {
        rc = send_answer(connection, &answer, err);
    }
    cste_net_answer_end(net, &answer, rc == CST_OK);
    return rc;
}

static void end_connection(struct connection *connection)
{
    struct cste_stream_server *server = connection->server;

    (void)pthread_mutex_lock(&server->mutex);
    if (connection->peer == NULL) {
        TAILQ_REMOVE(&server->strangers, connection, link);
        server->n_strangers--;
    } else {
        TAILQ_REMOVE(&server->known, connection, link);
    }
    (void)pthread_mutex_unlock(&server->mutex);
    cste_channel_close(&connection->channel);
    if (connection->peer != NULL) {
        cste_net_peers_release(&server->stream->net->peers, connection->peer);
    }
    free(connection);
    (void)pthread_mutex_lock(&server->mutex);
    server->n--;
    (void)pthread_cond_signal(&server->ended);
    (void)pthread_mutex_unlock(&server->mutex);
}

static void *serve(void *arg)
{
    struct connection *connection = arg;
    struct cste_stream *stream = connection->server->stream;
    uint64_t until = cst_clock_ns() + STRANGER_NS;
    struct cst_err err;
    int rc = cste_channel_open(&connection->channel, stream->ops, stream->shared, NULL, &err);

    while (rc == CST_OK) {
        rc = serve_one(connection, connection->peer == NULL ? until : 0, &err);
    }
    /* A peer that closes its connection or was dropped is no reason for a line. */
    if (connection->peer == NULL || (rc != CST_ECONN && rc != CST_ECANCELLED)) {
        cste_complain(&stream->net->complaints, connection->address, &err);
    }
    end_connection(connection);
    return NULL;
}

/* -- all connections ------------------------------------------------------------------------ */

/* Make room for a stranger. Its thread finds that the connection is over. */
static void evict(struct cste_stream_server *server)
{
    struct connection *oldest = TAILQ_FIRST(&server->strangers);

    if (server->n_strangers >= MAX_STRANGERS && oldest != NULL) {
        (void)shutdown(oldest->channel.fd, SHUT_RDWR);
    }
}

static bool start_thread(struct connection *connection)
{
    pthread_attr_t attr;
    pthread_t thread;
    bool started;

    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    started = pthread_create(&thread, &attr, serve, connection) == 0;
    (void)pthread_attr_destroy(&attr);
    return started;
}

/* Serve the socket @fd, which is taken over. Returns false if there are too many. */
static bool add_connection(struct cste_stream_server *server, int fd,
                           const struct sockaddr_storage *from)
{
    struct connection *connection = calloc(1, sizeof *connection);
    bool room;

    if (connection == NULL) {
        (void)close(fd);
        return false;
    }
    connection->server = server;
    connection->channel.fd = fd;
    cste_address_write(from, connection->address);
    (void)pthread_mutex_lock(&server->mutex);
    room = server->n < MAX_CONNECTIONS;
    if (room) {
        evict(server);
        TAILQ_INSERT_TAIL(&server->strangers, connection, link);
        server->n_strangers++;
        server->n++;
    }
    (void)pthread_mutex_unlock(&server->mutex);
    if (!room) {
        (void)close(fd);
        free(connection);
        return false;
    }
    if (!start_thread(connection)) {
        end_connection(connection);
        return false;
    }
    return true;
}

/* Let time pass when the system has no descriptors or memory for a connection. */
static void pause_for(struct cste_stream_server *server, int ms)
{
    struct pollfd stop = {.fd = server->stop, .events = POLLIN};

    (void)poll(&stop, 1, ms);
}

static void *accept_all(void *arg)
{
    struct cste_stream_server *server = arg;
    struct pollfd fds[2] = {{.fd = server->listener, .events = POLLIN},
                            {.fd = server->stop, .events = POLLIN}};

    while (fds[1].revents == 0) {
        struct sockaddr_storage from;
        socklen_t bytes = sizeof from;
        int fd = accept4(server->listener, (struct sockaddr *)&from, &bytes,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);
        struct cst_err err;

        if (fd >= 0) {
            if (!add_connection(server, fd, &from)) {
                (void)cst_err_set(&err, CST_ENOMEM, "too many connections, or no memory");
                cste_complain(&server->stream->net->complaints, "a connection", &err);
            }
        } else if (errno == EAGAIN) {
            (void)poll(fds, 2, -1);
        } else if (errno != ECONNABORTED && errno != EINTR) {
            (void)cst_err_errno(&err, CST_EIO, errno, "accept");
            cste_complain(&server->stream->net->complaints, "a connection", &err);
            pause_for(server, 100);
        }
    }
    return NULL;
}

static int listen_at(struct cste_stream *stream, int *out, struct cst_err *err)
{
    struct sockaddr_storage address;
    socklen_t bytes;
    int on = 1, fd, rc = cste_address_read(stream->net->listen, &address, &bytes, err);

    if (rc == CST_OK) {
        rc = cste_address_check_own(&address, err);
    }
    if (rc != CST_OK) {
        return cst_err_prefix(err, "listen");
    }
    fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "socket");
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, bytes) != 0 || listen(fd, SOMAXCONN) != 0) {
        rc = cst_err_errno(err, CST_EINVAL, errno, "listening at %s", stream->net->listen);
        (void)close(fd);
        return rc;
    }
    bytes = sizeof address;
    (void)getsockname(fd, (struct sockaddr *)&address, &bytes);
    cste_address_write(&address, stream->address);
    *out = fd;
    return CST_OK;
}

int cste_stream_open_server(struct cste_stream *stream, struct cst_err *err)
{
    struct cste_stream_server *server = calloc(1, sizeof *server);
    int rc;

    if (server == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a transport");
    }
    stream->server = server;
    server->stream = stream;
    server->listener = -1;
    server->stop = eventfd(0, EFD_CLOEXEC);
    TAILQ_INIT(&server->strangers);
    TAILQ_INIT(&server->known);
    (void)pthread_mutex_init(&server->mutex, NULL);
    (void)pthread_cond_init(&server->ended, NULL);
    if (server->stop < 0) {
        return cst_err_errno(err, CST_ENOMEM, errno, "eventfd");
    }
    rc = listen_at(stream, &server->listener, err);
    if (rc == CST_OK && pthread_create(&server->thread, NULL, accept_all, server) != 0) {
        rc = cst_err_set(err, CST_ENOMEM, "no thread to accept connections");
    }
    server->accepts = rc == CST_OK;
    return rc;
}

static void shut(struct connections *list)
{
    struct connection *connection;

    TAILQ_FOREACH(connection, list, link)
    {
        (void)shutdown(connection->channel.fd, SHUT_RDWR);
    }
}

void cste_stream_close_server(struct cste_stream *stream)
{
    struct cste_stream_server *server = stream->server;

    if (server == NULL) {
        return;
    }
    if (server->accepts) {
        (void)eventfd_write(server->stop, 1);
        (void)pthread_join(server->thread, NULL);
    }
    (void)pthread_mutex_lock(&server->mutex);
    shut(&server->strangers);
    shut(&server->known);
    while (server->n > 0) {
        (void)pthread_cond_wait(&server->ended, &server->mutex);
    }
    (void)pthread_mutex_unlock(&server->mutex);
    (void)close(server->listener);
    (void)close(server->stop);
    (void)pthread_cond_destroy(&server->ended);
    (void)pthread_mutex_destroy(&server->mutex);
    free(server);
}
