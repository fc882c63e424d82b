/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/job_device.h"

#include "client/lib/job.h"

#include <poll.h>
#include <string.h>

/* -- a job's device ------------------------------------------------------------------------- */

/* Return whether the job's pool is in host memory; that of a simulated accelerator is, too. */
static bool is_host(const struct cst_job *job)
{
    return strcmp(job->device_name, "host") == 0 || strncmp(job->device_name, "paced:", 6) == 0;
}

const char *cst_job_device(const struct cst_job *job)
{
    return job->device_name;
}

/* Called during waits for the daemon, when the stream may have passed a fence. */
static void watch(struct cst_client *client)
{
    cstc_device_pump(client->job);
}

int cst_job_use_device(struct cst_job *job, const struct cst_device_calls *calls, void *arg,
                       struct cst_err *err)
{
    int rc = cstc_job_check(job, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (is_host(job)) {
        return cst_err_set(err, CST_EINVAL, "job '%s' is on the host device", job->name);
    }
    if (job->device.calls != NULL) {
        return cst_err_set(err, CST_EINVAL, "job '%s' already has the calls of its device",
                           job->name);
    }
    if (job->commit.phase != CSTC_COMMIT_DECLARE || job->pending.kind != CSTC_PENDING_NONE) {
        return cst_err_set(err, CST_EINVAL,
                           "job '%s' is committed: its device must be given before the commit",
                           job->name);
    }
    rc = cstc_wake_add_device(&job->client->wake, calls->fd, err);
    if (rc == CST_OK) {
        job->device.calls = calls;
        job->device.arg = arg;
        job->client->watched = calls->fd;
        job->client->watch = watch;
    }
    return rc;
}

int cstc_device_check(const struct cst_job *job, struct cst_err *err)
{
    if (is_host(job) || job->device.calls != NULL) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EUNSUPPORTED,
                       "job '%s' is on %s, whose memory the processor cannot read: call "
                       "cst_cuda_open (libcistern-cuda) before the commit",
                       job->name, job->device_name);
}

/* -- memory --------------------------------------------------------------------------------- */

int cstc_device_map(struct cst_job *job, uint32_t i, int fd, uint64_t bytes, struct cst_err *err)
{
    struct cstc_segment *slab = &job->slabs[i];
    int rc = job->device.calls->map(job->device.arg, fd, bytes, &slab->base, err);

    if (rc == CST_OK) {
        slab->bytes = bytes;
    }
    return rc;
}

void cstc_device_unmap(struct cst_job *job)
{
    for (uint32_t i = 0; i < job->commit.n_mapped; i++) {
        job->device.calls->unmap(job->device.arg, job->slabs[i].base, job->slabs[i].bytes);
        job->slabs[i].base = NULL;
    }
    job->commit.n_mapped = 0;
    cstc_load_unmap(job);
}

/* -- the stream ------------------------------------------------------------------------------- */

/* The text does not advise a sync, which cannot help a process whose stream has failed. */
void cstc_device_failed(struct cst_job *job, const struct cst_err *why)
{
    if (job->void_step.status == CST_OK) {
        (void)cst_err_set(&job->void_step, why->status,
                          "job '%s': the step is void, and this process has lost %s: %.256s",
                          job->name, job->device_name, why->text);
    }
}

/* Ask the device which marks the stream has passed. Only this function calls done(), because
 * sequence.passed must have its last result. */
static int ask_done(struct cst_job *job, struct cst_err *err)
{
    uint64_t passed = job->sequence.passed;
    int rc = job->device.calls->done(job->device.arg, &passed, err);

    if (rc == CST_OK) {
        job->sequence.passed = passed;
    }
    return rc;
}

void cstc_device_pump(struct cst_job *job)
{
    struct cst_err why = {0};

    if (ask_done(job, &why) != CST_OK) {
        cstc_device_failed(job, &why);
    }
    /* In a void step nothing is sent: the next sync gives back everything at once. */
    if (job->void_step.status == CST_OK) {
        (void)cst_sequence_pass(&job->sequence, NULL);
    }
}

/* -- ends ----------------------------------------------------------------------------------- */

/* From now on nothing more is copied or exchanged, because the daemon may take the blocks away. */
static int begin_drain(struct cst_job *job, struct cst_err *err)
{
    struct cst_err why;
    int rc;

    (void)cst_err_set(&why, CST_EPEERDIED, "this rank has ended its attempt at the step");
    cstc_job_stop_comms(job, &why);
    job->device.loads.over = true;
    rc = cst_sequence_drain(&job->sequence, err);
    job->device.drained = rc == CST_OK;
    return rc;
}

int cstc_device_drain(struct cst_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    /* Before the commit the worker has no leases, hence no work on blocks. */
    if (job->device.calls == NULL || job->commit.phase != CSTC_COMMIT_DONE) {
        return CST_OK;
    }
    if (!job->device.drained) {
        rc = begin_drain(job, err);
    }
    if (rc == CST_OK) {
        rc = ask_done(job, err);
    }
    if (rc == CST_OK && job->sequence.passed < job->sequence.mark) {
        return CST_EAGAIN;
    }
    job->device.drained = false;
    return rc;
}

int cstc_device_finish(struct cst_job *job, struct cst_err *err)
{
    struct cst_err why = {0};
    int rc;

    job->device.drained = false; /* Work may have been enqueued since a cst_try_sync. */
    while ((rc = cstc_device_drain(job, &why)) == CST_EAGAIN) {
        struct pollfd pfd = {.fd = job->device.calls->fd, .events = POLLIN};

        (void)poll(&pfd, 1, -1);
    }
    if (rc != CST_OK && err != NULL) {
        *err = why;
    }
    return rc;
}
