/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a worker asks for weights and gradients, and gives them back. The client
 * library and offload/simulate/ both run this code, so that a plan plays what a worker
 * does. This module decides; the functions of struct cst_sequence_calls act. No I/O and no clock,
 * like lease.c and fence.c, which it uses.
 *
 *   begin     if fetches ahead must be answered first: poll, send WANT once, wait
 *             if the end of a micro-batch waits for a mark and gradients are needed: wait
 *             send releases and fetches; wait for the replies
 *             await the worker's own copies of the operator's weights
 *             send releases and the fetches ahead
 *   (the program computes, or enqueues its work in the stream of a device)
 *   end       zero gradients that were not written, send hand-ins
 *   end of a micro-batch      zero, send hand-ins and ACCUMULATE
 *   end of a step             wait for the fetches ahead; zero, send hand-ins and releases; wait
 * until the stream has passed all marks. Then the caller sends the Step
 *
 * "Send" on a device with a stream: await the copies of weights that are given back, put a mark
 * into the stream, and keep what is given back until the stream has passed the mark (pass).
 *
 * The following is not shared:
 *   - The order of operators. The program chooses it; the simulator plays the declared order.
 *   - Batches. The library splits them for the protocol and can lose the connection; the simulator
 *     hands their items to the core.
 *   - Sync, and the end of a job. The simulator syncs once and has no failures, so that only the
 *     library calls forget, drain and hint. */
#ifndef CST_SEQUENCE_H
#define CST_SEQUENCE_H

#include "offload/worker/fence.h"
#include "offload/worker/lease.h"

/* What the owner of a sequence does for it; `arg` is the owner's pointer. None of the functions
 * waits. A function that fails returns a negative status with its cause in *err. */
struct cst_sequence_calls {
    /* Send the @n items @items to the daemon, in order. If @awaited, add the number of messages to
     * n_awaited, and subtract each when it is answered. After a failure the step is void, and the
     * fetches that were not sent are refused. */
    int (*send)(void *arg, const struct cst_lease_item *items, uint32_t n, bool awaited,
                struct cst_err *err);
    /* Process the replies that have arrived. A failure: the step is void. */
    int (*poll)(void *arg, struct cst_err *err);
    /* Fill the gradient of @tensor with zeros in the block of @lease; on a device, enqueue that. */
    int (*zero)(void *arg, uint32_t tensor, const struct cst_lease *lease, struct cst_err *err);

    /* The following two are called only if there is a stream. */

    /* Enqueue: the stream waits for the worker's copies up to the number @copy. */
    int (*await)(void *arg, uint64_t copy, struct cst_err *err);
    /* Enqueue a mark after all work so far. *mark is its number; numbers increase. */
    int (*mark)(void *arg, uint64_t *mark, struct cst_err *err);
    /* One of zero, await and mark has failed because of @why: the step is void. Returns the status
     * that the operator's begin or end returns, with its cause in *err. */
    int (*failed)(void *arg, const struct cst_err *why, struct cst_err *err);
};

struct cst_sequence {
    const struct cst_sequence_calls *calls; /* Borrowed. */
    void *arg;                              /* Argument of calls. */
    bool stream;              /* The memory is a device's, whose stream works asynchronously. */
    struct cst_leases leases; /* The worker's leases. */
    struct cst_fences fences; /* With a stream: items that wait for marks. */
    uint32_t n_awaited;       /* Messages in flight for which begin waits. Counted by the owner. */
    struct cst_err refused;   /* First failure of these messages. Set by the owner. */
    bool wanted;              /* begin has told the daemon that it waits for the fetches ahead. */
    bool asked;               /* begin has sent its fetches. */
    bool flushed;             /* flush has sent its hand-ins and releases. */
    bool marked;              /* `mark` comes after all work for which leases were used so far. */
    uint64_t mark;            /* Number of the newest mark. */
    uint64_t passed;          /* The newest mark that the stream has passed. Set by the owner. */
    uint64_t *copies;         /* With a stream, per chunk: number of its last copy. Owned. */
    uint64_t last_copy;       /* Number of the worker's newest copy. */
    uint64_t awaited_copy;    /* The stream waits for the copies up to this number. */
};

/* Prepare the sequence of a worker with the leases of @model (see cst_lease_init), in a job with
 * @micro_batches micro-batches per step. @calls is borrowed until cst_sequence_close. CST_ENOMEM:
 * nothing is allocated. */
int cst_sequence_init(struct cst_sequence *sequence, const struct cst_lease_model *model,
                      uint32_t micro_batches, bool stream, const struct cst_sequence_calls *calls,
                      void *arg, struct cst_err *err);
/* Free everything. @sequence may be zero. */
void cst_sequence_close(struct cst_sequence *sequence);

/* Forget all leases and what begin and flush had sent, because a sync begins a new attempt. */
void cst_sequence_forget(struct cst_sequence *sequence);

/* Begin @op. CST_EAGAIN: call again with the same arguments after a reply or a passed mark. CST_OK:
 * the worker has leases on all that @op needs. CST_EPOOL: see cst_lease_begin. Other statuses are
 * those of a refused fetch and of the calls. */
int cst_sequence_begin(struct cst_sequence *sequence, uint32_t op, bool backward,
                       struct cst_err *err);

/* End @op. Statuses of the calls. */
int cst_sequence_end(struct cst_sequence *sequence, uint32_t op, bool backward,
                     struct cst_err *err);

/* End a micro-batch that is not the last one of its step. Leases on weights stay, because the next
 * micro-batch uses the same weights. Statuses of the calls. */
int cst_sequence_accumulate(struct cst_sequence *sequence, struct cst_err *err);

/* Give back everything at the end of a step. CST_EAGAIN: call again after a reply or a passed mark.
 * CST_OK: everything is sent, and the Step can follow it at once, because the daemon processes
 * requests in order. Other statuses: those of the calls. */
int cst_sequence_flush(struct cst_sequence *sequence, struct cst_err *err);

/* The step was committed. */
void cst_sequence_stepped(struct cst_sequence *sequence);

/* Send the hints that sequence->leases has planned. Statuses of the calls. */
int cst_sequence_hint(struct cst_sequence *sequence, struct cst_err *err);

/* Send what waited for marks up to sequence->passed. Statuses of send. */
int cst_sequence_pass(struct cst_sequence *sequence, struct cst_err *err);

/* Drop what waits for marks, and put a mark into the stream after all work and all copies. The
 * daemon may have the blocks when sequence->passed reaches sequence->mark. Statuses of await and
 * mark, for which `failed` is not called. Only with a stream. */
int cst_sequence_drain(struct cst_sequence *sequence, struct cst_err *err);

/* The worker has begun its copy @number, of the weights of @chunk to their block. Only with a
 * stream. */
void cst_sequence_copied(struct cst_sequence *sequence, uint32_t chunk, uint64_t number);

#endif
