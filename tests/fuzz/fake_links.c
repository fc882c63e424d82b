/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fake_links.h"

#include "daemon/base/log.h"
#include "daemon/links/connection.h"
#include "proto/frame.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cstd_links {
    struct cstd_machine_head machines;
    LIST_HEAD(, cstd_links_watch) watches;
    struct cstd_hello self;
    struct {
        cstd_link_fn fn;
        void *arg;
    } handlers[FAKE_TYPES];
};

static struct cstd_links links_;
static struct cstd_machine *nodes[FAKE_NODES]; /* NULL: it was dropped. */
static struct fake_sent sent[FAKE_NODES][FAKE_TYPES];
static struct cstd_machine *dropped[FAKE_NODES]; /* NULL: it is in the list, or nobody holds it. */
static struct cstd_connection some_connection;   /* Of all links that are up. */

/* -- nodes ---------------------------------------------------------------------------------- */

static void free_unused(struct cstd_machine *machine)
{
    if (machine->n_refs == 0 && machine->n_holds == 0) {
        for (unsigned i = 0; i < FAKE_NODES; i++) {
            dropped[i] = dropped[i] == machine ? NULL : dropped[i];
        }
        free(machine);
    }
}

struct cstd_machine *fake_links_node(unsigned i)
{
    return nodes[i];
}

void fake_links_add(unsigned i)
{
    struct cstd_machine *machine;

    if (nodes[i] != NULL) {
        return;
    }
    machine = dropped[i] != NULL ? dropped[i] : calloc(1, sizeof *machine);
    fuzz_must(machine != NULL, "memory for a node");
    dropped[i] = NULL;
    machine->is_dropped = false;
    machine->links = &links_;
    machine->n_refs = 1;
    (void)snprintf(machine->entry.name, sizeof machine->entry.name, "node%u", i);
    TAILQ_INSERT_TAIL(&links_.machines, machine, link);
    nodes[i] = machine;
}

void fake_links_set(unsigned i, bool up)
{
    struct cstd_links_watch *watch, *next;
    struct cstd_machine *machine = nodes[i];
    struct cst_err why = {.status = CST_ECONN, .text = "down"};

    if (machine == NULL || (machine->up != NULL) == up) {
        return;
    }
    machine->up = up ? &some_connection : NULL;
    machine->why = why;
    for (watch = LIST_FIRST(&links_.watches); watch != NULL; watch = next) {
        next = LIST_NEXT(watch, link);
        if (up) {
            watch->on_up(watch, machine);
        } else {
            watch->on_down(watch, machine, &why);
        }
    }
}

void fake_links_drop(unsigned i)
{
    struct cstd_machine *machine = nodes[i];

    if (machine != NULL) {
        fake_links_set(i, false);
        TAILQ_REMOVE(&links_.machines, machine, link);
        nodes[i] = NULL;
        dropped[i] = machine;
        machine->is_dropped = true;
        machine->n_refs--;
        free_unused(machine);
    }
}

void fake_links_tell(unsigned i, unsigned type, const uint8_t *body, size_t n)
{
    struct cstd_machine *machine = nodes[i];
    struct cst_err err = {0};
    int rc;

    if (machine == NULL || machine->up == NULL) {
        return;
    }
    fuzz_must(links_.handlers[type - FAKE_FIRST_TYPE].fn != NULL, "the daemon takes all messages");
    rc = links_.handlers[type - FAKE_FIRST_TYPE].fn(links_.handlers[type - FAKE_FIRST_TYPE].arg,
                                                    machine, body, n, &err);
    fuzz_must(rc == CST_OK || (rc < 0 && err.status == rc && err.text[0] != '\0'),
              "a message is taken, or refused with words");
    if (rc != CST_OK) {
        cstd_log(CSTD_LOG_DEBUG, "node %u, message %u: %s", i, type, err.text);
        fake_links_set(i, false);
    }
}

const struct fake_sent *fake_links_sent(unsigned i, unsigned type)
{
    return &sent[i][type - FAKE_FIRST_TYPE];
}

void fake_links_reset(void)
{
    for (unsigned i = 0; i < FAKE_NODES; i++) {
        fake_links_drop(i);
        fake_links_add(i);
        for (unsigned t = 0; t < FAKE_TYPES; t++) {
            free(sent[i][t].body);
            sent[i][t] = (struct fake_sent){0};
        }
    }
}

/* -- what the daemon calls ------------------------------------------------------------------- */

int cstd_links_open(struct cstd_links **out, uv_loop_t *loop, struct cstd_deferred_queue *later,
                    const struct cstd_links_config *config, uint64_t instance, struct cst_err *err)
{
    (void)loop;
    (void)later;
    (void)err;
    TAILQ_INIT(&links_.machines);
    LIST_INIT(&links_.watches);
    cstd_hello_init(&links_.self, config->name, instance);
    *out = &links_;
    return CST_OK;
}

