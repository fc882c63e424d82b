/* SPDX-License-Identifier: Apache-2.0 */
/* Edges: memory through which ranks pass arrays, such as activations, to each other and to
 * themselves. cistern.h has the terms, and what holds for all calls. */
#ifndef CISTERN_EDGE_H
#define CISTERN_EDGE_H

#include "cistern/job.h"
#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CST_ALL_RANKS UINT32_MAX

/* An edge of a job. */
struct cst_edge_spec {
    const char *name; /* 1 to 63 printable ASCII bytes, unique among the edges of the job. */
    uint32_t from; /* Rank that puts; or CST_ALL_RANKS, in `to`, too: every rank puts and takes. */
    uint32_t to;   /* Rank that takes. It may be `from`. */
    uint64_t slot_bytes; /* Bytes of a slot: the size of the largest array. */
    uint32_t n_slots;    /* Number of arrays that the edge can hold, 1 to 4096. */
    bool on_device;      /* The slots are in device memory, if possible (below). */
};

/* Declare an edge (cst_put, cst_take). Its slots are memory of the job, which cst_commit allocates
 * and charges to the budgets: host memory, unless on_device is true. With on_device they are in the
 * memory of the device of the rank `to`, and are charged to the budget of pools there, if
 *   - the pools of both ranks are on devices, and
 *   - both are on one device, or the device of `from` can access the memory of that of `to`, and
 *   - the processes of both ranks can map this memory. In a container, for example, a process may
 *     not see the other rank's GPU.
 * Otherwise they are in host memory, for both ranks, and are charged to its budget; `cistern
 * explain` says why. What passes through such an edge is the same in both cases. In device memory
 * an array is copied from GPU to GPU, and not down to the host and up again.
 *
 * In a model that is cut into stages (cst_stage), `from` and `to` are the same rank or
 * CST_ALL_RANKS: a step goes on without a rank that dies, and another rank would wait for its
 * arrays in vain.
 *
 * The rules for declarations (cistern/model.h) apply: after a failure, cst_job_error has the cause.
 * Returns the edge's number (>= 0) or a negative status:
 *   - CST_EINVAL: @spec is NULL.
 *   - CST_EINVAL: the name is empty, longer than 63 bytes or not printable ASCII.
 *   - CST_EINVAL: the job does not have one of the two ranks.
 *   - CST_EINVAL: there are no slots or more than 4096, or a slot has no bytes, or all slots
 *     together have more than 2^44 bytes.
 *   - CST_EINVAL: on_device is true in an edge of CST_ALL_RANKS.
 *   - CST_EINVAL: there are more than 256 edges.
 *   - CST_EINVAL: the job is committed.
 *   - CST_EEXIST: the name is taken.
 *   - CST_EBUSY: a cst_try_commit is pending.
 *   - CST_ENOMEM. */
int cst_edge(struct cst_job *job, const struct cst_edge_spec *spec);

/* Pass arrays through the edge @edge. (For edges of CST_ALL_RANKS, see below.) The rank `from` puts
 * an array into a slot, and the rank `to` takes it out. A number tells the arrays in an edge apart,
 * for example the number of the micro-batch. Arrays may be taken in another order than they were
 * put. Two arrays that are in an edge at the same time have different numbers: this is not checked,
 * because the other rank may be taking the first of them, and a take gets either of two with the
 * same number.
 *
 * cst_put waits until a slot is free, and copies @bytes bytes of @data to it. cst_take waits until
 * the array with the number @number was put, copies its first @bytes bytes to @data, and frees the
 * slot. The edge does not know how many bytes were put: a take of more gets what an earlier array
 * has left in the slot. @bytes may be 0, and @data is NULL then or not. Both belong to the step:
 * they need cst_sync, and may be called while an operator is begun. They do not pass through the
 * daemon. The other rank can change the bytes of a slot at any time. An array that is not taken
 * stays in its slot, also after cst_step.
 *
 * In an edge from a rank to itself, only this rank can free a slot or put an array. Then nothing
 * waits: cst_put returns CST_EINVAL if no slot is free, and cst_take returns CST_ENOTFOUND if the
 * array was not put.
 *
 * In an edge of CST_ALL_RANKS the array with the number i has the slot i: a number is less than
 * n_slots. Every rank can put it, which overwrites it, and take it, which leaves it there. Nothing
 * waits: cst_take returns CST_ENOTFOUND if the array was not put in this attempt. Who may put and
 * take, and when, follows from the units (cst_next).
 *
 * cst_sync loses all arrays, also those that were put in an earlier step: after it all slots are
 * free. The ranks put the arrays of a step that was void again when they do the step again. This
 * also holds after the end of the daemon: the step is void, and cst_sync maps new slots. The death
 * of an engine loses no array, not even in slots in the memory of the engine's GPU.
 *
 * If the job is on a GPU (cistern/cuda.h), @data may be in the GPU's memory. The GPU then copies
 * all arrays, those in host memory, too. A copy begins when the stream has done the work that it
 * had at the time of the call, so that a kernel may have written @data just before.
 *
 * Statuses:
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync. If a rank dies, a call that waits
 *     returns this within a second. The error names the rank.
 *   - CST_ETIMEDOUT: the other rank neither took nor put in timeout_ms (300 s if it is 0).
 *   - CST_EINVAL: there is no such edge, or this rank is not the one that puts (takes) there.
 *   - CST_EINVAL: @bytes is larger than the slots, or @data is NULL and @bytes is not 0.
 *   - CST_EINVAL: cst_sync has not been called yet.
 *   - CST_EBUSY: a cst_try_... call is pending.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin.
 *   - CST_EGPU: the job's GPU has failed, and the step is void. */
