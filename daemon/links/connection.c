/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/links/connection.h"

#include <stdlib.h>
#include <string.h>

static void doom_uv(struct cstd_connection *connection, const char *what, int error)
{
    struct cst_err err;

    (void)cst_err_set(&err, CST_ECONN, "%s: %s", what, uv_strerror(error));
    cstd_connection_doom(connection, &err);
}

/* -- sending -------------------------------------------------------------------------------- */

static void on_written(uv_write_t *write, int status)
{
    struct cstd_connection *connection = write->data;

    connection->in_flight = 0;
    free(connection->rest);
    connection->rest = NULL;
    if (connection->is_doomed) {
        return;
    }
    if (status < 0) {
        doom_uv(connection, "sending", status);
    } else {
        cstd_deferred_add(connection->home->later, &connection->flush);
    }
}

/* Let libuv write the @n bytes at @bytes when the socket takes them. */
static void write_rest(struct cstd_connection *connection, const uint8_t *bytes, size_t n)
{
    uv_buf_t buf;
    int rc = UV_ENOMEM;

    connection->rest = malloc(n);
    if (connection->rest != NULL) {
        memcpy(connection->rest, bytes, n);
        buf = uv_buf_init(connection->rest, (unsigned)n);
        rc = uv_write(&connection->write, (uv_stream_t *)&connection->tcp, &buf, 1, on_written);
    }
    if (rc < 0) {
        free(connection->rest);
        connection->rest = NULL;
        doom_uv(connection, "sending", rc);
        return;
    }
    connection->in_flight = n;
}

/* Pass what waits to the kernel, as far as it takes it. */
static void flush(struct cstd_connection *connection)
{
    struct cstd_connection_home *home = connection->home;

    while (connection->in_flight == 0 && cstd_tls_waiting(connection->tls) > 0) {
        const size_t n = cstd_tls_take(connection->tls, home->piece, sizeof home->piece);
        uv_buf_t buf = uv_buf_init((char *)home->piece, (unsigned)n);
        int rc = uv_try_write((uv_stream_t *)&connection->tcp, &buf, 1);

        if (rc < 0 && rc != UV_EAGAIN) {
            doom_uv(connection, "sending", rc);
            return;
        }
        rc = rc < 0 ? 0 : rc;
        if ((size_t)rc < n) {
            write_rest(connection, home->piece + rc, n - (size_t)rc);
            return;
        }
    }
}

static void on_flush(struct cstd_deferred *later)
{
    struct cstd_connection *connection = cstd_owner_of(later, struct cstd_connection, flush);

    if (!connection->is_doomed) {
        flush(connection);
    }
}

size_t cstd_connection_waiting(const struct cstd_connection *connection)
{
    return connection->in_flight + cstd_tls_waiting(connection->tls);
}

/* Something may wait to be sent, but not too much. */
static int check_waiting(struct cstd_connection *connection, struct cst_err *err)
{
    const size_t n = cstd_connection_waiting(connection);

    if (n > 0) {
        cstd_deferred_add(connection->home->later, &connection->flush);
    }
    return n <= CSTD_CONNECTION_MAX_WAITING
               ? CST_OK
               : cst_err_set(err, CST_ECONN,
                             "it does not read: %zu bytes wait for it, the limit is %d", n,
                             CSTD_CONNECTION_MAX_WAITING);
}

int cstd_connection_send(struct cstd_connection *connection, uint16_t type, const uint8_t *body,
                         size_t n, struct cst_err *err)
{
    struct cstd_connection_home *home = connection->home;
    struct cst_frame frame = {.type = type, .body_bytes = (uint32_t)n};
    int rc;

    if (connection->is_doomed || connection->state != CSTD_CONNECTION_SECURE) {
        return cst_err_set(err, CST_ECONN, "there is no connection to %s", connection->address);
    }
    if (n > CST_FRAME_MAX_BODY) {
        return cst_err_set(err, CST_EINVAL, "a message of %zu bytes, the limit is %d", n,
                           CST_FRAME_MAX_BODY);
    }
    cst_frame_header(&frame, home->out);
    if (n > 0 && body != home->out + CST_FRAME_HEADER_BYTES) {
        memcpy(home->out + CST_FRAME_HEADER_BYTES, body, n);
    }
    rc = cstd_tls_write(connection->tls, home->out, CST_FRAME_HEADER_BYTES + n, err);
    rc = rc == CST_OK ? check_waiting(connection, err) : rc;
    if (rc != CST_OK) {
        cstd_connection_doom(connection, err);
        return CST_ECONN;
    }
    connection->sent_bytes += CST_FRAME_HEADER_BYTES + n;
    return CST_OK;
}

