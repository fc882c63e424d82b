/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of networks: each copies for one job from the memory of other machines, and serves theirs
 * (proto/engine.proto, Net). What such an engine is told of the network survives its process: the
 * next one is told the same. Loop thread only. */
#ifndef CSTD_NET_ENGINE_H
#define CSTD_NET_ENGINE_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CSTD_NET "net:" /* The beginning of the device's name, before that of the job. */
#define CSTD_NET_MACHINES 64
#define CSTD_NET_ADDRESS_BYTES 80

struct cstd_engine;
struct cstd_engines;

/* A message as it was packed; owned. */
struct cstd_net_bytes {
    uint8_t *v; /* NULL: none. */
    size_t n;
};

/* What an engine of a network is told. */
struct cstd_net_engine {
    char transport[8];                   /* "tcp", "tls" or "ucx". */
    char listen[CSTD_NET_ADDRESS_BYTES]; /* Where the others reach it. */
    uint32_t machine;                    /* Number of this machine in the job. */
    struct cstd_net_bytes end;           /* NetEnd, as the process says; none: it is not up. */
    struct cstd_net_bytes peers[CSTD_NET_MACHINES]; /* Peer. */
};

/* True if @device, of an engine, is a network. */
static inline bool cstd_net_is(const char *device)
{
    return strncmp(device, CSTD_NET, sizeof CSTD_NET - 1) == 0;
}

/* Take an engine for the job @name, and count its use: it starts. CST_ENOTFOUND: there is no engine
 * program; CST_EUNSUPPORTED: too many engines; CST_ENOMEM. */
int cstd_net_engine_take(struct cstd_engines *engines, const char *name, const char *transport,
                         const char *listen, uint32_t machine, unsigned *index,
                         struct cst_err *err);

/* Give the engine back. Nothing is mapped there any more, or will be unmapped. */
void cstd_net_engine_release(struct cstd_engines *engines, unsigned index);

/* Let @machine, whose engine is reached at the packed NetEnd @end and has @token of @token_bytes,
 * be a peer of the engine, in place of what it was. CST_EPROTO: @end is none; CST_ENOMEM. */
int cstd_net_engine_add_peer(struct cstd_engine *engine, uint32_t machine, const uint8_t *token,
                             size_t token_bytes, const uint8_t *end, size_t end_bytes,
                             struct cst_err *err);

/* @machine is no peer any more, because of @cause: what is copied from it fails. */
void cstd_net_engine_drop_peer(struct cstd_engine *engine, uint32_t machine, const char *cause);

/* Of engine.c: keep what the new process says of itself; then tell it the peers. */
void cstd_net_engine_ready(struct cstd_engine *engine, const uint8_t *end, size_t end_bytes);
void cstd_net_engine_tell(struct cstd_engine *engine);
/* The process has ended. */
void cstd_net_engine_ended(struct cstd_engine *engine);
void cstd_net_engine_free(struct cstd_net_engine *net);

#endif
