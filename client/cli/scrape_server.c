/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/scrape_server.h"

#include "client/cli/scrape_request.h"
#include "proto/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* How long no connection is accepted after the kernel could not make one. */
enum { PAUSE_MS = 100 };

/* A text that connections send, and that new scrapes get while it is fresh. */
struct text {
    char *bytes; /* Owned. */
    size_t n;
    uint64_t made_ms; /* Monotonic. */
    unsigned n_users; /* Connections, and the server. */
};

enum state { FREE, READING, WRITING, DRAINING };

struct connection {
    enum state state; /* As in the header's diagram. FREE: there is no connection. */
    int fd;
    uint64_t end_ms; /* Monotonic; it is closed then. */
    char request[CLI_SCRAPE_REQUEST_MAX];
    size_t n_request;
    char head[256]; /* Header of the answer. */
    size_t n_head;
    struct text *text; /* Body of the answer; NULL: none. */
    size_t n_sent;     /* Bytes of header and body that were sent. */
};

struct server {
    int fd;
    const char *content_type;
    cli_scrape_fn make;
    void *arg;
    struct text *fresh; /* The newest text; NULL: none. */
    struct connection connections[CLI_SCRAPE_CONNECTIONS];
};

static volatile sig_atomic_t ended; /* A signal has arrived. */

static void end(int number)
{
    (void)number;
    ended = 1;
}

static uint64_t now_ms(void)
{
    return cst_clock_ns() / 1000000;
}

static void drop_text(struct text *text)
{
    if (text != NULL && --text->n_users == 0) {
        free(text->bytes);
        free(text);
    }
}

/* Make a text; NULL: out of memory. No connection can go on meanwhile, and none loses time. */
static struct text *make_text(struct server *server)
{
    const uint64_t began_ms = now_ms();
    struct text *text = calloc(1, sizeof *text);

    if (text == NULL || server->make(server->arg, &text->bytes, &text->n) != CST_OK) {
        free(text);
        return NULL;
    }
    text->made_ms = now_ms();
    text->n_users = 1;
    for (unsigned i = 0; i < CLI_SCRAPE_CONNECTIONS; i++) {
        server->connections[i].end_ms += text->made_ms - began_ms;
    }
    return text;
}

/* Return a fresh text for one more user; NULL: out of memory. */
static struct text *take_text(struct server *server)
{
    struct text *text = server->fresh;

    if (text == NULL || now_ms() - text->made_ms >= CLI_SCRAPE_FRESH_MS) {
        text = make_text(server);
        if (text == NULL) {
            return NULL;
        }
        drop_text(server->fresh);
        server->fresh = text;
    }
    text->n_users++;
    return text;
}

static void close_connection(struct connection *connection)
{
    if (connection->state != FREE) {
        (void)close(connection->fd);
        drop_text(connection->text);
        connection->text = NULL;
        connection->state = FREE;
    }
}

/* -- answers -------------------------------------------------------------------------------- */

static const char *words(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 431:
        return "Request Header Fields Too Large";
    case 500:
        return "Internal Server Error";
    default:
        return "Bad Request";
    }
}

/* An answer other than 200 has its words as its body. */
static void begin_answer(struct server *server, struct connection *connection, int status,
                         bool head)
{
    const char *type = server->content_type;
    char body[64] = "";
    size_t n;

    connection->text = status == 200 ? take_text(server) : NULL;
    if (status == 200 && connection->text == NULL) {
        status = 500;
    }
    n = connection->text != NULL ? connection->text->n : strlen(words(status)) + 1;
    if (status != 200) {
        type = "text/plain";
        (void)snprintf(body, sizeof body, "%s\n", head ? "" : words(status));
    }
    connection->n_head = (size_t)snprintf(
        connection->head, sizeof connection->head,
        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%sConnection: close\r\n\r\n",
        status, words(status), type, n, status == 405 ? "Allow: GET, HEAD\r\n" : "");
    if (head) {
        drop_text(connection->text);
        connection->text = NULL;
    } else {
        connection->n_head +=
            (size_t)snprintf(connection->head + connection->n_head,
                             sizeof connection->head - connection->n_head, "%s", body);
    }
    connection->state = WRITING;
}

/* Send the next bytes. Returns what send does. */
static ssize_t send_some(const struct connection *connection)
{
    const char *from = connection->head;
    size_t first = connection->n_sent, n = connection->n_head;

    if (first >= n) {
        from = connection->text->bytes;
        first -= n;
        n = connection->text->n;
    }
    return send(connection->fd, from + first, n - first, MSG_NOSIGNAL);
}

static void write_answer(struct connection *connection)
{
    const size_t n = connection->n_head + (connection->text != NULL ? connection->text->n : 0);

    while (connection->n_sent < n) {
        const ssize_t sent = send_some(connection);

        if (sent < 0) {
            if (errno != EAGAIN && errno != EINTR) {
                close_connection(connection);
            }
            return;
        }
        connection->n_sent += (size_t)sent;
    }
    (void)shutdown(connection->fd, SHUT_WR);
    connection->state = DRAINING;
}

/* -- requests ------------------------------------------------------------------------------- */

/* Read what has arrived, at most one piece. Returns what recv does. A connection at its end is
 * closed. */
static ssize_t receive(struct connection *connection, char *to, size_t n)
{
    const ssize_t got = recv(connection->fd, to, n, 0);

    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        close_connection(connection);
    }
    return got;
}

