/* SPDX-License-Identifier: Apache-2.0 */
/* A job's device whose memory the processor cannot access. cistern/device.h explains the device's
 * functions, its stream, and the marks that are put into the stream. The job's slabs lie on the
 * device, and a lease is given back only when the stream has done the work that uses the block;
 * job->sequence keeps the release or hand-in until then. For a job in host memory
 * cstc_device.calls is NULL.
 *
 * A struct cstc_device is part of its struct cst_job. Only libcistern calls these functions, in the
 * job's thread: the one that uses the job at that time. */
#ifndef CST_CLIENT_DEVICE_H
#define CST_CLIENT_DEVICE_H

#include "cistern/device.h"
#include "client/lib/load.h"

struct cstc_device {
    /* Functions of the device, borrowed from the caller of cst_job_use_device. NULL: the pool is in
     * host memory. */
    const struct cst_device_calls *calls;
    void *arg;               /* First argument of these functions; borrowed. */
    struct cstc_loads loads; /* Copies of weights that this worker makes. */
    bool drained; /* cstc_device_drain has put its mark into the stream and waits for it. */
};

/* CST_OK if the job's pool is in host memory or cst_job_use_device was called; otherwise
 * CST_EUNSUPPORTED. */
int cstc_device_check(const struct cst_job *job, struct cst_err *err);

/* Return whether the worker can copy weights to its device itself. */
static inline bool cstc_device_copies(const struct cstc_device *device)
{
    return device->calls != NULL && device->calls->copy != NULL;
}

/* The device has failed, and @why is the cause: make the step void, unless it is void already. */
void cstc_device_failed(struct cst_job *job, const struct cst_err *why);

/* Map slab @i of the pool, which has the length @bytes and the handle @fd. The caller closes @fd.
 * On failure the slab is not mapped. */
int cstc_device_map(struct cst_job *job, uint32_t i, int fd, uint64_t bytes, struct cst_err *err);

/* Unmap all slabs of the pool and all arenas. Only for jobs whose `calls` are set. */
void cstc_device_unmap(struct cst_job *job);

/* Send to the daemon the releases and hand-ins that waited for marks which the stream has passed. A
 * failure makes the step void. Never waits. Only for jobs whose `calls` are set. */
void cstc_device_pump(struct cst_job *job);

/* The first call drops the releases and hand-ins that wait for marks, because the daemon will take
 * the blocks away, and puts a last mark into the stream. CST_EAGAIN: the stream has not passed this
 * mark, and the caller calls again later. CST_OK: it has, hence no work uses the blocks any more;
 * or the job has no device or is not committed. CST_EGPU: the stream has failed. */
int cstc_device_drain(struct cst_job *job, struct cst_err *err);

/* Drain as cstc_device_drain does, with a new last mark, and wait for this mark. */
int cstc_device_finish(struct cst_job *job, struct cst_err *err);

#endif
