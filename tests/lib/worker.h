/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a job of job_rig.h's daemon that uses the client library. Several ranks are processes
 * of a test (child.h). On an error these functions fail the test, or the child that calls them. */
#ifndef WORKER_H
#define WORKER_H

#include "cistern/cistern.h"

#include <stdint.h>

struct worker {
    struct cst_client *client;
    struct cst_job *job;
    uint64_t step; /* number of committed steps, as the last sync has told it */
    struct cst_err err;
};

/* Number of the last point that children have reached, which the test shares with them. Valid from
 * worker_setup to worker_teardown. */
extern _Atomic uint32_t *reached;

/* Fixture: job_rig_setup, and job_rig_teardown after the removal of all jobs. */
void worker_setup(void);
void worker_teardown(void);

/* Check that @rc, which a call with &w->err has returned, is CST_OK. */
void worker_must(const struct worker *w, int rc);

/* Connect, and open the job of @spec. */
void worker_open(struct worker *w, const struct cst_job_spec *spec);

/* Leave the job, and disconnect. */
void worker_leave(struct worker *w);

/* Wait until *@count, which children increase, is @least or more. */
void worker_await(const _Atomic uint32_t *count, uint32_t least);

#endif
