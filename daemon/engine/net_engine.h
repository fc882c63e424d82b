/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of networks: each copies for one job from the memory of other machines, and serves theirs
 * (proto/engine.proto, Net). What such an engine is told of the network survives its process: the
 * next one is told the same (engine.c). net_peers.h takes engines, and adds peers. Loop thread
 * only. */
#ifndef CSTD_NET_ENGINE_H
#define CSTD_NET_ENGINE_H

#include "cistern/status.h"
#include "proto/engine.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CSTD_NET "net:" /* The beginning of the device's name, before that of the job. */
#define CSTD_NET_MACHINES 64
#define CSTD_NET_ADDRESS_BYTES 80

/* A message as it was packed; owned. */
struct cstd_net_bytes {
    uint8_t *v; /* NULL: none. */
    size_t n;
};

/* Bytes that went between this machine and another one. */
struct cstd_net_traffic {
    uint64_t received; /* Copied from the memory of the other machine. */
    uint64_t sent;     /* Copied by the other machine from the memory here. */
};

/* What an engine of a network is told, and what it has moved. */
struct cstd_net_engine {
    char label[16];    /* "net:3", for all users: the engine's device has the name of a job. */
    char transport[8]; /* "tcp", "tls" or "ucx". */
    char listen[CSTD_NET_ADDRESS_BYTES]; /* Where the others reach it. */
    uint32_t machine;                    /* Number of this machine in the job. */
    struct cstd_net_bytes end;           /* NetEnd, as the process says; none: it is not up. */
    struct cstd_net_bytes peers[CSTD_NET_MACHINES]; /* Peer. */
    /* Traffic of the present process at its last Pong, and that of earlier processes. */
    struct cstd_net_traffic traffic[CSTD_NET_MACHINES], base[CSTD_NET_MACHINES];
};

/* True if @device, of an engine, is a network. */
static inline bool cstd_net_is(const char *device)
{
    return strncmp(device, CSTD_NET, sizeof CSTD_NET - 1) == 0;
}

/* Keep a copy of the @n bytes at @from in *@out. CST_ENOMEM: *out is as before. */
int cstd_net_bytes_keep(struct cstd_net_bytes *out, const uint8_t *from, size_t n);
void cstd_net_bytes_forget(struct cstd_net_bytes *bytes);

/* Note the traffic that @pong says. */
void cstd_net_engine_see(struct cstd_net_engine *net, const Engine__Pong *pong);

/* The process has ended: what it had moved since its last Pong is not counted. */
void cstd_net_engine_end_process(struct cstd_net_engine *net);

/* The traffic with @machine since the engine was taken; a second old at most while it is up. */
struct cstd_net_traffic cstd_net_engine_traffic(const struct cstd_net_engine *net,
                                                uint32_t machine);

void cstd_net_engine_free(struct cstd_net_engine *net);

#endif
