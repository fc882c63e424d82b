/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of one rank in a communicator: those that were started and have not ended, in their
 * order. A call goes on in rounds (transfer.h), whose numbers run through all calls. The rank
 * writes as far ahead as its slots allow, even into the next call, and reads behind.
 *
 *        ended         being read          being written       started
 *   -----------------|----------- ... -----------|----------- ... -----|
 *                 n_ended                     writing               n_started
 *
 * Knows neither the daemon nor jobs. Used by one thread at a time. */
#ifndef CSTC_FLOW_H
#define CSTC_FLOW_H

#include "client/comm/channel.h"
#include "client/comm/transfer.h"

struct cstc_flow {
    struct cstc_channel channel;
    struct cstc_transfer_shape shape;
    /* Numbers of the group's ranks in the job, for messages. */
    uint32_t names[CST_COMM_MAX_RANKS];
    uint64_t n_started, writing, n_ended; /* Numbers of calls, as in the diagram above. */
    uint64_t round_written;               /* Rounds of call `writing` that are written. */
    uint64_t round_read;                  /* Rounds of call n_ended that are read. */
    /* The calls of all ranks up to this one are known to be the same. */
    uint64_t n_compared;
    struct cst_err failed; /* Why no call ends any more; status CST_OK: calls end. */
    struct cstc_transfer
        calls[CST_COMM_MAX_CALLS]; /* Call i is in entry i mod CST_COMM_MAX_CALLS. */
};

/* How a flow waits until @ready returns true for @ready_arg: with cst_shared_wait for @head. @arg
 * is the owner's. CST_OK: it has. CST_EAGAIN: it has not, and the owner waits no longer. Any other
 * status ends the flow: *err has the cause. */
typedef int (*cstc_flow_wait_fn)(void *arg, struct cst_shared_head *head,
                                 bool (*ready)(void *ready_arg), void *ready_arg,
                                 struct cst_err *err);

/* Begin in the memory at @base, which is borrowed. @names has @size entries, and is copied. */
void cstc_flow_init(struct cstc_flow *flow, void *base, uint32_t rank, uint32_t size,
                    size_t slot_bytes, const uint32_t *names);

/* Arrays and the data of slots are in the memory of @device, which copies and sums. @slots has for
 * each rank the data of its slots, @slot_bytes each. All are borrowed. Before the first call. */
void cstc_flow_use_device(struct cstc_flow *flow, const struct cstc_transfer_device *device,
                          void *arg, char *const *slots, size_t slot_bytes);

/* Start a call, and carry it as far as possible. *ticket is its number, from 1 on. Never waits
 * for other ranks. The statuses are those of cst_comm_start. */
int cstc_flow_start(struct cstc_flow *flow, const struct cst_comm_call *call, uint64_t *ticket,
                    struct cst_err *err);

/* Go on until call @ticket has ended. Each @wait lasts until something moves. @wait NULL: go on as
 * far as possible, and CST_EAGAIN if the call has not ended. Other statuses are those of
 * cst_comm_wait. */
int cstc_flow_wait(struct cstc_flow *flow, uint64_t ticket, cstc_flow_wait_fn wait, void *arg,
                   struct cst_err *err);

#endif
