/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/links/links_state.h"
#include "proto/link.pb-c.h"

#include <string.h>

#define MS UINT64_C(1000000) /* Nanoseconds. */

static struct cstd_links *links_of(const struct cstd_connection *connection)
{
    return connection->home->owner;
}

/* True if whoever has connected has not proved yet who it is: it may show a certificate without
 * having the key. */
static bool is_unproven(const struct cstd_connection *connection)
{
    return !connection->is_dialled && connection->state != CSTD_CONNECTION_SECURE;
}

/* True if this machine chooses the connection with @machine that becomes the link. */
static bool chooses(const struct cstd_links *links, const struct cstd_machine *machine)
{
    return strcmp(links->self.name, machine->entry.name) < 0;
}

/* -- who it is ------------------------------------------------------------------------------ */

static struct cstd_machine *find_peer(struct cstd_links *links, const struct cstd_tls_peer *peer)
{
    struct cstd_machine *machine;

    TAILQ_FOREACH(machine, &links->machines, link)
    {
        if (strcmp(machine->entry.identity, peer->fingerprint) == 0 ||
            (peer->is_vouched && strcmp(machine->entry.identity, CSTD_MACHINE_CA) == 0 &&
             cstd_tls_peer_is(peer, machine->entry.name))) {
            return machine;
        }
    }
    return NULL;
}

static int admit(struct cstd_connection *connection, const struct cstd_tls_peer *peer,
                 struct cst_err *err)
{
    struct cstd_links *links = links_of(connection);
    struct cstd_machine *machine = find_peer(links, peer);

    if (strcmp(peer->fingerprint, cstd_tls_context_fingerprint(links->context)) == 0) {
        return cst_err_set(err, CST_EDENIED,
                           "it has this node's own certificate: each node needs its own key");
    }
    if (machine == NULL) {
        return cst_err_set(err, CST_EDENIED,
                           "no node of the list has its certificate, %s%s: 'cistern node add NAME "
                           "ADDRESS %s' would add it",
                           peer->fingerprint,
                           peer->is_vouched ? ", which an authority has signed" : "",
                           peer->is_vouched ? CSTD_MACHINE_CA : peer->fingerprint);
    }
    if (connection->is_dialled && machine != connection->machine) {
        return cst_err_set(err, CST_EDENIED,
                           "the certificate there is that of node '%s': correct the address of one "
                           "of the two ('cistern node add')",
                           machine->entry.name);
    }
    if (!connection->is_dialled) {
        connection->machine = machine;
        cstd_machine_ref(machine);
    }
    return CST_OK;
}

/* -- greeting ------------------------------------------------------------------------------- */

/* A machine has one accepted connection besides its link: an older one ends. */
static void end_older(const struct cstd_connection *connection)
{
    struct cstd_connection *other;
    struct cst_err why;

    (void)cst_err_set(&why, CST_EEXIST, "there is a newer connection of the node");
    TAILQ_FOREACH(other, &links_of(connection)->connections, link)
    {
        if (other != connection && other->machine == connection->machine && !other->is_dialled &&
            other->state == CSTD_CONNECTION_SECURE && other->talk != CSTD_TALK_UP) {
            cstd_connection_doom(other, &why);
        }
    }
}

static void on_secure(struct cstd_connection *connection)
{
    uint8_t body[CSTD_HELLO_MAX_BYTES];
    const size_t n = cstd_hello_write(&links_of(connection)->self, body);

    if (!connection->is_dialled) {
        links_of(connection)->n_unproven--;
        end_older(connection);
    }
    (void)cstd_connection_send(connection, LINK__MSG_TYPE__LINK_HELLO, body, n, NULL);
}

void cstd_links_refuse(struct cstd_connection *connection, const struct cst_err *why)
{
    Link__Refused message = LINK__REFUSED__INIT;
    uint8_t body[sizeof why->text + 32];

    message.status = why->status;
    message.text = (char *)(uintptr_t)why->text;
    (void)cstd_connection_send(connection, LINK__MSG_TYPE__LINK_REFUSED, body,
                               link__refused__pack(&message, body), NULL);
    cstd_connection_doom(connection, why);
}

/* The connection is the link from now on. Other connections with the machine are not needed. */
static void take(struct cstd_connection *connection)
{
    struct cstd_machine *machine = connection->machine;
    struct cstd_connection *other;
    struct cst_err err;

    if (cstd_frame_stream_admit(&connection->stream, CST_FRAME_MAX_BODY, &err) != CST_OK) {
        cstd_connection_doom(connection, &err);
        return;
    }
    (void)cst_err_set(&err, CST_EEXIST, "another connection of the two nodes is the link");
    TAILQ_FOREACH(other, &links_of(connection)->connections, link)
    {
        if (other->machine == machine && other != connection) {
            cstd_links_refuse(other, &err);
        }
    }
    connection->talk = CSTD_TALK_UP;
    cstd_machine_set_up(machine, connection);
}

