/* SPDX-License-Identifier: Apache-2.0 */
/* The links of this daemon to those of other machines: who the machines are, which of them are up,
 * and messages between them.
 *
 * Each of two machines dials the other one. A machine proves by its certificate who it is (tls.h),
 * and says in its Hello whether it can train with this one (hello.h). Of several connections, the
 * machine with the lower name chooses one: that is the link. Both send heartbeats; a machine that
 * was silent for CSTD_LINK_SILENCE_MS is down, whatever TCP knows. A link that is down is dialled
 * again, after longer and longer pauses.
 *
 * Messages are small, and arrive once and in order while a link is up. When it goes down, those
 * that were sent last may have arrived or not. Data do not travel here. What waits for a machine is
 * bounded: at CSTD_CONNECTION_MAX_WAITING bytes its link goes down.
 *
 * What users call a node is a machine here, because a node is a NUMA node in code.
 *
 * Strangers can reach the port. Until a connection has proved to be of a machine, it costs at most
 * CSTD_LINK_UNPROVEN others like it, a time limit, and a line in the log each minute. Loop thread
 * only. */
#ifndef CSTD_LINKS_H
#define CSTD_LINKS_H

#include "daemon/links/hello.h"
#include "daemon/links/links_config.h"
#include "daemon/links/machine_list.h"

#include <protobuf-c/protobuf-c.h>
#include <sys/queue.h>
#include <uv.h>

enum {
    CSTD_LINK_BEAT_MS = 1000,    /* Time between heartbeats. */
    CSTD_LINK_SILENCE_MS = 5000, /* A machine is down when nothing has come from it for so long. */
    CSTD_LINK_DIAL_MS = 3000,    /* Longest time to connect. */
    CSTD_LINK_GREET_MS = 10000,  /* Longest time from then on until the link is up. */
    CSTD_LINK_RETRY_MS = 5000,   /* Longest pause before a machine is dialled again. */
    CSTD_LINK_UNPROVEN = 16,     /* Most connections that have not proved who they are. */
    CSTD_LINK_FIRST_TYPE = 16,   /* Types of messages from here on have handlers. */
    CSTD_LINK_TYPES = 32,        /* Number of these types. */
    /* Most descriptors: of each machine a link, and a connection that is being made in each
     * direction, strangers twice while they end, and the socket that listens. */
    CSTD_LINK_FILES = 3 * CSTD_MACHINES_MAX + 2 * CSTD_LINK_UNPROVEN + 1,
};

struct cstd_connection;
struct cstd_deferred_queue;
struct cstd_links;

/* A machine. It exists as long as it is in the list, held, or connected. One that is held, dropped
 * from the list and added again is still the same object, also if it has another key then. */
struct cstd_machine {
    TAILQ_ENTRY(cstd_machine) link;
    struct cstd_links *links;
    struct cstd_machine_entry entry; /* What the list of machines says. */
    struct cstd_connection *up;      /* The link; NULL: it is down. */
    struct cstd_connection *dialled; /* A connection that is being made; NULL: none. */
    struct cstd_hello hello;         /* What the machine said last; instance 0: nothing yet. */
    uint64_t since_ns;      /* When the link came up, went down, or was added; monotonic. */
    uint64_t round_trip_ns; /* Of the last heartbeat; 0: none yet. */
    struct cst_err why; /* Why the link is down, or was the last time; status 0: it never was up. */
    struct cst_err told; /* The last failure that was logged. */
    unsigned n_failures; /* Attempts to connect since the link was up. */
    uint64_t retry_ns;   /* When to dial again; monotonic. */
    unsigned n_refs;     /* Connections, and the list. */
    unsigned n_holds;    /* cstd_machine_hold. */
    bool is_dropped;     /* It is not in the list any more. */
};

TAILQ_HEAD(cstd_machine_head, cstd_machine);

/* Who wants to know when links come up and go down; embedded in its object. The functions must not
 * change the list of machines. */
struct cstd_links_watch {
    LIST_ENTRY(cstd_links_watch) link;
    void (*on_up)(struct cstd_links_watch *watch, struct cstd_machine *machine);
    /* Also when the daemon there has another instance now: on_up follows. */
    void (*on_down)(struct cstd_links_watch *watch, struct cstd_machine *machine,
                    const struct cst_err *why);
    /* A manager wants the link to end when nobody holds the machine. */
    void (*on_drain)(struct cstd_links_watch *watch, struct cstd_machine *machine);
};

