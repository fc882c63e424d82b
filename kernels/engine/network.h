/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon and an engine of a network tell each other about machines. Numbers of machines
 * are the daemon's. All pointers are borrowed for the call, unless a function says otherwise. */
#ifndef CST_NETWORK_H
#define CST_NETWORK_H

#include <stddef.h>
#include <stdint.h>

#define CSTE_NET_TOKEN_BYTES 16

/* What an engine of a network is told when it starts. */
struct cste_net_spec {
    const char *transport; /* Name of the transport, such as "tcp". */
    const char *listen;    /* Address of this machine, such as "10.0.0.1" or "[fd00::1]:7000". */
    const char *devices;   /* "ucx": the devices that it may use. NULL: those of `listen`. */
    uint32_t machine;      /* Number of this machine. */
};

/* The end at which an engine is reached, as that engine tells it. */
struct cste_net_end {
    const char *transport; /* Both ends must have the same one. */
    const char *version;   /* Version of the transport's library; both ends have the same one. */
    const char *address;   /* "ADDRESS:PORT". */
    const uint8_t *certificate; /* DER. NULL: the transport has none. */
    size_t certificate_bytes;
};

/* Another machine of the job. */
struct cste_peer_spec {
    uint32_t machine;
    uint8_t token[CSTE_NET_TOKEN_BYTES]; /* Of the job and epoch. Random; all members have it. */
    struct cste_net_end end;
};

/* What went to and from a machine. */
struct cste_peer_traffic {
    uint32_t machine;
    uint64_t pulled_bytes, pulled; /* Bytes and number of payloads that came from it. */
    uint64_t served_bytes, served; /* The same, sent to it. */
    uint64_t damaged;              /* Payloads from it that had a wrong checksum. */
};

#endif
