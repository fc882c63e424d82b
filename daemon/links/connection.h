/* SPDX-License-Identifier: Apache-2.0 */
/* One TCP connection to another daemon: TLS, frames in both directions, and its end. It knows
 * nothing of machines: links_up.c does.
 *
 *   DIALLING --connected--> HANDSHAKE --both certificates are admitted--> SECURE
 *   any of them --cstd_connection_doom, or the peer, or the network--> ended, freed
 *
 * A connection never ends inside a call: cstd_connection_doom marks it, and it ends when the loop's
 * deferred work is done. What was sent before is passed to the kernel first if that takes it.
 * Loop thread only. */
#ifndef CSTD_CONNECTION_H
#define CSTD_CONNECTION_H

#include "daemon/base/deferred.h"
#include "daemon/links/frame_stream.h"
#include "daemon/links/hello.h"
#include "daemon/links/machine_address.h"
#include "daemon/links/tls.h"

#include <uv.h>

enum {
    /* Most bytes that wait for a peer that does not read. The connection then ends: nothing that
     * was sent may be left out, and whoever sends does not wait. */
    CSTD_CONNECTION_MAX_WAITING = 4 << 20,
    CSTD_CONNECTION_PIECE = 1 << 16, /* Most bytes that one call of the kernel reads or writes. */
};

struct cstd_connection;
struct cstd_machine;

/* What the owner of connections does for them. All functions are required. */
struct cstd_connection_ops {
    /* Decide about the peer's certificate, as cstd_tls_admit_fn. */
    int (*admit)(struct cstd_connection *connection, const struct cstd_tls_peer *peer,
                 struct cst_err *err);
    /* The connection is SECURE. It accepts frames of up to CSTD_HELLO_MAX_BYTES. */
    void (*on_secure)(struct cstd_connection *connection);
    void (*on_frame)(struct cstd_connection *connection, const struct cst_frame *frame);
    /* The connection has ended, for the reason connection->why: the owner forgets it. */
    void (*on_ended)(struct cstd_connection *connection);
};

/* What the connections of an owner share. */
struct cstd_connection_home {
    uv_loop_t *loop;
    struct cstd_deferred_queue *later; /* Done in each iteration of the loop. */
    const struct cstd_connection_ops *ops;
    void *owner;
    uint8_t in[CSTD_CONNECTION_PIECE]; /* What was just received, encrypted. */
    uint8_t piece[CSTD_CONNECTION_PIECE];
    uint8_t out[CST_FRAME_HEADER_BYTES + CST_FRAME_MAX_BODY]; /* A frame that is being sent. */
};

enum cstd_connection_state {
    CSTD_CONNECTION_DIALLING,
    CSTD_CONNECTION_HANDSHAKE,
    CSTD_CONNECTION_SECURE
};

/* What has been said on a SECURE connection. */
enum cstd_connection_talk { CSTD_TALK_NONE, CSTD_TALK_GREETED, CSTD_TALK_UP };

struct cstd_connection {
    TAILQ_ENTRY(cstd_connection) link; /* Entry in the owner's list. */
    struct cstd_connection_home *home;
    enum cstd_connection_state state;
    bool is_dialled;                          /* This machine dialled. */
    char address[CSTD_MACHINE_ADDRESS_BYTES]; /* The peer's, for messages. */
    struct cstd_tls *tls;
    struct cstd_frame_stream stream;
    uint64_t opened_ns;                  /* Monotonic. */
    uint64_t heard_ns;                   /* When bytes of the peer were last decrypted. */
    uint64_t sent_bytes, received_bytes; /* Of frames. */
    size_t in_flight;                    /* Bytes that libuv writes; 0: none. */
    char *rest;                          /* These bytes; owned. */
    bool is_doomed;
    struct cst_err why; /* Why it ends. */
    struct cstd_deferred end, flush;
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write;
    /* The owner's: the machine at the other end, a reference, and what it said. NULL: not known
     * yet; not proved before the connection is SECURE. */
    struct cstd_machine *machine;
    enum cstd_connection_talk talk;
    struct cstd_hello hello;
    uint64_t pinged_ns; /* When the last PING was sent. */
};

/* Dial @at. CST_ENOMEM; CST_ECONN: the kernel refuses at once. */
int cstd_connection_dial(struct cstd_connection **out, struct cstd_connection_home *home,
                         struct cstd_tls_context *context, const struct sockaddr *at,
                         struct cst_err *err);

/* Take the connection that has come to @listener. Statuses as above. On failure the connection has
 * been closed, or stays with @listener. */
int cstd_connection_accept(struct cstd_connection **out, struct cstd_connection_home *home,
                           struct cstd_tls_context *context, uv_stream_t *listener,
                           struct cst_err *err);

/* Send a frame with @n bytes of body, of which a copy is made. CST_ECONN: the connection is not
 * SECURE, is doomed, or was doomed now because too many bytes wait; CST_EINVAL: @n is over the
 * limit of a frame. */
int cstd_connection_send(struct cstd_connection *connection, uint16_t type, const uint8_t *body,
                         size_t n, struct cst_err *err);

/* Return the bytes that were sent but not yet accepted by the kernel, encrypted. */
size_t cstd_connection_waiting(const struct cstd_connection *connection);

/* End @connection soon. Only the first call has an effect. */
void cstd_connection_doom(struct cstd_connection *connection, const struct cst_err *why);

#endif
