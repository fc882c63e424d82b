/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/links/links_state.h"

#include <stdlib.h>
#include <string.h>

#define MS UINT64_C(1000000) /* Nanoseconds. */

enum { FIRST_PAUSE_MS = 250 };

/* -- life ----------------------------------------------------------------------------------- */

int cstd_machine_make(struct cstd_machine **out, struct cstd_links *links,
                      const struct cstd_machine_entry *entry, struct cst_err *err)
{
    struct cstd_machine *machine = calloc(1, sizeof *machine);

    if (machine == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a node");
    }
    machine->links = links;
    machine->entry = *entry;
    machine->since_ns = uv_hrtime();
    machine->n_refs = 1;
    *out = machine;
    return CST_OK;
}

static void free_unused(struct cstd_machine *machine)
{
    if (machine->n_refs == 0 && machine->n_holds == 0) {
        if (machine->is_dropped) {
            TAILQ_REMOVE(&machine->links->dropped, machine, link);
        }
        free(machine);
    }
}

void cstd_machine_ref(struct cstd_machine *machine)
{
    machine->n_refs++;
}

void cstd_machine_unref(struct cstd_machine *machine)
{
    machine->n_refs--;
    free_unused(machine);
}

int cstd_machine_hold(struct cstd_machine *machine, struct cst_err *err)
{
    if (machine->entry.drained) {
        return cst_err_set(err, CST_EDRAINING,
                           "node '%s' is drained: 'cistern node add' takes it back",
                           machine->entry.name);
    }
    if (machine->up == NULL) {
        return cst_err_set(err, CST_ECONN, "there is no link to node '%s': %s", machine->entry.name,
                           machine->why.status != CST_OK ? machine->why.text
                                                         : "it has not answered yet");
    }
    machine->n_holds++;
    return CST_OK;
}

void cstd_machine_keep(struct cstd_machine *machine)
{
    machine->n_holds++;
}

void cstd_machine_release(struct cstd_machine *machine)
{
    machine->n_holds--;
    if (machine->n_refs > 0) {
        cstd_machine_look(machine);
    }
    free_unused(machine);
}

void cstd_machine_look(struct cstd_machine *machine)
{
    struct cst_err why;

    if (machine->up != NULL && machine->entry.drained && machine->n_holds == 0) {
        (void)cst_err_set(&why, CST_EDRAINING, "node '%s' has drained its link to '%s'",
                          machine->links->self.name, machine->entry.name);
        cstd_links_refuse(machine->up, &why);
    }
}

/* -- up and down ---------------------------------------------------------------------------- */

void cstd_machine_set_up(struct cstd_machine *machine, struct cstd_connection *connection)
{
    struct cstd_links_watch *watch, *next;

    machine->up = connection;
    machine->hello = connection->hello;
    machine->since_ns = uv_hrtime();
    machine->round_trip_ns = 0;
    machine->n_failures = 0;
    machine->told.status = CST_OK;
    cstd_log(CSTD_LOG_NOTICE, "node '%s': the link is up (%s, cistern %s, %s)", machine->entry.name,
             connection->address, machine->hello.program, machine->hello.isa);
    for (watch = LIST_FIRST(&machine->links->watches); watch != NULL; watch = next) {
        next = LIST_NEXT(watch, link);
        watch->on_up(watch, machine);
    }
}

/* A pause of @ms, less up to a quarter, so that machines do not dial each other in step. */
static uint64_t pause_ns(struct cstd_links *links, uint64_t ms)
{
    links->random = links->random * UINT64_C(6364136223846793005) + 1;
    return (ms * MS) - (ms * MS / 4) * (links->random >> 54) / 1024;
}

void cstd_machine_set_down(struct cstd_machine *machine, const struct cst_err *why)
{
    const uint64_t now = uv_hrtime();
    struct cstd_links_watch *watch, *next;

    machine->up = NULL;
    machine->why = *why;
    machine->since_ns = now;
    machine->retry_ns = now + pause_ns(machine->links, FIRST_PAUSE_MS);
    cstd_log(CSTD_LOG_NOTICE, "node '%s': the link is down: %s", machine->entry.name, why->text);
    for (watch = LIST_FIRST(&machine->links->watches); watch != NULL; watch = next) {
        next = LIST_NEXT(watch, link);
        watch->on_down(watch, machine, why);
    }
}

void cstd_machine_failed(struct cstd_machine *machine, const struct cst_err *why)
{
    uint64_t ms = FIRST_PAUSE_MS;
    const bool is_new =
        machine->told.status == CST_OK || strcmp(machine->told.text, why->text) != 0;

    for (unsigned i = 0; i < machine->n_failures && ms < CSTD_LINK_RETRY_MS; i++) {
        ms *= 2;
    }
    machine->n_failures++;
    machine->retry_ns =
        uv_hrtime() +
        pause_ns(machine->links, ms < CSTD_LINK_RETRY_MS ? ms : (uint64_t)CSTD_LINK_RETRY_MS);
    if (machine->up != NULL || why->status == CST_EEXIST) {
        return; /* Another connection was chosen. */
    }
    machine->why = machine->told = *why;
    cstd_log(is_new ? CSTD_LOG_WARNING : CSTD_LOG_DEBUG, "node '%s': no link: %s",
             machine->entry.name, why->text);
}

/* -- messages ------------------------------------------------------------------------------- */

int cstd_machine_send_bytes(struct cstd_machine *machine, uint16_t type, const uint8_t *body,
                            size_t n, struct cst_err *err)
{
    return machine->up != NULL
               ? cstd_connection_send(machine->up, type, body, n, err)
               : cst_err_set(err, CST_ECONN, "the link to node '%s' is down", machine->entry.name);
}

int cstd_machine_send(struct cstd_machine *machine, uint16_t type, const ProtobufCMessage *message,
                      struct cst_err *err)
{
    uint8_t *body = machine->links->home.out + CST_FRAME_HEADER_BYTES;
    const size_t n = protobuf_c_message_get_packed_size(message);

    return cstd_machine_send_bytes(
        machine, type, body, n <= CST_FRAME_MAX_BODY ? protobuf_c_message_pack(message, body) : n,
        err);
}
