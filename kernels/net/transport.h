/* SPDX-License-Identifier: Apache-2.0 */
/* The transports of a network, as rows of a table, and what they share. A transport sends requests
 * of the lanes to the engines of other machines, and answers theirs. It decides neither who may
 * read nor what a reply says (pull.h, answer.h).
 *
 *   lane: begin --request--> peer's transport: answer, payload --reply--> finish: checked, done */
#ifndef CST_NET_TRANSPORT_H
#define CST_NET_TRANSPORT_H

#include "kernels/net/complaints.h"
#include "kernels/net/peers.h"
#include "kernels/net/served.h"

/* What the device and the transports share. */
struct cste_net {
    uint32_t machine;    /* Number of this machine. */
    const char *listen;  /* As in struct cste_net_spec; borrowed until open returns. */
    const char *devices; /* The same. */
    unsigned n_threads;  /* Threads of the engine, which are numbered from 0. */
    struct cste_net_peers peers;
    struct cste_served served;
    struct cste_complaints complaints; /* Of strangers and malformed messages. */
};

/* Bytes that are pulled from a peer: at most CSTE_WIRE_MAX_PAYLOAD. The device owns it from `begin`
 * to the end of `finish`. */
struct cste_net_pull {
    struct cste_net_peer *peer; /* Held. */
    uint64_t id;                /* Set by cste_net_pull_request. */
    uint32_t segment;           /* Id there. */
    uint64_t offset;            /* In the segment. */
    uint32_t bytes;
    char *to;           /* Where they go. */
    unsigned n_damaged; /* How often they came damaged. */
    bool done;          /* They came, or it has failed. */
    struct cst_err err; /* Status and text of a failure. Status CST_OK: they came. */
    /* For the transport: the connection at which it waits, and the next one there. */
    void *connection;
    struct cste_net_pull *next;
};

struct cste_net_transport {
    const char *name;
    /* The other end must be of the same transport and version. */
    const char *(*version)(void);
    /* Begin to listen. Fills *end, whose members last until close, but for its name and version.
     * @net is borrowed until close. CST_EINVAL: the address or the devices; CST_EUNSUPPORTED: a
     * library is missing; CST_EIO, CST_ENOMEM. */
    int (*open)(void **state, struct cste_net *net, struct cste_net_end *end, struct cst_err *err);
    void (*close)(void *state);
    /* Begin @pull, as lane @thread. On failure nothing is under way, and the status is that of the
     * pull. */
    int (*begin)(void *state, unsigned thread, struct cste_net_pull *pull, struct cst_err *err);
    /* Wait until @pull, which is the lane's oldest, is done. Nothing of it is written afterwards.
     */
    void (*finish)(void *state, unsigned thread, struct cste_net_pull *pull);
    /* Segments were removed, or a peer was dropped: those who send from the one or to the other
     * give up soon. Any thread. */
    void (*interrupt)(void *state);
};

/* Find transport @name. CST_EINVAL: there is none; the text has those that this build has. */
int cste_net_transport_find(const char *name, const struct cste_net_transport **out,
                            struct cst_err *err);

extern const struct cste_net_transport cste_net_tcp, cste_net_tls, cste_net_ucx;

#endif
