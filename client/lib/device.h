/* SPDX-License-Identifier: Apache-2.0 */
/* The device of a job whose memory the processor cannot access (cistern/device.h). The job's slabs
 * lie on the device, and leases are given back only when the device's stream has done the work that
 * uses them; job->sequence decides when. For a job in host memory cstc_device.calls is NULL. Used
 * by the job's thread only. */
#ifndef CST_CLIENT_DEVICE_H
#define CST_CLIENT_DEVICE_H

#include "cistern/device.h"
#include "client/lib/load.h"

struct cstc_device {
    const struct cst_device_calls *calls; /* Borrowed; NULL: the memory is the host's. */
    void *arg;                            /* Argument of calls. */
    struct cstc_loads loads;              /* Copies of weights that this worker makes. */
    bool drained; /* cstc_device_drain has begun and waits for the newest mark. */
};

/* CST_OK if the job has the functions that its device needs, else CST_EUNSUPPORTED. */
int cstc_device_check(const struct cst_job *job, struct cst_err *err);

/* Return whether the worker can copy weights to its device itself. */
static inline bool cstc_device_copies(const struct cstc_device *device)
{
    return device->calls != NULL && device->calls->copy != NULL;
}

/* Record that the device failed because of @why: the step is void. */
void cstc_device_failed(struct cst_job *job, const struct cst_err *why);

/* Map slab @i of the pool. The handle @fd belongs to the caller. On failure the slab is not
 * mapped. */
int cstc_device_map(struct cst_job *job, uint32_t i, int fd, uint64_t bytes, struct cst_err *err);

/* Unmap all slabs and arenas. */
void cstc_device_unmap(struct cst_job *job);

/* Send the items whose fences the stream has passed. A failure makes the step void. Never waits.
 * Only for jobs with calls. */
void cstc_device_pump(struct cst_job *job);

/* Drop all items that wait for fences. CST_OK when the stream has passed all work that was enqueued
 * before the first of these calls; CST_EAGAIN until then; CST_EGPU: the stream has failed. */
int cstc_device_drain(struct cst_job *job, struct cst_err *err);

/* Call cstc_device_drain until it ends, and wait between the calls. */
int cstc_device_finish(struct cst_job *job, struct cst_err *err);

#endif
