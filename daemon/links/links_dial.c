/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/links/links_state.h"

#include <netdb.h>
#include <stdio.h>

static void connect_to(struct cstd_node *node, const struct sockaddr *at)
{
    struct cstd_links *links = node->links;
    struct cstd_connection *connection;
    struct cst_err err;

    if (cstd_connection_dial(&connection, &links->home, links->context, at, &err) != CST_OK) {
        cstd_node_failed(node, &err);
        return;
    }
    node->dialled = connection;
    connection->node = node;
    cstd_node_ref(node);
    TAILQ_INSERT_TAIL(&links->connections, connection, link);
}

/* Return whether the node is still to be dialled. */
static bool is_wanted(const struct cstd_node *node)
{
    return !node->links->is_stopping && node->n_refs > 1 && node->up == NULL &&
           node->dialled == NULL && !node->entry.drained;
}

static void on_looked_up(uv_getaddrinfo_t *lookup, int status, struct addrinfo *found)
{
    struct cstd_links *links = lookup->data;
    struct cstd_node *node = links->looked_up;
    struct cst_err err;

    links->looked_up = NULL;
    if (is_wanted(node)) {
        if (status == 0) {
            const struct addrinfo *at = found;

            /* One address after the other, if the first ones do not answer. */
            for (unsigned i = 0; i < node->n_failures; i++) {
                at = at->ai_next != NULL ? at->ai_next : found;
            }
            connect_to(node, at->ai_addr);
        } else {
            (void)cst_err_set(&err, CST_ENOTFOUND, "the name in '%s' cannot be looked up: %s",
                              node->entry.address, uv_strerror(status));
            cstd_node_failed(node, &err);
        }
    }
    uv_freeaddrinfo(found);
    cstd_node_unref(node);
}

void cstd_links_dial(struct cstd_links *links, struct cstd_node *node)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct cstd_node_address address;
    struct sockaddr_storage at;
    char port[8];
    struct cst_err err;
    int rc;

    if (cstd_node_address_read(&address, node->entry.address, &err) != CST_OK) {
        cstd_node_failed(node, &err);
        return;
    }
    if (cstd_node_address_number(&address, &at)) {
        connect_to(node, (struct sockaddr *)&at);
        return;
    }
    if (links->looked_up != NULL) {
        return; /* The next tick tries again. */
    }
    (void)snprintf(port, sizeof port, "%u", address.port);
    links->lookup.data = links;
    rc = uv_getaddrinfo(links->home.loop, &links->lookup, on_looked_up, address.host, port, &hints);
    if (rc != 0) {
        (void)cst_err_set(&err, CST_ENOTFOUND, "the name in '%s' cannot be looked up: %s",
                          node->entry.address, uv_strerror(rc));
        cstd_node_failed(node, &err);
        return;
    }
    links->looked_up = node;
    cstd_node_ref(node);
}
