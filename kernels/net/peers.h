/* SPDX-License-Identifier: Apache-2.0 */
/* The other machines whose engines may read here, and from which this engine reads, and the bytes
 * that went to and from each of them. The loop thread adds and drops peers. Threads that read or
 * serve hold a peer meanwhile: a peer that is dropped stays until nobody holds it, and its
 * `dropped` wakes those who wait for it. Any thread. */
#ifndef CST_NET_PEERS_H
#define CST_NET_PEERS_H

#include "kernels/engine/device.h"
#include "kernels/net/wire.h"

#include <pthread.h>
#include <stdatomic.h>

struct cste_net_machine;

/* A machine, as it was added. All but n_holds and dropped is constant. */
struct cste_net_peer {
    struct cste_net_machine *machine; /* Its counters. */
    uint32_t number;                  /* Number of the machine. */
    uint8_t token[CSTE_WIRE_TOKEN_BYTES];
    char *address;        /* "ADDRESS:PORT"; owned. */
    uint8_t *certificate; /* DER; owned. NULL: the transport has none. */
    size_t certificate_bytes;
    int dropped; /* An eventfd, readable once the peer was dropped. */
    unsigned n_holds;
};

/* What is known of a machine, also after it was dropped. */
struct cste_net_machine {
    uint32_t number;
    struct cste_net_peer *peer;         /* NULL: it is dropped. */
    char cause[256];                    /* Why it was dropped. */
    atomic_ullong pulled_bytes, pulled; /* Payload bytes and payloads that came from it. */
    atomic_ullong served_bytes, served; /* The same, to it. */
    /* Payloads from it that had a wrong checksum. */
    atomic_ullong damaged;
    struct cste_net_machine *next;
};

struct cste_net_peers {
    pthread_mutex_t mutex;
    struct cste_net_machine *machines; /* Owned list. */
};

void cste_net_peers_init(struct cste_net_peers *peers);

/* Nobody holds a peer. */
void cste_net_peers_close(struct cste_net_peers *peers);

/* Add a peer. CST_EEXIST: the machine is a peer already; CST_EINVAL: the token is all zeros;
 * CST_ENOMEM. */
int cste_net_peers_add(struct cste_net_peers *peers, const struct cste_peer_spec *spec,
                       struct cst_err *err);

/* Drop machine @number because of @cause. CST_ENOTFOUND: it is no peer. */
int cste_net_peers_drop(struct cste_net_peers *peers, uint32_t number, const char *cause,
                        struct cst_err *err);

/* Hold the peer of machine @number until cste_net_peers_release. CST_ELOST: it was dropped, or
 * never added; the text says why. */
int cste_net_peers_hold(struct cste_net_peers *peers, uint32_t number, struct cste_net_peer **out,
                        struct cst_err *err);

/* Hold @peer, which the caller holds, once more. */
void cste_net_peers_hold_again(struct cste_net_peers *peers, struct cste_net_peer *peer);

/* Hold the peer that has sent @request. NULL: the machine is no peer, or the token is not its. The
 * time of the comparison does not depend on the token. */
struct cste_net_peer *cste_net_peers_admit(struct cste_net_peers *peers,
                                           const struct cste_wire_request *request);

/* Returns whether @peer, which the caller holds, was dropped. */
bool cste_net_peers_is_dropped(struct cste_net_peers *peers, const struct cste_net_peer *peer);

/* CST_ELOST: machine and cause of the drop of @peer. */
int cste_net_peers_say_dropped(struct cste_net_peers *peers, const struct cste_net_peer *peer,
                               struct cst_err *err);

/* Returns whether one of the peers has the certificate of @bytes at @der. */
bool cste_net_peers_trusts(struct cste_net_peers *peers, const uint8_t *der, size_t bytes);

void cste_net_peers_release(struct cste_net_peers *peers, struct cste_net_peer *peer);

/* Call @each with the counters of each machine and @arg, under the lock. */
void cste_net_peers_count(struct cste_net_peers *peers,
                          void (*each)(const struct cste_peer_traffic *traffic, void *arg),
                          void *arg);

#endif