/* The machine has another link than @machine->up: that one is over. */
static void replace(struct cstd_machine *machine, const struct cstd_connection *by)
{
    struct cstd_connection *old = machine->up;
    struct cst_err why;

    if (old == NULL) {
        return;
    }
    (void)cst_err_set(&why, CST_ECONN,
                      by->hello.instance != machine->hello.instance
                          ? "the daemon there was started again"
                          : "the node there has begun another connection");
    cstd_machine_set_down(machine, &why);
    cstd_connection_doom(old, &why);
}

/* This machine chooses: @connection becomes the link, unless there is one with the same daemon. */
static void choose(struct cstd_connection *connection)
{
    struct cstd_machine *machine = connection->machine;
    struct cst_err err;

    if (machine->up != NULL && machine->hello.instance == connection->hello.instance) {
        (void)cst_err_set(&err, CST_EEXIST, "there is a link between the two nodes already");
        cstd_links_refuse(connection, &err);
        return;
    }
    replace(machine, connection);
    if (cstd_connection_send(connection, LINK__MSG_TYPE__LINK_WELCOME, NULL, 0, NULL) == CST_OK) {
        take(connection);
    }
}

static void on_hello(struct cstd_connection *connection, const struct cst_frame *frame)
{
    struct cstd_links *links = links_of(connection);
    struct cstd_machine *machine = connection->machine;
    struct cst_err err;
    int rc = cstd_hello_read(&connection->hello, frame->body, frame->body_bytes, &err);

    if (rc != CST_OK) {
        cstd_connection_doom(connection, &err);
        return;
    }
    rc = cstd_hello_check(&links->self, &connection->hello, machine->entry.name, &err);
    if (rc == CST_OK && machine->entry.drained) {
        rc =
            cst_err_set(&err, CST_EDRAINING,
                        "node '%s' has drained its link to '%s': 'cistern node add' there takes it "
                        "back",
                        links->self.name, machine->entry.name);
    }
    if (rc != CST_OK) {
        cstd_links_refuse(connection, &err);
        return;
    }
    connection->talk = CSTD_TALK_GREETED;
    if (chooses(links, machine)) {
        choose(connection);
    }
}

static void on_refused(struct cstd_connection *connection, const struct cst_frame *frame)
{
    Link__Refused *message = link__refused__unpack(NULL, frame->body_bytes, frame->body);
    struct cst_err err;

    if (message == NULL) {
        (void)cst_err_set(&err, CST_EPROTO, "a refusal that cannot be read");
    } else {
        (void)cst_err_set(&err, message->status == CST_EEXIST ? CST_EEXIST : CST_EDENIED,
                          "that node says: %.500s", message->text);
    }
    if (message != NULL) {
        link__refused__free_unpacked(message, NULL);
    }
    cstd_connection_doom(connection, &err);
}

/* -- frames --------------------------------------------------------------------------------- */

static void on_pong(struct cstd_connection *connection, const struct cst_frame *frame)
{
    Link__Ping *message = link__ping__unpack(NULL, frame->body_bytes, frame->body);
    const uint64_t now = uv_hrtime();

    if (message != NULL) {
        connection->machine->round_trip_ns = now > message->sent_ns ? now - message->sent_ns : 0;
        link__ping__free_unpacked(message, NULL);
    }
}

/* A message of the link itself, or of a module. */
static int on_message(struct cstd_connection *connection, const struct cst_frame *frame,
                      struct cst_err *err)
{
    struct cstd_links *links = links_of(connection);
    const unsigned type = (unsigned)(frame->type - CSTD_LINK_FIRST_TYPE);

    if (frame->type == LINK__MSG_TYPE__LINK_PING && frame->body_bytes <= CSTD_HELLO_MAX_BYTES) {
        (void)cstd_connection_send(connection, LINK__MSG_TYPE__LINK_PONG, frame->body,
                                   frame->body_bytes, NULL);
        return CST_OK;
    }
    if (frame->type == LINK__MSG_TYPE__LINK_PONG) {
        on_pong(connection, frame);
        return CST_OK;
    }
    if (frame->type < CSTD_LINK_FIRST_TYPE || type >= CSTD_LINK_TYPES ||
        links->handlers[type].fn == NULL) {
        return cst_err_set(err, CST_EPROTO, "a message of type %u, which this node does not know",
                           frame->type);
    }
    return links->handlers[type].fn(links->handlers[type].arg, connection->machine, frame->body,
                                    frame->body_bytes, err);
}