/* Take a message of @machine, whose body is valid during the call. A status other than CST_OK, with
 * @err: it was none; the link goes down. */
typedef int (*cstd_link_fn)(void *arg, struct cstd_machine *machine, const uint8_t *body, size_t n,
                            struct cst_err *err);

/* Listen, and dial the machines of the list. @config, @loop and @later, which is done in each
 * iteration of the loop, are borrowed until the loop has ended. @instance is a random number of
 * this start of the daemon, not 0. Statuses are those of cstd_links_config_check, and CST_EBUSY:
 * the port is in use; CST_ENOMEM. On failure, and if config->listen is "", *out is NULL: there are
 * no links. */
int cstd_links_open(struct cstd_links **out, uv_loop_t *loop, struct cstd_deferred_queue *later,
                    const struct cstd_links_config *config, uint64_t instance, struct cst_err *err);

/* End all links, telling the other machines @why, and stop listening. Watches are told. Nothing is
 * to be called after this but cstd_links_close and cstd_machine_release. NULL: nothing. */
void cstd_links_stop(struct cstd_links *links, const struct cst_err *why);

/* Free @links, after cstd_links_stop and when the loop has ended. NULL: nothing. */
void cstd_links_close(struct cstd_links *links);

/* Read key, certificate, authorities and the list of machines again. The links of machines that are
 * no longer there, or have another identity, go down. On failure nothing has changed; statuses of
 * cstd_links_config_check. */
int cstd_links_reload(struct cstd_links *links, struct cst_err *err);

/* What managers do. The file of the list is changed first. Add: CST_EINVAL: the entry is wrong or
 * this machine's own; CST_EBUDGET: there are CSTD_MACHINES_MAX; CST_EIO: the file cannot be
 * written. A machine of this name is replaced, and is no longer drained. Drop and drain:
 * CST_ENOTFOUND; CST_EIO. */
int cstd_links_add(struct cstd_links *links, const char *name, const char *address,
                   const char *identity, struct cst_err *err);
int cstd_links_drop(struct cstd_links *links, const char *name, struct cst_err *err);
int cstd_links_drain(struct cstd_links *links, const char *name, struct cst_err *err);

/* Set *out to the machine @name, kept (cstd_machine_keep): that of the list, or one that is dropped
 * and becomes the one of the list when a machine of this name is added. CST_ENOMEM. */
int cstd_links_keep(struct cstd_links *links, const char *name, struct cstd_machine **out,
                    struct cst_err *err);

/* Return the machine @name of the list; NULL: there is none. */
struct cstd_machine *cstd_links_find(struct cstd_links *links, const char *name);

/* The machines of the list; what this machine says of itself; where it listens, and its
 * fingerprint. */
const struct cstd_machine_head *cstd_links_machines(const struct cstd_links *links);
const struct cstd_hello *cstd_links_self(const struct cstd_links *links);
const char *cstd_links_address(const struct cstd_links *links);
const char *cstd_links_fingerprint(const struct cstd_links *links);

/* Use the machine for a job: a drained machine keeps its link until all users have released it.
 * CST_ECONN: the link is down; CST_EDRAINING: a manager drains it. */
int cstd_machine_hold(struct cstd_machine *machine, struct cst_err *err);
/* The same for a job that used it before the daemon was started again: nothing is required. */
void cstd_machine_keep(struct cstd_machine *machine);
void cstd_machine_release(struct cstd_machine *machine);

/* Add or remove a watch. It is not told of links that are up already. */
void cstd_links_watch(struct cstd_links *links, struct cstd_links_watch *watch);
void cstd_links_unwatch(struct cstd_links_watch *watch);

/* Let @fn take the messages of @type, CSTD_LINK_FIRST_TYPE to CSTD_LINK_FIRST_TYPE +
 * CSTD_LINK_TYPES - 1. Once for each type, before the loop runs. */
void cstd_links_handle(struct cstd_links *links, uint16_t type, cstd_link_fn fn, void *arg);

/* Send @message, or a body of @n bytes, to @machine. CST_ECONN: the link is down, or goes down now
 * because too many bytes wait; it is never sent in part. CST_EINVAL: it is longer than a frame. */
int cstd_machine_send(struct cstd_machine *machine, uint16_t type, const ProtobufCMessage *message,
                      struct cst_err *err);
int cstd_machine_send_bytes(struct cstd_machine *machine, uint16_t type, const uint8_t *body,
                            size_t n, struct cst_err *err);

#endif
