/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives: operations in which all ranks of a group take part, on arrays in the ranks' own
 * memory. A worker uses them for what the daemon does not see, such as activations.
 *
 * The ranks of a group exchange data through memory that they share, and which the daemon makes
 * when they open a communicator. A call makes no request to the daemon. The memory has a fixed
 * size, whatever the sizes of the arrays. It counts in the budget of host memory.
 *
 * Sums are taken in fp32 in the order of the ranks, and bf16 results are rounded once, to nearest
 * even. They have the same bits each time. A NaN in a sum becomes the quiet NaN 0x7fc00000.
 *
 * Calls.
 *   - All ranks of the group make the same calls in the same order: the same operation, type,
 *     numbers of elements and root. If calls differ, all ranks get CST_EMISMATCH, and the error
 *     names two ranks and their calls.
 *   - In an all-to-all each rank has counts of its own. What rank i sends to rank j, counts[j] of
 *     rank i, is what rank j receives from it, recv_counts[i] of rank j. If these differ, the call
 *     fails in all ranks of the group with CST_EMISMATCH, and the error names i, j and both of the
 *     numbers.
 *   - cst_comm_start begins a call, and cst_comm_wait ends it. Between the two, the arrays
 *     belong to the library. The blocking functions do both.
 *   - A call goes on only while its rank is in one of these functions. A rank must wait for
 *     each call that it has started, because the other ranks need its part.
 *   - Input and output must not overlap, except that all-reduce and broadcast can work in place.
 *     This is not checked: otherwise the output is undefined.
 *   - The arrays are aligned to their elements. An array without elements may be NULL.
 *
 * Life. A communicator belongs to an attempt at a step: it ends when a rank of the job dies,
 * disconnects, leaves, or calls cst_sync. All ranks that wait in it then get CST_EPEERDIED with the
 * cause. After cst_sync all ranks close it and open it again. In a job whose model is cut into
 * stages (cst_stage) an attempt does not end with a rank, and there are no communicators.
 *
 * Threads. A communicator is used by one thread at a time, which may not use the communicator's job
 * or client in another thread at the same time. The ranks of cst_comm_open_threads have a
 * communicator each. */
#ifndef CISTERN_COMM_H
#define CISTERN_COMM_H

#include "cistern/cistern.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CST_COMM_MAX_THREADS 64 /* Most ranks of cst_comm_open_threads. */
#define CST_COMM_MAX_CALLS 16   /* Most calls that a rank has started and not ended. */

struct cst_comm; /* This rank in a group whose ranks call collectives. */

enum cst_comm_op {
    CST_COMM_BARRIER = 1,
    CST_COMM_BROADCAST = 2,
    CST_COMM_ALL_GATHER = 3,
    CST_COMM_REDUCE_SCATTER = 4,
    CST_COMM_ALL_REDUCE = 5,
    CST_COMM_ALL_TO_ALL = 6,
};

/* Type of an element. Sums need bf16 or fp32 (CST_EINVAL). */
enum cst_comm_type { CST_COMM_BYTE = 1, CST_COMM_BF16 = 2, CST_COMM_FP32 = 3 };

/* A call of a collective. Ranks are counted in the group: cst_comm_rank. Fields that an operation
 * does not use are ignored. */
struct cst_comm_call {
    enum cst_comm_op op;
    enum cst_comm_type type; /* Not for a barrier. */
    /* The input: n_elems elements for an all-reduce, and for a broadcast in the root. All parts, in
     * the order of the ranks, for a reduce-scatter. The part of this rank for an all-gather. What
     * this rank sends, in the order of the receivers, for an all-to-all. */
    const void *in;
    /* The output: n_elems elements for an all-reduce or a broadcast (in the root it may be NULL or
     * `in`). All parts, in the order of the ranks, for an all-gather. The part of this rank for a
     * reduce-scatter. What this rank receives, in the order of the senders, for an all-to-all. */
    void *out;
    size_t n_elems; /* All-reduce, broadcast: number of elements. */
    /* All-gather, reduce-scatter: number of elements of each rank's part. All-to-all: number of
     * elements that this rank sends to each rank. One entry per rank of the group. Copied. */
    const size_t *counts;
    /* All-to-all: number of elements that this rank receives from each rank. Copied. */
    const size_t *recv_counts;
    uint32_t root; /* Broadcast: the rank that has the input. */
};

