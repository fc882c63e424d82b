/* SPDX-License-Identifier: Apache-2.0 */
/* How libcistern uses a device whose memory the processor cannot access: through a table of
 * functions that a second library provides. libcistern-cuda is such a library; another device would
 * be added in the same way. A program that trains on the host or uses libcistern-cuda does not need
 * this header.
 *
 * The worker enqueues work in the device's queue (the "stream") and does not wait for it. Therefore
 * what cst_op_end and cst_step give back (leases of weights, gradients handed in) is kept until the
 * stream has done the work:
 *
 *   cst_op_end    Plans the releases and hand-ins. fence() marks the current end of the stream. The
 *                 releases and hand-ins wait for this mark.
 *   any call      done() returns the marks that the stream has passed. What waited for them is sent
 *                 to the daemon. A waiting release is cancelled if its chunk is wanted again.
 *   waiting call  A call that waits for the daemon also polls fd. A fetch can therefore get the
 *                 block that a passed mark makes free.
 *   cst_step      Waits until all marks are passed, sends what waited for them, then commits.
 *
 * Fetches are sent at once. They are answered when the bytes are in the pool, so that work that is
 * enqueued after cst_op_begin finds them there.
 *
 * If the daemon is configured so ([gpu] copies = worker), the worker copies weights into the pool
 * itself, with the last four functions:
 *
 *   cst_commit    map_host() for each piece of the host memory that holds the job's states.
 *   any call      If a fetch was answered with the place of a row in this memory: copy() from there
 *                 to the block.
 *   cst_op_begin  await() for the copies of the operator's weights, so that the operator's work,
 *                 which is enqueued afterwards, finds the weights.
 *   cst_op_end    If weights are released that were copied but not used: await() before fence(), so
 *                 that the mark is passed only after the copy.
 *   the end       unmap_host(), when all marks are passed. */
#ifndef CISTERN_DEVICE_H
#define CISTERN_DEVICE_H

#include "cistern/cistern.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The functions of a device. `arg` is the pointer that cst_job_use_device was given. A function
 * that returns int returns CST_OK, or a negative status with its cause in *err. After such a
 * failure the step is void, except in map and map_host, which make cst_commit fail. */
struct cst_device_calls {
    /* Map @bytes of a slab of the pool, or of the slots of an edge, which may be the memory of
     * another device. The handle @fd belongs to the caller, who may close it afterwards. *base is
     * the memory's address on the job's device, which stays the same until unmap. */
    int (*map)(void *arg, int fd, uint64_t bytes, void **base, struct cst_err *err);
    void (*unmap)(void *arg, void *base, uint64_t bytes);
    /* Enqueue: fill @bytes at the device address @at with zeros. */
    int (*zero)(void *arg, void *at, uint64_t bytes, struct cst_err *err);
    /* Enqueue a mark after all work enqueued before. *fence is the mark's number; numbers
     * increase. */
    int (*fence)(void *arg, uint64_t *fence, struct cst_err *err);
    /* Get the largest number of a mark that the stream has passed. Fails if the stream has failed.
     * Never waits. */
    int (*done)(void *arg, uint64_t *passed, struct cst_err *err);
    /* A descriptor that polls readable (POLLIN) when the stream may have passed a mark since the
     * last call of done(). */
    int fd;

    /* map_host and unmap_host are NULL if the device copies neither weights nor arrays. */

    /* Make @bytes of host memory at @base, which is page-aligned, usable for copies until
     * unmap_host. An area of weights has up to 256 MiB, and an area of an edge its whole memory. No
     * copy uses two areas. No copy uses an area during or after unmap_host. */
    int (*map_host)(void *arg, void *base, uint64_t bytes, struct cst_err *err);
    void (*unmap_host)(void *arg, void *base, uint64_t bytes);

    /* copy and await are NULL if the device leaves copies of weights to the daemon's engines. */

    /* Enqueue a copy of @bytes from @src, inside of an area of map_host, to @dst in a slab. Copies
     * are ordered with each other, not with the stream. *number is the copy's number; numbers
     * increase. */
    int (*copy)(void *arg, void *dst, const void *src, uint64_t bytes, uint64_t *number,
                struct cst_err *err);
    /* Enqueue: the stream waits for all copies up to @number. */
    int (*await)(void *arg, uint64_t number, struct cst_err *err);

    /* copy_array and await_array are NULL if arrays in edges (cst_put) have to be in host memory.
     */

    /* Enqueue a copy of @bytes from @src to @dst after all work that the stream has. One of them is
     * inside of an area of map_host, or of slots that map() has mapped. The other one is device
     * memory or host memory. The copies of this function are done one after the other. The stream
     * does not wait for them. *number is the copy's number; numbers increase, and are not those of
     * copy(). With 0 bytes nothing is copied, but the number is reached after the same work. */
    int (*copy_array)(void *arg, void *dst, const void *src, uint64_t bytes, uint64_t *number,
                      struct cst_err *err);
    /* Enqueue: the stream waits for all copies of copy_array up to @number. @blocks: the calling
     * thread waits instead. */
    int (*await_array)(void *arg, uint64_t number, bool blocks, struct cst_err *err);
};

/* Use the functions @calls, which get the argument @arg, for the device of @job. Called once, after
 * cst_job_open and before cst_commit. @calls and @arg are borrowed until the job is freed. All
 * functions are called by the job's thread. Without this call, cst_commit returns CST_EUNSUPPORTED
 * for a device whose memory the processor cannot access. Never waits. Statuses:
 *   - CST_EINVAL: the job's pool is in host memory, the job is committed, the job has functions
 *     already, or calls->fd cannot be polled.
 *   - CST_EIO: no epoll descriptor is available. */
int cst_job_use_device(struct cst_job *job, const struct cst_device_calls *calls, void *arg,
                       struct cst_err *err);

/* Return the name of the job's device: "host", "paced:N" (a simulated accelerator with memory of
 * the host), or a UUID. The string belongs to the job. */
const char *cst_job_device(const struct cst_job *job);

#ifdef __cplusplus
}
#endif

#endif
