/* SPDX-License-Identifier: Apache-2.0 */
/* What exchange.c (memory, meetings) and exchange_join.c (processes finding each other) share. */
#ifndef GPT_EXCHANGE_INSIDE_H
#define GPT_EXCHANGE_INSIDE_H

#include "client/gpt/exchange.h"

#include <sys/un.h>

/* At the start of the shared memory; the regions follow at the next page. */
struct gpt_exchange_segment {
    uint32_t n_here;     /* ranks at the meeting */
    uint32_t generation; /* meetings held; a futex */
    uint32_t broken;     /* a rank is gone: no meeting will be held any more */
};

#define GPT_EXCHANGE_PAGE 4096

struct gpt_exchange {
    uint32_t rank, world;
    size_t region_bytes;                                    /* of one rank, whole pages */
    struct gpt_exchange_segment *segment;                   /* NULL: not joined */
    struct gpt_exchange_hub *hub;                           /* borrowed; NULL: alone or a process */
    const struct gpt_exchange_watch *watch;                 /* borrowed; NULL: none */
    bool process;                                           /* the segment is a memfd, mapped */
    char name[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* of a process's job */
    int connections[GPT_EXCHANGE_MAX_RANKS]; /* rank 0: by rank; others: [0] to rank 0; -1: none */
};

/* Bytes of header and regions of @world ranks. */
static inline size_t gpt_exchange_bytes(uint32_t world, size_t region_bytes)
{
    return GPT_EXCHANGE_PAGE + world * region_bytes;
}

/* A process finds the others: segment and connections are set. As gpt_exchange_join. */
int gpt_exchange_connect(struct gpt_exchange *x, struct cst_err *err);

/* Close all connections. */
void gpt_exchange_disconnect(struct gpt_exchange *x);

/* True if a peer that this process is connected to is gone. Never waits. */
bool gpt_exchange_lost(const struct gpt_exchange *x);

#endif
