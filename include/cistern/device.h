/* SPDX-License-Identifier: Apache-2.0 */
/* How libcistern works with a device whose memory the processor cannot touch: a table of functions
 * that a second library brings. libcistern-cuda has one; another device would be added the same
 * way. A program that trains on the host device or uses libcistern-cuda needs nothing of this
 * header.
 *
 * The device's queue of work ("stream") runs behind the program. So what cst_op_end and cst_step
 * give back (weights' leases, gradients handed in) is kept until the stream has come so far:
 *
 *   cst_op_end   plans releases and hand-ins; fence() marks the place in the stream behind the
 * operator's work; they wait any call     done(): what the stream has passed is sent to the daemon.
 * A release that waits is taken back if its chunk is wanted again a call that  waits for the daemon
 * also polls fd, so that a fetch that needs a block gets the one that a fence frees cst_step waits
 * until all fences have passed, sends the rest, then Step
 *
 * Fetches are sent at once, and are answered when the bytes are in the pool: work enqueued after
 * cst_op_begin returns sees them.
 *
 * The daemon may want the worker to copy weights into the pool itself ([gpu] copies = worker), with
 * the last four functions:
 *
 *   cst_commit    map_host() for each arena of the job
 *   any call      a fetch was answered with the place of a row in an arena: copy() of it to the
 * block cst_op_begin  await() what was copied for the operator: its work, enqueued afterwards, sees
 * the weights cst_op_end    a release of weights that were copied and not used: await(), then the
 * fence: it is behind the copy, too the end       unmap_host(), when all fences have passed */
#ifndef CISTERN_DEVICE_H
#define CISTERN_DEVICE_H

#include "cistern/cistern.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cst_device_calls {
    /* Map @bytes of a slab of the pool, whose handle is @fd (the caller's, may be closed
     * afterwards); *base: its device address, the same until unmap. */
    int (*map)(void *arg, int fd, uint64_t bytes, void **base, struct cst_err *err);
    void (*unmap)(void *arg, void *base, uint64_t bytes);
    /* Enqueue: @bytes at @at := 0. */
    int (*zero)(void *arg, void *at, uint64_t bytes, struct cst_err *err);
    /* Enqueue a mark behind all work enqueued so far; *fence: its number, increasing. */
    int (*fence)(void *arg, uint64_t *fence, struct cst_err *err);
    /* *passed: the largest number whose mark has been reached. A failed stream: negative status,
     * and the step is void. Never waits. */
    int (*done)(void *arg, uint64_t *passed, struct cst_err *err);
    /* Polls readable (POLLIN) when a mark may have been reached since done() was last called. */
    int fd;

    /* All NULL: this device leaves copies to the daemon's engines. */

    /* Up to 256 MiB of host memory that copies will come from, page-aligned, whole: no copy
     * straddles two. It stays mapped until unmap_host. */
    int (*map_host)(void *arg, void *base, uint64_t bytes, struct cst_err *err);
    void (*unmap_host)(void *arg, void *base, uint64_t bytes);
    /* Enqueue a copy of @bytes from @src, in what map_host was told of, to @dst in a slab; not in
     * the stream, but in order with other copies. *number: its number, increasing. */
    int (*copy)(void *arg, void *dst, const void *src, uint64_t bytes, uint64_t *number,
                struct cst_err *err);
    /* Enqueue: the stream waits for all copies up to @number. */
    int (*await)(void *arg, uint64_t number, struct cst_err *err);
};

/* Use @calls for @job: after cst_job_open and before cst_commit, once. @calls and @arg are borrowed
 * for the life of the job; all calls are made by the job's thread. CST_EINVAL: the job's device is
 * the host, or the job is committed. Without it, cst_commit on a device whose memory is not the
 * host's fails with CST_EUNSUPPORTED. */
int cst_job_use_device(struct cst_job *job, const struct cst_device_calls *calls, void *arg,
                       struct cst_err *err);

/* The job's device as the daemon names it: "host", "paced:N", whose memory is the host's, or a
 * UUID. Borrowed from the job. */
const char *cst_job_device(const struct cst_job *job);

#ifdef __cplusplus
}
#endif

#endif