static void on_frame(struct cstd_connection *connection, const struct cst_frame *frame)
{
    struct cstd_machine *machine = connection->machine;
    struct cst_err err = {0};
    int rc = CST_OK;

    if (frame->flags != 0 || frame->request != 0) {
        rc = cst_err_set(&err, CST_EPROTO, "a frame with flags 0x%04x and request %llu",
                         frame->flags, (unsigned long long)frame->request);
    } else if (frame->type == LINK__MSG_TYPE__LINK_REFUSED) {
        on_refused(connection, frame);
    } else if (connection->talk == CSTD_TALK_UP) {
        rc = on_message(connection, frame, &err);
    } else if (connection->talk == CSTD_TALK_NONE && frame->type == LINK__MSG_TYPE__LINK_HELLO) {
        on_hello(connection, frame);
    } else if (connection->talk == CSTD_TALK_GREETED && !chooses(links_of(connection), machine) &&
               frame->type == LINK__MSG_TYPE__LINK_WELCOME) {
        replace(machine, connection);
        take(connection);
    } else {
        rc = cst_err_set(&err, CST_EPROTO, "a message of type %u before the link is up",
                         frame->type);
    }
    if (rc != CST_OK) {
        cstd_connection_doom(connection, &err);
    }
}

/* -- time and the end ----------------------------------------------------------------------- */

void cstd_links_beat(struct cstd_links *links, uint64_t now_ns, bool is_late)
{
    struct cstd_connection *connection;

    TAILQ_FOREACH(connection, &links->connections, link)
    {
        if (is_late) {
            connection->opened_ns = connection->heard_ns = now_ns;
        }
    }
    TAILQ_FOREACH(connection, &links->connections, link)
    {
        const uint64_t limit_ms = connection->talk == CSTD_TALK_UP ? CSTD_LINK_SILENCE_MS
                                  : connection->state == CSTD_CONNECTION_DIALLING
                                      ? CSTD_LINK_DIAL_MS
                                      : CSTD_LINK_GREET_MS;
        const uint64_t since_ns =
            connection->talk == CSTD_TALK_UP ? connection->heard_ns : connection->opened_ns;
        struct cst_err err;

        if (now_ns - since_ns > limit_ms * MS) {
            (void)cst_err_set(&err, CST_ETIMEDOUT, "%s: nothing has come for %.1f s",
                              connection->address, (double)(now_ns - since_ns) / 1e9);
            cstd_connection_doom(connection, &err);
        } else if (connection->talk == CSTD_TALK_UP &&
                   now_ns - connection->pinged_ns >= CSTD_LINK_BEAT_MS * MS) {
            Link__Ping message = LINK__PING__INIT;
            uint8_t body[16];

            message.sent_ns = connection->pinged_ns = now_ns;
            (void)cstd_connection_send(connection, LINK__MSG_TYPE__LINK_PING, body,
                                       link__ping__pack(&message, body), NULL);
        }
    }
}

/* A connection of nobody knows whom has ended. */
static void tell_of_stranger(struct cstd_links *links, const struct cstd_connection *connection)
{
    const bool is_due = cstd_log_due(&links->told, uv_hrtime());

    cstd_log(is_due ? CSTD_LOG_WARNING : CSTD_LOG_DEBUG,
             "a connection from %s was refused: %s (%llu others since the last such line)",
             connection->address, connection->why.text, (unsigned long long)links->n_untold);
    links->n_untold = is_due ? 0 : links->n_untold + 1;
}

static void on_ended(struct cstd_connection *connection)
{
    struct cstd_links *links = links_of(connection);
    struct cstd_machine *machine = connection->machine;

    TAILQ_REMOVE(&links->connections, connection, link);
    if (is_unproven(connection)) {
        links->n_unproven--;
        tell_of_stranger(links, connection);
        if (machine != NULL) {
            cstd_machine_unref(machine);
        }
        return;
    }
    if (machine->dialled == connection) {
        machine->dialled = NULL;
    }
    if (machine->up == connection) {
        cstd_machine_set_down(machine, &connection->why);
    } else if (connection->talk != CSTD_TALK_UP) {
        cstd_machine_failed(machine, &connection->why);
    }
    connection->machine = NULL;
    cstd_machine_unref(machine);
}

const struct cstd_connection_ops cstd_links_ops = {
    .admit = admit, .on_secure = on_secure, .on_frame = on_frame, .on_ended = on_ended};
