/* SPDX-License-Identifier: Apache-2.0 */
/* A job whose memory is on a device that the processor cannot touch (cistern/device.h): its slabs
 * are the device's, and what is given back waits for the device's stream. For a job on the host all
 * of this is a pointer that is NULL. */
#ifndef CST_CLIENT_DEVICE_H
#define CST_CLIENT_DEVICE_H

#include "cistern/device.h"
#include "client/fence.h"
#include "client/load.h"

struct cst_device {
    const struct cst_device_calls *calls; /* borrowed; NULL: the host */
    void *arg;                            /* theirs */
    struct cst_fences fences;             /* what waits; valid once the job is committed */
    struct cst_loads loads;               /* copies of weights that this worker makes */
    bool marked;     /* mark is behind all work that a lease has been used for so far */
    uint64_t passed; /* as done() said last */
    uint64_t mark;   /* the newest fence */
    bool drained;    /* a sync has begun: it waits for mark */
};

/* CST_OK if the job has the calls that its device takes. CST_EUNSUPPORTED: it lacks them. */
int cst_device_check(const struct cst_job *job, struct cst_err *err);

/* The device takes copies of weights from this worker. */
static inline bool cst_device_copies(const struct cst_device *device)
{
    return device->calls != NULL && device->calls->copy != NULL;
}

/* The device failed, because of @why: the step is void, and no cst_sync helps. */
void cst_device_failed(struct cst_job *job, const struct cst_err *why);

/* Map slab @i of the pool, whose handle is @fd; on failure it is not mapped. */
int cst_device_map(struct cst_job *job, uint32_t i, int fd, uint64_t bytes, struct cst_err *err);

/* Unmap all slabs and arenas. */
void cst_device_unmap(struct cst_job *job);

/* @bytes at @at := 0, in the order of the stream. If it fails what job->leases has planned is given
 * up: the step is void. */
int cst_device_zero(struct cst_job *job, void *at, uint64_t bytes, struct cst_err *err);

/* An operator was begun: more work may come. */
static inline void cst_device_begun(struct cst_device *device)
{
    device->marked = false;
}

/* Send what job->leases has planned, as cst_batch_send does; on a device what is given back waits
 * for a fence behind all work enqueued so far. CST_EGPU: the stream failed; the step is void. */
int cst_device_send(struct cst_job *job, bool awaited, struct cst_err *err);

/* Send what the stream has passed. Never waits. What goes wrong makes the step void. */
void cst_device_pump(struct cst_job *job);

/* CST_OK: nothing waits; CST_EAGAIN: something does. */
int cst_device_settled(const struct cst_job *job);

/* What waits is dropped; CST_OK when the stream has passed all work enqueued before the first of
 * these calls, CST_EAGAIN until then. CST_EGPU: it failed. */
int cst_device_drain(struct cst_job *job, struct cst_err *err);

/* The same, waited for. */
int cst_device_finish(struct cst_job *job, struct cst_err *err);

#endif
