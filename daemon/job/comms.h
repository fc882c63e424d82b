/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators of a job (cistern/comm.h): memory in which the ranks of a group call
 * collectives. The daemon makes the memory when all ranks have asked, charges it like arenas, and
 * hands it out. It maps the head, to wake all ranks when the attempt is over, and touches no data.
 *
 *   GATHERING --all ranks have asked--> BACKING --pages exist--> OPEN --all have closed it--> freed
 *       |   |                            ^     |
 *       |   +--ALLOCATING slots on GPUs--+     |
 *       |           |                          |
 *       +-----------+--attempt over, error-----+--> freed
 *
 * A rank that is gone counts as one that has closed it. If a rank cannot use the transport, all
 * ranks close the communicator and ask for a new one, in which this rank offers less
 * (proto/comm_memory.h). Loop thread only. */
#ifndef CSTD_COMMS_H
#define CSTD_COMMS_H

#include "cistern/status.h"

#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

struct cstd_comm;
struct cstd_job;
struct cstd_session;

TAILQ_HEAD(cstd_comm_list, cstd_comm);

/* Embedded in a job. */
struct cstd_comms {
    struct cstd_comm_list list;
    uint64_t last_id;    /* Number of the newest communicator. */
    uv_timer_t deadline; /* Runs while ranks wait for others that have not asked. */
};

/* Serve the requests CommOpen and CommClose, @body, of number @id. */
void cstd_comms_serve_open(struct cstd_session *session, uint64_t id, void *body);
void cstd_comms_serve_close(struct cstd_session *session, uint64_t id, void *body);

/* Initialise the part of @job. The job closes the timer. */
void cstd_comms_init(struct cstd_job *job);

/* The core of @job has moved on: end the communicators of an attempt that is over, and free those
 * that no rank uses any more. */
void cstd_comms_look(struct cstd_job *job);

/* Write at least two lines for each open communicator of @job: its ranks, how they exchange data,
 * and why. At most @max lines. Returns their number. */
unsigned cstd_comms_explain(const struct cstd_job *job, char lines[][192], unsigned max);

/* @job is being removed: wake the ranks that wait in communicators, and free all of them. */
void cstd_comms_close(struct cstd_job *job);

#endif
