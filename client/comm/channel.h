/* SPDX-License-Identifier: Apache-2.0 */
/* The shared memory of a communicator (proto/comm_memory.h) as one of its ranks uses it: which
 * rounds the others have written and read. Round r is in slot r mod CST_COMM_SLOTS. A call begins
 * in one of the first two slots, and the rounds before that are left out: calls of a single round
 * use two slots, so that their data stays in the first-level caches. Nothing that is read there is
 * used as an address or as an index. Used by one thread at a time. */
#ifndef CSTC_CHANNEL_H
#define CSTC_CHANNEL_H

#include "proto/comm_memory.h"

#include <stdbool.h>

struct cstc_channel {
    void *base;          /* Borrowed: cst_comm_bytes. */
    uint32_t rank, size; /* This rank in the group, and the number of ranks. */
    size_t slot_bytes;   /* Data in a slot. */
    /* The data of each rank's slots, in memory apart, of apart_bytes per slot. NULL: it follows the
     * numbers. Borrowed. */
    char *const *apart;
    size_t apart_bytes;
    /* Rounds that this rank has written and read, and that all others have read as far as is
     * known. */
    uint64_t written, read, freed;
    /* A rank that was late at the last look. It is looked at first. */
    uint32_t late;
};

/* Use the memory at @base, which is borrowed and zeroed. */
void cstc_channel_init(struct cstc_channel *channel, void *base, uint32_t rank, uint32_t size,
                       size_t slot_bytes);

/* The header, the numbers and the data of @rank in its slot of @round. */
struct cst_comm_header *cstc_channel_header(const struct cstc_channel *channel, uint32_t rank,
                                            uint64_t round);
uint64_t *cstc_channel_numbers(const struct cstc_channel *channel, uint32_t rank, uint64_t round);
char *cstc_channel_data(const struct cstc_channel *channel, uint32_t rank, uint64_t round);

/* In a communicator by NCCL, which has no rounds: the entry in which @rank says that its call
 * @number is. The numbers of an all-to-all follow. */
struct cst_comm_slot *cstc_channel_call(const struct cstc_channel *channel, uint32_t rank,
                                        uint64_t number);

/* Return whether all other ranks have written @round. */
bool cstc_channel_is_written(struct cstc_channel *channel, uint64_t round);

/* Return whether this rank's slot for its next round is free: all others have read what it has. */
bool cstc_channel_is_free(struct cstc_channel *channel);

/* This rank has written its next round, or read it. @ends: this was the last round of a call. Wakes
 * the others that sleep. */
void cstc_channel_wrote(struct cstc_channel *channel);
void cstc_channel_did_read(struct cstc_channel *channel, bool ends);

/* This rank has written the last round of a call. */
void cstc_channel_ends(struct cstc_channel *channel);

/* This rank takes part no more. Wakes the others that sleep, and the threads that watch them. */
void cstc_channel_close(const struct cstc_channel *channel);

/* Return a rank that has closed its communicator; CST_COMM_MAX_RANKS: none has. */
uint32_t cstc_channel_closed(const struct cstc_channel *channel);

/* Say once that this rank can use the transport, or that it cannot. Wakes the others that sleep. */
void cstc_channel_say_ready(const struct cstc_channel *channel);
void cstc_channel_refuse(const struct cstc_channel *channel);

/* Whether the ranks can use the transport: */
enum cstc_channel_answer {
    CSTC_CHANNEL_UNKNOWN, /* Not all have said so, */
    CSTC_CHANNEL_READY,   /* all can, */
    CSTC_CHANNEL_REFUSED, /* one cannot, */
    CSTC_CHANNEL_LEFT     /* or one has closed its communicator without saying so. */
};

/* Return that. *rank is a rank that is not ready, if there is one. Once all ranks are ready, or one
 * has refused, the answer stays the same. */
enum cstc_channel_answer cstc_channel_ask(const struct cstc_channel *channel, uint32_t *rank);

#endif
