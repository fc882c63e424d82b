/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the processes of a communicator share. It has a mailbox from each rank to each rank,
 * the own one included: one chunk that the sender writes and the receiver takes out, in order.
 *
 *   written == taken: empty, for the sender      written == taken + 1: full, for the receiver
 *
 * The memory is a memfd of the process that made the unique id, which has the process's number, so
 * that nothing is left behind when processes are killed. */
#ifndef FAKENCCL_ARENA_H
#define FAKENCCL_ARENA_H

#include "client/cuda/nccl.h"

#include <stdatomic.h>

#define ARENA_MAX_RANKS 8
#define ARENA_CHUNK_BYTES 16384

struct arena_mail {
    _Alignas(64) _Atomic uint32_t written, taken; /* Numbers of chunks. */
    uint32_t bytes;                               /* Length of the chunk. */
    _Alignas(64) char data[ARENA_CHUNK_BYTES];
};

struct arena {
    _Atomic uint32_t n_joined;       /* Ranks that have mapped the memory. */
    char uuids[ARENA_MAX_RANKS][16]; /* Of the rank's GPU; set before it joins. */
    struct arena_mail mail[ARENA_MAX_RANKS][ARENA_MAX_RANKS]; /* By sender and receiver. */
};

/* Make the memory for @id. Returns false if that is impossible. */
bool arena_make_id(ncclUniqueId *id);

/* Map the memory of @id. NULL: the process that made it is gone, or has closed it. */
struct arena *arena_map(const ncclUniqueId *id);

/* Unmap the memory. The process that made @id closes it, too. */
void arena_unmap(struct arena *arena, const ncclUniqueId *id);

#endif