static void read_request(struct server *server, struct connection *connection)
{
    const ssize_t got = receive(connection, connection->request + connection->n_request,
                                sizeof connection->request - connection->n_request);
    bool head;
    int status;

    if (got <= 0) {
        return;
    }
    connection->n_request += (size_t)got;
    status = cli_scrape_request(connection->request, connection->n_request, &head);
    if (status != 0) {
        begin_answer(server, connection, status, head);
        write_answer(connection);
    }
}

static void go_on(struct server *server, struct connection *connection)
{
    char dropped[4096];

    if (connection->state == READING) {
        read_request(server, connection);
    } else if (connection->state == WRITING) {
        write_answer(connection);
    } else if (connection->state == DRAINING) {
        (void)receive(connection, dropped, sizeof dropped);
    }
}

/* -- connections ---------------------------------------------------------------------------- */

/* Return a free place, or that of the oldest connection. Those that send the text to a peer that
 * reads it are only closed if there are no others. */
static struct connection *find_place(struct server *server)
{
    struct connection *oldest = NULL;

    for (unsigned i = 0; i < CLI_SCRAPE_CONNECTIONS; i++) {
        struct connection *connection = &server->connections[i];

        if (connection->state == FREE) {
            return connection;
        }
        if (oldest == NULL || (oldest->state == WRITING) > (connection->state == WRITING) ||
            ((oldest->state == WRITING) == (connection->state == WRITING) &&
             connection->end_ms < oldest->end_ms)) {
            oldest = connection;
        }
    }
    return oldest;
}

/* Accept one connection. The others have their turns before the next one. */
static int accept_one(struct server *server, struct cst_err *err)
{
    const int fd = accept4(server->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct connection *connection;

    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            (void)poll(NULL, 0, PAUSE_MS);
        }
        return errno == EBADF || errno == EINVAL ? cst_err_errno(err, CST_EIO, errno, "accept")
                                                 : CST_OK;
    }
    connection = find_place(server);
    close_connection(connection);
    *connection =
        (struct connection){.state = READING, .fd = fd, .end_ms = now_ms() + CLI_SCRAPE_LIFE_MS};
    return CST_OK;
}

/* Close connections whose time is over. Returns the time until the next one is, in ms; -1: there is
 * no connection. */
static int close_late(struct server *server)
{
    const uint64_t now = now_ms();
    int left = -1;

    for (unsigned i = 0; i < CLI_SCRAPE_CONNECTIONS; i++) {
        struct connection *connection = &server->connections[i];
        const uint64_t end_ms = connection->end_ms;

        if (connection->state != FREE && end_ms <= now) {
            close_connection(connection);
        } else if (connection->state != FREE && (left < 0 || end_ms - now < (uint64_t)left)) {
            left = (int)(end_ms - now);
        }
    }
    return left;
}

/* Wait for the sockets, and let every connection go on that can. */
static int turn(struct server *server, const sigset_t *mask, struct cst_err *err)
{
    struct pollfd fds[CLI_SCRAPE_CONNECTIONS + 1];
    const int ms = close_late(server);
    const struct timespec timeout = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

    for (unsigned i = 0; i < CLI_SCRAPE_CONNECTIONS; i++) {
        const struct connection *connection = &server->connections[i];

        fds[i] = (struct pollfd){.fd = connection->state != FREE ? connection->fd : -1,
                                 .events = connection->state == WRITING ? POLLOUT : POLLIN};
    }
    fds[CLI_SCRAPE_CONNECTIONS] = (struct pollfd){.fd = server->fd, .events = POLLIN};
    if (ppoll(fds, CLI_SCRAPE_CONNECTIONS + 1, ms >= 0 ? &timeout : NULL, mask) < 0) {
        return errno == EINTR ? CST_OK : cst_err_errno(err, CST_EIO, errno, "poll");
    }
    for (unsigned i = 0; i < CLI_SCRAPE_CONNECTIONS; i++) {
        if (fds[i].revents != 0) {
            go_on(server, &server->connections[i]);
        }
    }
    return fds[CLI_SCRAPE_CONNECTIONS].revents != 0 ? accept_one(server, err) : CST_OK;
}

/* Their handler only runs during the wait for the sockets. */
void cli_scrape_catch_signals(sigset_t *before)
{
    const struct sigaction action = {.sa_handler = end};
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &set, before);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

bool cli_scrape_is_ended(void)
{
    sigset_t set;

    return ended != 0 || (sigpending(&set) == 0 &&
                          (sigismember(&set, SIGINT) == 1 || sigismember(&set, SIGTERM) == 1));
}

int cli_scrape_serve(int fd, const sigset_t *mask, const char *content_type, cli_scrape_fn make,
                     void *arg, struct cst_err *err)
{
    struct server *server = calloc(1, sizeof *server);
    int rc = CST_OK;

    if (server == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %d connections", CLI_SCRAPE_CONNECTIONS);
    }
    *server = (struct server){.fd = fd, .content_type = content_type, .make = make, .arg = arg};
    while (rc == CST_OK && !cli_scrape_is_ended()) {
        rc = turn(server, mask, err);
    }
    for (unsigned i = 0; i < CLI_SCRAPE_CONNECTIONS; i++) {
        close_connection(&server->connections[i]);
    }
    drop_text(server->fresh);
    free(server);
    return rc;
}