int cst_put(struct cst_job *job, int edge, uint32_t number, const void *data, uint64_t bytes,
            struct cst_err *err);
int cst_take(struct cst_job *job, int edge, uint32_t number, void *data, uint64_t bytes,
             struct cst_err *err);

/* Do cst_put or cst_take in two parts, without the copy. The first part waits for the slot. *slot
 * receives its address; the slot has slot_bytes bytes and is aligned to 64. Until the second part
 * the worker writes or reads the slot. Several arrays of an edge may be between the two parts. What
 * is written before cst_put_end is seen after cst_take_begin. cst_put_end and cst_take_end do not
 * wait.
 *
 * If the slots are in the memory of a GPU (cst_edge_on_device), *slot is an address there. Work
 * that is enqueued in the job's stream between the two parts writes or reads it. Then cst_put_end
 * and cst_take_end wait until the stream has done the work that it has; not in an edge from a rank
 * to itself.
 *
 * Statuses are those of cst_put and cst_take, and these:
 *   - cst_put_begin, cst_take_begin, CST_EINVAL: @number is between the two parts already.
 *   - cst_put_end, cst_take_end, CST_EINVAL: the first part was not called for @number, or a
 *     cst_sync has freed the slot meanwhile. */
int cst_put_begin(struct cst_job *job, int edge, uint32_t number, void **slot, struct cst_err *err);
int cst_put_end(struct cst_job *job, int edge, uint32_t number, struct cst_err *err);
int cst_take_begin(struct cst_job *job, int edge, uint32_t number, const void **slot,
                   struct cst_err *err);
int cst_take_end(struct cst_job *job, int edge, uint32_t number, struct cst_err *err);

/* Return 1 if the slots of @edge are in the memory of a GPU, and 0 if they are in host memory:
 * those of a simulated accelerator are. cst_sync can change the result, if the other rank cannot
 * map the slots, or if a rank was opened again on another device, because its own was lost. Never
 * waits. Statuses:
 *   - CST_EINVAL: there is no such edge, this rank is no end of it, or the job is not committed. */
int cst_edge_on_device(const struct cst_job *job, int edge, struct cst_err *err);

/* Do cst_put or cst_take with a copy beside the computation, which a thread of the library does, or
 * the job's GPU in a stream of its own. The copies of a job are done in the order in which they are
 * started. From the first call to cst_edge_wait, the worker does not write the @data of a put, and
 * does not use the @data of a take.
 *
 * For activations that wait in host memory for their backward pass: each layer's are put when its
 * forward pass has ended, and are taken back in reverse order, one or more layers before their
 * backward pass begins.
 *
 * cst_put_start and cst_take_start wait as cst_put and cst_take do, but not for the copy. Statuses
 * are those of cst_put and cst_take, and these:
 *   - CST_EINVAL: @number is being put (taken) already.
 *   - CST_ENOMEM: the thread cannot be made.
 *
 * cst_edge_wait waits until the copy that was started for @number is done, and ends the put or
 * take. It waits for the copy even if it then returns a status that is not CST_OK. cst_sync waits
 * for all copies, too. On a GPU, in an edge from a rank to itself, the job's stream waits, and this
 * thread does not: the work that is enqueued afterwards finds the copy done. A worker whose @data
 * is host memory waits for the stream before it accesses @data. Statuses:
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync.
 *   - CST_EGPU: the job's GPU has failed, and the step is void.
 *   - CST_EINVAL: no copy was started for @number. */
int cst_put_start(struct cst_job *job, int edge, uint32_t number, const void *data, uint64_t bytes,
                  struct cst_err *err);
int cst_take_start(struct cst_job *job, int edge, uint32_t number, void *data, uint64_t bytes,
                   struct cst_err *err);
int cst_edge_wait(struct cst_job *job, int edge, uint32_t number, struct cst_err *err);

#ifdef __cplusplus
}
#endif

#endif