/* -- receiving ------------------------------------------------------------------------------ */

/* Hand out the frames in what has been received. */
static int read_frames(struct cstd_connection *connection, struct cst_err *err)
{
    int rc = CST_OK;

    while (rc == CST_OK && !connection->is_doomed) {
        struct cst_frame frame;
        size_t n, n_read = 0;
        uint8_t *to = cstd_frame_stream_next(&connection->stream, &n);

        rc = cstd_tls_read(connection->tls, to, n, &n_read, err);
        if (rc != CST_OK) {
            break;
        }
        connection->heard_ns = uv_hrtime();
        connection->received_bytes += n_read;
        rc = cstd_frame_stream_take(&connection->stream, n_read, &frame, err);
        if (rc == CST_OK) {
            connection->home->ops->on_frame(connection, &frame);
        }
        rc = rc == CST_EAGAIN ? CST_OK : rc;
    }
    return rc;
}

static int shake_hands(struct cstd_connection *connection, struct cst_err *err)
{
    int rc = cstd_tls_handshake(connection->tls, err);

    rc =
        rc == CST_OK ? cstd_frame_stream_admit(&connection->stream, CSTD_HELLO_MAX_BYTES, err) : rc;
    if (rc == CST_OK) {
        connection->state = CSTD_CONNECTION_SECURE;
        connection->home->ops->on_secure(connection);
    }
    return rc;
}

/* Go on with what has been received. */
static void proceed(struct cstd_connection *connection)
{
    struct cst_err err = {0};
    int rc = CST_OK;

    if (connection->state == CSTD_CONNECTION_HANDSHAKE) {
        rc = shake_hands(connection, &err);
    }
    rc = rc == CST_OK ? read_frames(connection, &err) : rc;
    /* TLS answers some messages of its own. */
    if (rc == CST_OK || rc == CST_EAGAIN) {
        rc = check_waiting(connection, &err);
    }
    if (rc != CST_OK) {
        cstd_connection_doom(connection, &err);
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct cstd_connection *connection = handle->data;

    (void)suggested;
    *buf = uv_buf_init((char *)connection->home->in, sizeof connection->home->in);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct cstd_connection *connection = stream->data;
    struct cst_err err = {0};

    if (connection->is_doomed || n == 0) {
        return;
    }
    if (n < 0) {
        if (n == UV_EOF) {
            (void)cst_err_set(&err, CST_ECONN, "the other node has closed the connection");
            cstd_connection_doom(connection, &err);
        } else {
            doom_uv(connection, "receiving", (int)n);
        }
        return;
    }
    if (cstd_tls_feed(connection->tls, (const uint8_t *)buf->base, (size_t)n, &err) != CST_OK) {
        cstd_connection_doom(connection, &err);
        return;
    }
    proceed(connection);
}

/* -- begin ---------------------------------------------------------------------------------- */

static void on_end(struct cstd_deferred *later);

static int admit(void *arg, const struct cstd_tls_peer *peer, struct cst_err *err)
{
    struct cstd_connection *connection = arg;

    return connection->home->ops->admit(connection, peer, err);
}

static void on_closed(uv_handle_t *handle)
{
    struct cstd_connection *connection = handle->data;

    cstd_tls_close(connection->tls);
    cstd_frame_stream_close(&connection->stream);
    free(connection);
}

static int make(struct cstd_connection **out, struct cstd_connection_home *home,
                struct cstd_tls_context *context, bool is_dialled, struct cst_err *err)
{
    struct cstd_connection *connection = calloc(1, sizeof *connection);
    int rc;

    if (connection == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a connection");
    }
    connection->home = home;
    connection->is_dialled = is_dialled;
    connection->opened_ns = connection->heard_ns = uv_hrtime();
    connection->end.fn = on_end;
    connection->flush.fn = on_flush;
    rc = cstd_tls_open(&connection->tls, context, is_dialled, admit, connection, err);
    if (rc == CST_OK && uv_tcp_init(home->loop, &connection->tcp) != 0) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory for a connection");
    }
    if (rc != CST_OK) {
        cstd_tls_close(connection->tls);
        free(connection);
        return rc;
    }
    connection->tcp.data = connection->connect.data = connection->write.data = connection;
    *out = connection;
    return CST_OK;
}

