/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/links/links_state.h"

#include <stdio.h>

enum { BACKLOG = 64 };

/* Make room for a connection: the oldest one that has not proved who it is ends. A machine proves
 * it within a few round trips. */
static void end_oldest(struct cstd_links *links)
{
    struct cstd_connection *connection;
    struct cst_err why;

    (void)cst_err_set(&why, CST_EBUSY,
                      "it is the oldest of %d connections that have not proved who they are",
                      CSTD_LINK_UNPROVEN);
    TAILQ_FOREACH(connection, &links->connections, link)
    {
        if (!connection->is_dialled && connection->state != CSTD_CONNECTION_SECURE &&
            !connection->is_doomed) {
            cstd_connection_doom(connection, &why);
            return;
        }
    }
}

void cstd_links_accept(struct cstd_links *links)
{
    struct cstd_connection *connection;
    struct cst_err err;

    if (!links->has_waiting || links->n_admissible == 0 || links->is_stopping) {
        return;
    }
    if (links->n_unproven >= CSTD_LINK_UNPROVEN) {
        end_oldest(links);
    }
    links->n_admissible--;
    links->has_waiting = false;
    if (cstd_connection_accept(&connection, &links->home, links->context,
                               (uv_stream_t *)&links->listener, &err) != CST_OK) {
        cstd_log(cstd_log_due(&links->told, uv_hrtime()) ? CSTD_LOG_WARNING : CSTD_LOG_DEBUG, "%s",
                 err.text);
        return;
    }
    links->n_unproven++;
    TAILQ_INSERT_TAIL(&links->connections, connection, link);
}

/* What can be done if the kernel does not let this machine listen. */
static const char *remedy(int error)
{
    switch (error) {
    case UV_EADDRINUSE:
        return " ('ss -ltnp' shows by which process)";
    case UV_EAFNOSUPPORT:
    case UV_EADDRNOTAVAIL:
        return ": it is not an address of this machine, or this is a service without the drop-in "
               "nodes.conf (see cistern-nodes(7))";
    default:
        return "";
    }
}

/* libuv listens on when the connection has been accepted. */
static void on_connection(uv_stream_t *listener, int status)
{
    struct cstd_links *links = listener->data;

    if (status == 0) {
        links->has_waiting = true;
        cstd_links_accept(links);
    }
}

int cstd_links_listen(struct cstd_links *links, struct cst_err *err)
{
    struct cstd_machine_address address;
    struct sockaddr_storage at;
    int size = sizeof at, rc = cstd_machine_address_read(&address, links->config->listen, err);

    rc = rc == CST_OK ? cstd_machine_address_own(&address, &at, err) : rc;
    if (rc != CST_OK) {
        return cst_err_prefix(err, "[node] listen");
    }
    rc = uv_tcp_bind(&links->listener, (const struct sockaddr *)&at, 0);
    rc = rc == 0 ? uv_listen((uv_stream_t *)&links->listener, BACKLOG, on_connection) : rc;
    rc = rc == 0 ? uv_tcp_getsockname(&links->listener, (struct sockaddr *)&at, &size) : rc;
    if (rc != 0) {
        return cst_err_set(err, rc == UV_EADDRINUSE ? CST_EBUSY : CST_EIO,
                           "[node] listen: %s: %s%s", links->config->listen, uv_strerror(rc),
                           remedy(rc));
    }
    (void)cstd_machine_address_text((const struct sockaddr *)&at, links->address);
    return CST_OK;
}