void cstd_links_stop(struct cstd_links *links, const struct cst_err *why)
{
    (void)links;
    (void)why;
}

void cstd_links_close(struct cstd_links *links)
{
    (void)links;
}

/* The target's user is no manager, so that none of these is called. */
static int refuse(struct cst_err *err)
{
    return cst_err_set(err, CST_EUNSUPPORTED, "not in a fuzz target");
}

int cstd_links_reload(struct cstd_links *links, struct cst_err *err)
{
    (void)links;
    return refuse(err);
}

int cstd_links_add(struct cstd_links *links, const char *name, const char *address,
                   const char *identity, struct cst_err *err)
{
    (void)links;
    (void)name;
    (void)address;
    (void)identity;
    return refuse(err);
}

int cstd_links_drop(struct cstd_links *links, const char *name, struct cst_err *err)
{
    (void)links;
    (void)name;
    return refuse(err);
}

int cstd_links_drain(struct cstd_links *links, const char *name, struct cst_err *err)
{
    (void)links;
    (void)name;
    return refuse(err);
}

struct cstd_machine *cstd_links_find(struct cstd_links *links, const char *name)
{
    struct cstd_machine *machine;

    TAILQ_FOREACH(machine, &links->machines, link)
    {
        if (strcmp(machine->entry.name, name) == 0) {
            return machine;
        }
    }
    return NULL;
}

const struct cstd_machine_head *cstd_links_machines(const struct cstd_links *links)
{
    return &links->machines;
}

const struct cstd_hello *cstd_links_self(const struct cstd_links *links)
{
    return &links->self;
}

const char *cstd_links_address(const struct cstd_links *links)
{
    (void)links;
    return "127.0.0.1:7433";
}

const char *cstd_links_fingerprint(const struct cstd_links *links)
{
    (void)links;
    return "sha256:00";
}

void cstd_links_watch(struct cstd_links *links, struct cstd_links_watch *watch)
{
    LIST_INSERT_HEAD(&links->watches, watch, link);
}

void cstd_links_unwatch(struct cstd_links_watch *watch)
{
    LIST_REMOVE(watch, link);
}

void cstd_links_handle(struct cstd_links *links, uint16_t type, cstd_link_fn fn, void *arg)
{
    fuzz_must(type >= FAKE_FIRST_TYPE && type < FAKE_FIRST_TYPE + FAKE_TYPES,
              "the target knows all types of messages");
    links->handlers[type - FAKE_FIRST_TYPE].fn = fn;
    links->handlers[type - FAKE_FIRST_TYPE].arg = arg;
}

int cstd_machine_hold(struct cstd_machine *machine, struct cst_err *err)
{
    if (machine->up == NULL) {
        return cst_err_set(err, CST_ECONN, "there is no link to node '%s'", machine->entry.name);
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
    fuzz_must(machine->n_holds > 0, "a node is released as often as it was held");
    machine->n_holds--;
    free_unused(machine);
}

int cstd_links_keep(struct cstd_links *links, const char *name, struct cstd_machine **out,
                    struct cst_err *err)
{
    *out = cstd_links_find(links, name);
    if (*out == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no node '%s'", name);
    }
    cstd_machine_keep(*out);
    return CST_OK;
}

size_t cstd_connection_waiting(const struct cstd_connection *connection)
{
    (void)connection;
    return 0;
}

int cstd_machine_send_bytes(struct cstd_machine *machine, uint16_t type, const uint8_t *body,
                            size_t n, struct cst_err *err)
{
    if (machine->up == NULL) {
        return cst_err_set(err, CST_ECONN, "the link to node '%s' is down", machine->entry.name);
    }
    cstd_log(CSTD_LOG_DEBUG, "to %s: message %u of %zu bytes", machine->entry.name, type, n);
    for (unsigned i = 0; i < FAKE_NODES; i++) {
        struct fake_sent *last = &sent[i][type - FAKE_FIRST_TYPE];

        if (nodes[i] == machine) {
            free(last->body);
            last->body = malloc(n > 0 ? n : 1);
            fuzz_must(last->body != NULL, "memory for a message");
            memcpy(last->body, body, n);
            last->n = n;
        }
    }
    return CST_OK;
}

int cstd_machine_send(struct cstd_machine *machine, uint16_t type, const ProtobufCMessage *message,
                      struct cst_err *err)
{
    static uint8_t body[CST_FRAME_MAX_BODY];
    const size_t n = protobuf_c_message_get_packed_size(message);

    if (n > sizeof body) {
        return cst_err_set(err, CST_EINVAL, "a message of %zu bytes", n);
    }
    (void)protobuf_c_message_pack(message, body);
    return cstd_machine_send_bytes(machine, type, body, n, err);
}
