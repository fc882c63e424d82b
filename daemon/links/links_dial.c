/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/links/links_state.h"

#include <netdb.h>
#include <stdio.h>

static void connect_to(struct cstd_machine *machine, const struct sockaddr *at)
{
    struct cstd_links *links = machine->links;
    struct cstd_connection *connection;
    struct cst_err err;

    if (cstd_connection_dial(&connection, &links->home, links->context, at, &err) != CST_OK) {
        cstd_machine_failed(machine, &err);
        return;
    }
    machine->dialled = connection;
    connection->machine = machine;
    cstd_machine_ref(machine);
    TAILQ_INSERT_TAIL(&links->connections, connection, link);
}

/* Return whether the machine is still to be dialled. */
static bool is_wanted(const struct cstd_machine *machine)
{
    return !machine->links->is_stopping && machine->n_refs > 1 && machine->up == NULL &&
           machine->dialled == NULL && !machine->entry.drained;
}

static void on_looked_up(uv_getaddrinfo_t *lookup, int status, struct addrinfo *found)
{
    struct cstd_links *links = lookup->data;
    struct cstd_machine *machine = links->looked_up;
    struct cst_err err;

    links->looked_up = NULL;
    if (is_wanted(machine)) {
        if (status == 0) {
            const struct addrinfo *at = found;

            /* One address after the other, if the first ones do not answer. */
            for (unsigned i = 0; i < machine->n_failures; i++) {
                at = at->ai_next != NULL ? at->ai_next : found;
            }
            connect_to(machine, at->ai_addr);
        } else {
            (void)cst_err_set(&err, CST_ENOTFOUND, "the name in '%s' cannot be looked up: %s",
                              machine->entry.address, uv_strerror(status));
            cstd_machine_failed(machine, &err);
        }
    }
    uv_freeaddrinfo(found);
    cstd_machine_unref(machine);
}

void cstd_links_dial(struct cstd_links *links, struct cstd_machine *machine)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct cstd_machine_address address;
    struct sockaddr_storage at;
    char port[8];
    struct cst_err err;
    int rc;

    if (cstd_machine_address_read(&address, machine->entry.address, &err) != CST_OK) {
        cstd_machine_failed(machine, &err);
        return;
    }
    if (cstd_machine_address_number(&address, &at)) {
        connect_to(machine, (struct sockaddr *)&at);
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
                          machine->entry.address, uv_strerror(rc));
        cstd_machine_failed(machine, &err);
        return;
    }
    links->looked_up = machine;
    cstd_machine_ref(machine);
}
