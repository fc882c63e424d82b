/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions shared by exchange.c (memory, barrier) and exchange_join.c (connections between
 * processes). */
#ifndef GPT_EXCHANGE_INSIDE_H
#define GPT_EXCHANGE_INSIDE_H

#include "client/gpt/exchange.h"

#include <sys/un.h>

/* Header at the start of the shared memory. The ranks' regions follow. */
struct gpt_exchange_segment {
    uint32_t n_here;     /* ranks that wait at the barrier now */
    uint32_t generation; /* number of completed barriers; a futex word */
    uint32_t broken;     /* 1: a rank is gone, and no barrier will complete any more */
};

/* Regions begin at multiples of this many bytes, whatever the size of a page is: ranks do not map
 * them separately. */
#define GPT_EXCHANGE_ALIGN 4096

struct gpt_exchange {
    uint32_t rank, world;
    size_t region_bytes;                    /* bytes of one rank's region, with padding */
    struct gpt_exchange_segment *segment;   /* NULL: not joined */
    struct gpt_exchange_hub *hub;           /* borrowed; NULL: a process, or a rank without peers */
    const struct gpt_exchange_watch *watch; /* borrowed; NULL: none */
    bool process;                           /* the segment is a mapped memfd */
    /* Socket name of the job, if process is set. */
    char name[sizeof(((struct sockaddr_un *)0)->sun_path)];
    /* Rank 0: by rank of the peer; other ranks: entry 0 alone, to rank 0; -1: none. */
    int connections[GPT_EXCHANGE_MAX_RANKS];
};

/* Bytes of the shared memory of @world ranks: the header and all regions. */
static inline size_t gpt_exchange_bytes(uint32_t world, size_t region_bytes)
{
    return GPT_EXCHANGE_ALIGN + world * region_bytes;
}

/* Connect this process to the others and map the shared memory: sets segment and connections. The
 * statuses are those of gpt_exchange_join. */
int gpt_exchange_connect(struct gpt_exchange *x, struct cst_err *err);

/* Close all connections. */
void gpt_exchange_disconnect(struct gpt_exchange *x);

/* True if a process at the other end of a connection is gone. It does not wait. */
bool gpt_exchange_lost(const struct gpt_exchange *x);

#endif