/* The connection is there: read from it. */
static int begin(struct cstd_connection *connection)
{
    connection->state = CSTD_CONNECTION_HANDSHAKE;
    (void)uv_tcp_nodelay(&connection->tcp, 1);
    return uv_read_start((uv_stream_t *)&connection->tcp, on_alloc, on_read);
}

static void on_connected(uv_connect_t *connect, int status)
{
    struct cstd_connection *connection = connect->data;

    if (connection->is_doomed) {
        return;
    }
    status = status == 0 ? begin(connection) : status;
    if (status < 0) {
        doom_uv(connection, connection->address, status);
    } else {
        proceed(connection);
    }
}

int cstd_connection_dial(struct cstd_connection **out, struct cstd_connection_home *home,
                         struct cstd_tls_context *context, const struct sockaddr *at,
                         struct cst_err *err)
{
    struct cstd_connection *connection;
    int rc = make(&connection, home, context, true, err);

    if (rc != CST_OK) {
        return rc;
    }
    (void)cstd_machine_address_text(at, connection->address);
    rc = uv_tcp_connect(&connection->connect, &connection->tcp, at, on_connected);
    if (rc != 0) {
        rc = cst_err_set(err, CST_ECONN, "%s: %s", connection->address, uv_strerror(rc));
        connection->is_doomed = true;
        uv_close((uv_handle_t *)&connection->tcp, on_closed);
        return rc;
    }
    *out = connection;
    return CST_OK;
}

int cstd_connection_accept(struct cstd_connection **out, struct cstd_connection_home *home,
                           struct cstd_tls_context *context, uv_stream_t *listener,
                           struct cst_err *err)
{
    struct cstd_connection *connection;
    struct sockaddr_storage at = {.ss_family = AF_UNSPEC};
    int size = sizeof at, rc = make(&connection, home, context, false, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = uv_accept(listener, (uv_stream_t *)&connection->tcp);
    rc = rc == 0 ? uv_tcp_getpeername(&connection->tcp, (struct sockaddr *)&at, &size) : rc;
    rc = rc == 0 ? begin(connection) : rc;
    if (rc != 0) {
        rc = cst_err_set(err, CST_ECONN, "a connection of another node: %s", uv_strerror(rc));
        connection->is_doomed = true;
        uv_close((uv_handle_t *)&connection->tcp, on_closed);
        return rc;
    }
    (void)cstd_machine_address_text((struct sockaddr *)&at, connection->address);
    *out = connection;
    return CST_OK;
}

/* -- end ------------------------------------------------------------------------------------ */

void cstd_connection_doom(struct cstd_connection *connection, const struct cst_err *why)
{
    if (!connection->is_doomed) {
        connection->is_doomed = true;
        connection->why = *why;
        cstd_deferred_add(connection->home->later, &connection->end);
    }
}

static void on_end(struct cstd_deferred *later)
{
    struct cstd_connection *connection = cstd_owner_of(later, struct cstd_connection, end);

    cstd_deferred_remove(connection->home->later, &connection->flush);
    if (connection->state != CSTD_CONNECTION_DIALLING) {
        cstd_tls_end(connection->tls);
        flush(connection); /* Last words; what the kernel does not take at once is lost. */
    }
    connection->home->ops->on_ended(connection);
    uv_close((uv_handle_t *)&connection->tcp, on_closed);
}
