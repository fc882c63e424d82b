/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/links/links_state.h"

#include <stdlib.h>
#include <string.h>

#define MS UINT64_C(1000000) /* Nanoseconds. */

enum { FIRST_PAUSE_MS = 250 };

/* -- life ----------------------------------------------------------------------------------- */

int cstd_node_make(struct cstd_node **out, struct cstd_links *links,
                   const struct cstd_node_entry *entry, struct cst_err *err)
{
    struct cstd_node *node = calloc(1, sizeof *node);

    if (node == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a node");
    }
    node->links = links;
    node->entry = *entry;
    node->since_ns = uv_hrtime();
    node->n_refs = 1;
    *out = node;
    return CST_OK;
}

static void free_unused(struct cstd_node *node)
{
    if (node->n_refs == 0 && node->n_holds == 0) {
        free(node);
    }
}

void cstd_node_ref(struct cstd_node *node)
{
    node->n_refs++;
}

void cstd_node_unref(struct cstd_node *node)
{
    node->n_refs--;
    free_unused(node);
}

int cstd_node_hold(struct cstd_node *node, struct cst_err *err)
{
    if (node->entry.drained) {
        return cst_err_set(err, CST_EDRAINING,
                           "node '%s' is drained: 'cistern node add' takes it back",
                           node->entry.name);
    }
    if (node->up == NULL) {
        return cst_err_set(err, CST_ECONN, "there is no link to node '%s': %s", node->entry.name,
                           node->why.status != CST_OK ? node->why.text : "it has not answered yet");
    }
    node->n_holds++;
    return CST_OK;
}

void cstd_node_release(struct cstd_node *node)
{
    node->n_holds--;
    if (node->n_refs > 0) {
        cstd_node_look(node);
    }
    free_unused(node);
}

void cstd_node_look(struct cstd_node *node)
{
    struct cst_err why;

    if (node->up != NULL && node->entry.drained && node->n_holds == 0) {
        (void)cst_err_set(&why, CST_EDRAINING, "node '%s' has drained its link to '%s'",
                          node->links->self.name, node->entry.name);
        cstd_links_refuse(node->up, &why);
    }
}

/* -- up and down ---------------------------------------------------------------------------- */

void cstd_node_set_up(struct cstd_node *node, struct cstd_connection *connection)
{
    struct cstd_links_watch *watch, *next;

    node->up = connection;
    node->hello = connection->hello;
    node->since_ns = uv_hrtime();
    node->round_trip_ns = 0;
    node->n_failures = 0;
    node->told.status = CST_OK;
    cstd_log(CSTD_LOG_NOTICE, "node '%s': the link is up (%s, cistern %s, %s)", node->entry.name,
             connection->address, node->hello.program, node->hello.isa);
    for (watch = LIST_FIRST(&node->links->watches); watch != NULL; watch = next) {
        next = LIST_NEXT(watch, link);
        watch->on_up(watch, node);
    }
}

/* A pause of @ms, less up to a quarter, so that nodes do not dial each other in step. */
static uint64_t pause_ns(struct cstd_links *links, uint64_t ms)
{
    links->random = links->random * UINT64_C(6364136223846793005) + 1;
    return (ms * MS) - (ms * MS / 4) * (links->random >> 54) / 1024;
}

void cstd_node_set_down(struct cstd_node *node, const struct cst_err *why)
{
    const uint64_t now = uv_hrtime();
    struct cstd_links_watch *watch, *next;

    node->up = NULL;
    node->why = *why;
    node->since_ns = now;
    node->retry_ns = now + pause_ns(node->links, FIRST_PAUSE_MS);
    cstd_log(CSTD_LOG_NOTICE, "node '%s': the link is down: %s", node->entry.name, why->text);
    for (watch = LIST_FIRST(&node->links->watches); watch != NULL; watch = next) {
        next = LIST_NEXT(watch, link);
        watch->on_down(watch, node, why);
    }
}

void cstd_node_failed(struct cstd_node *node, const struct cst_err *why)
{
    uint64_t ms = FIRST_PAUSE_MS;
    const bool is_new = node->told.status == CST_OK || strcmp(node->told.text, why->text) != 0;

    for (unsigned i = 0; i < node->n_failures && ms < CSTD_LINK_RETRY_MS; i++) {
        ms *= 2;
    }
    node->n_failures++;
    node->retry_ns =
        uv_hrtime() +
        pause_ns(node->links, ms < CSTD_LINK_RETRY_MS ? ms : (uint64_t)CSTD_LINK_RETRY_MS);
    if (node->up != NULL || why->status == CST_EEXIST) {
        return; /* Another connection was chosen. */
    }
    node->why = node->told = *why;
    cstd_log(is_new ? CSTD_LOG_WARNING : CSTD_LOG_DEBUG, "node '%s': no link: %s", node->entry.name,
             why->text);
}

/* -- messages ------------------------------------------------------------------------------- */

int cstd_node_send_bytes(struct cstd_node *node, uint16_t type, const uint8_t *body, size_t n,
                         struct cst_err *err)
{
    return node->up != NULL
               ? cstd_connection_send(node->up, type, body, n, err)
               : cst_err_set(err, CST_ECONN, "the link to node '%s' is down", node->entry.name);
}

int cstd_node_send(struct cstd_node *node, uint16_t type, const ProtobufCMessage *message,
                   struct cst_err *err)
{
    uint8_t *body = node->links->home.out + CST_FRAME_HEADER_BYTES;
    const size_t n = protobuf_c_message_get_packed_size(message);

    return cstd_node_send_bytes(
        node, type, body, n <= CST_FRAME_MAX_BODY ? protobuf_c_message_pack(message, body) : n,
        err);
}