/* Open a communicator of @group, which is CST_GROUP_ALL or a number from cst_group, and wait until
 * all ranks of the group have done so. cst_sync must have succeeded. A group can have several
 * communicators; its ranks open them in the same order. The caller closes *out with cst_comm_close.
 * Statuses:
 *   - CST_EINVAL: there is no such group, or this rank is not in it.
 *   - CST_EINVAL: no cst_sync has succeeded.
 *   - CST_EINVAL: the model is cut into stages.
 *   - CST_EPEERDIED: the attempt has ended, as described above.
 *   - CST_ETIMEDOUT: the error names the ranks that have not come within the job's timeout_ms.
 *   - CST_EBUDGET: there is not enough memory in a budget.
 *   - CST_ENOMEM: this process cannot map the memory. The other ranks get CST_ECANCELLED: from
 *     their calls or, if the group is on GPUs, from this function.
 *   - CST_EBUSY: a cst_try_... call is pending. */
int cst_comm_open(struct cst_comm **out, struct cst_job *job, int group, struct cst_err *err);

/* Open the communicator of @n_ranks ranks that are threads of this process: out[i] is that of rank
 * i. There is no job, no daemon and no attempt. Each is used by one thread and closed with
 * cst_comm_close. Waits have no time limit, and end when another rank closes its communicator
 * (CST_ECANCELLED). Statuses:
 *   - CST_EINVAL: @n_ranks is 0 or larger than CST_COMM_MAX_THREADS.
 *   - CST_ENOMEM. */
int cst_comm_open_threads(struct cst_comm **out, uint32_t n_ranks, struct cst_err *err);

/* Close the communicator and free @comm, which may be NULL. Calls that have not ended are given up.
 * Other ranks that still wait for this one get CST_ECANCELLED, unless the step is void. Never
 * waits. cst_disconnect closes the communicators that are left. */
void cst_comm_close(struct cst_comm *comm);

/* Return the number of this rank in the group, from 0 to cst_comm_size - 1, in the order of the
 * job's ranks; and the number of ranks in the group. */
uint32_t cst_comm_rank(const struct cst_comm *comm);
uint32_t cst_comm_size(const struct cst_comm *comm);

/* Begin @call, which is copied, but not the arrays. *ticket is the number of the call. Never waits.
 * Statuses:
 *   - CST_EINVAL: @call or @ticket is NULL.
 *   - CST_EINVAL: the operation, the type, the root or an array is not valid; counts are NULL, or
 * their sum has more bytes than an array can have; or an all-to-all receives from this rank itself
 *     another number of elements than it sends.
 *   - CST_ENOCREDIT: CST_COMM_MAX_CALLS calls have not ended.
 *   - The statuses of cst_comm_wait: an earlier call has failed. */
int cst_comm_start(struct cst_comm *comm, const struct cst_comm_call *call, uint64_t *ticket,
                   struct cst_err *err);

/* Wait until call @ticket and all calls before it have ended. After a failure all calls of the
 * communicator fail with the same status. cst_comm_try_wait never waits, and returns CST_EAGAIN if
 * the call has not ended. Statuses:
 *   - CST_EINVAL: there is no call @ticket.
 *   - CST_EMISMATCH: the ranks made different calls.
 *   - CST_EPEERDIED: the attempt has ended, as described above. The step is void.
 *   - CST_ECANCELLED: another rank has closed its communicator.
 *   - CST_ETIMEDOUT: the rank that the error names has done nothing within the job's timeout_ms.
 *   - CST_EBUSY: a cst_try_... call is pending. The call can be awaited later. */
int cst_comm_wait(struct cst_comm *comm, uint64_t ticket, struct cst_err *err);
int cst_comm_try_wait(struct cst_comm *comm, uint64_t ticket, struct cst_err *err);

/* Start a call and wait for it. The parameters are the fields of struct cst_comm_call, and the
 * statuses those of cst_comm_start and cst_comm_wait. cst_comm_broadcast has one array, which is
 * the input in the root and the output in all other ranks. */
int cst_comm_barrier(struct cst_comm *comm, struct cst_err *err);
int cst_comm_broadcast(struct cst_comm *comm, void *data, size_t n_elems, enum cst_comm_type type,
                       uint32_t root, struct cst_err *err);
int cst_comm_all_gather(struct cst_comm *comm, const void *in, void *out, const size_t *counts,
                        enum cst_comm_type type, struct cst_err *err);
int cst_comm_reduce_scatter(struct cst_comm *comm, const void *in, void *out, const size_t *counts,
                            enum cst_comm_type type, struct cst_err *err);
int cst_comm_all_reduce(struct cst_comm *comm, const void *in, void *out, size_t n_elems,
                        enum cst_comm_type type, struct cst_err *err);
int cst_comm_all_to_all(struct cst_comm *comm, const void *in, const size_t *counts, void *out,
                        const size_t *recv_counts, enum cst_comm_type type, struct cst_err *err);

#ifdef __cplusplus
}
#endif

#endif
