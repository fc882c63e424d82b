/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of daemon/links share. links.c: the life of all links, the list, the clock.
 * links_dial.c and links_accept.c: where connections come from. links_up.c: what is said on them.
 * links_machine.c: one machine, and who is told of it. */
#ifndef CSTD_LINKS_STATE_H
#define CSTD_LINKS_STATE_H

#include "daemon/base/log.h"
#include "daemon/links/connection.h"
#include "daemon/links/links.h"

struct cstd_links {
    const struct cstd_links_config *config;
    struct cstd_connection_home home;
    struct cstd_tls_context *context;
    struct cstd_hello self;
    char address[CSTD_MACHINE_ADDRESS_BYTES]; /* Where this machine listens. */
    struct cstd_machine_head machines;        /* Those of the list. */
    unsigned n_machines;
    struct cstd_machine_head dropped; /* Those that were in the list, and are still used. */
    TAILQ_HEAD(, cstd_connection) connections;
    LIST_HEAD(, cstd_links_watch) watches;
    struct {
        cstd_link_fn fn; /* NULL: there is no message of this type. */
        void *arg;
    } handlers[CSTD_LINK_TYPES];
    /* Listening. */
    uv_tcp_t listener;
    bool has_waiting;          /* A connection has come that was not accepted yet. */
    unsigned n_admissible;     /* Connections that may still be accepted before the next tick. */
    unsigned n_unproven;       /* Accepted connections of nobody knows whom. */
    struct cstd_log_pace told; /* Lines about strangers. */
    uint64_t n_untold;         /* Strangers since the last such line. */
    /* The name that is being looked up: one at a time, because the threads serve others, too. */
    struct cstd_machine *looked_up; /* A reference; NULL: none. */
    uv_getaddrinfo_t lookup;
    uv_timer_t tick;
    uint64_t ticked_ns;
    uint64_t random;    /* State of a generator of pauses. */
    unsigned n_handles; /* Handles of the loop that are not closed yet. */
    bool is_orphan;     /* Nobody closes it: it frees itself after the last handle. */
    bool is_stopping;
};

enum { CSTD_LINKS_TICK_MS = 250 };

/* links_machine.c. A reference keeps a machine from being freed. */
int cstd_machine_make(struct cstd_machine **out, struct cstd_links *links,
                      const struct cstd_machine_entry *entry, struct cst_err *err);
void cstd_machine_ref(struct cstd_machine *machine);
void cstd_machine_unref(struct cstd_machine *machine);
/* @connection is the link of @machine now, or it has none now, and why. The watches are told. */
void cstd_machine_set_up(struct cstd_machine *machine, struct cstd_connection *connection);
void cstd_machine_set_down(struct cstd_machine *machine, const struct cst_err *why);
/* An attempt to connect has failed: when to try again. Logged if it is another failure than the
 * last one. */
void cstd_machine_failed(struct cstd_machine *machine, const struct cst_err *why);
/* End the link if a manager wants that and nobody holds the machine. */
void cstd_machine_look(struct cstd_machine *machine);

/* links_up.c */
extern const struct cstd_connection_ops cstd_links_ops;
/* Tell the peer why, and end the connection. */
void cstd_links_refuse(struct cstd_connection *connection, const struct cst_err *why);
/* Send heartbeats, and end connections of those that were silent or slow for too long. @is_late:
 * this daemon was stopped itself, and their time begins again. */
void cstd_links_beat(struct cstd_links *links, uint64_t now_ns, bool is_late);

/* links_dial.c: begin to connect to @machine, if no other machine's name is being looked up. */
void cstd_links_dial(struct cstd_links *links, struct cstd_machine *machine);

/* links_accept.c. Statuses of cstd_links_open. */
int cstd_links_listen(struct cstd_links *links, struct cst_err *err);
/* Accept what has come, as far as the limits allow. */
void cstd_links_accept(struct cstd_links *links);

#endif
