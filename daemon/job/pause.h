/* SPDX-License-Identifier: Apache-2.0 */
/* Pauses of jobs. The core holds the job when no step is under way (offload/core/pause.h). If the
 * pools are to be released, the memory of their slabs is given back then (pool_pages.h), and taken
 * again at the resume. Meanwhile Commits of workers that join wait.
 *
 * A pause lasts until it is ended by a resume, whether or not the job has workers. It is kept in
 * the job's ledger from the time at which the job is paused. The time to live of a job without
 * workers runs as ever: otherwise a pause would prolong it beyond the limits of the user.
 *
 * Jobs on several nodes cannot be paused: the nodes would wait for each other with their deadlines.
 * Loop thread only. */
#ifndef CSTD_PAUSE_H
#define CSTD_PAUSE_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>

struct cstd_job;
struct cstd_pending;

/* The pause of a job. Zeroed: there is none. */
struct cstd_pause {
    bool wanted;         /* The job is paused, or will be when no step is under way. */
    bool release;        /* The pools are released meanwhile. */
    bool ends;           /* A resume waits for the pools. */
    uint32_t since_s;    /* When the job was paused, in seconds since 1970; 0: it was not. */
    uint64_t asked_ns;   /* Monotonic time of the request. */
    uint64_t held_ns;    /* When no step was under way any more; 0: one still is. */
    uint64_t paused_ns;  /* When all updates were over; 0: they are not. */
    uint64_t release_ns; /* From when on the pools could be released. */
    uint64_t given_ns;   /* When their memory was back in the budgets; 0: it is not. */
    uint64_t bytes;      /* How much that was. */
    uint64_t resume_ns;  /* `ends`: when the resume was asked for. */
};

/* CST_OK: @job can be paused, also with its pools released if @release. CST_EINVAL: it is not
 * committed; or why it has failed. CST_EBUSY: it is being reshaped or resumed. CST_EUNSUPPORTED: it
 * is on several nodes, or its pools cannot be released. */
int cstd_pause_check(const struct cstd_job *job, bool release, struct cst_err *err);

/* Pause @job, which cstd_pause_check has admitted, for @request, which is answered when it is
 * paused. NULL: an earlier daemon had paused it at @since_s, seconds since 1970. */
void cstd_pause_begin(struct cstd_job *job, bool release, struct cstd_pending *request,
                      uint32_t since_s);

/* End the pause of @job for @request, which is answered when the job goes on. Fails the request if
 * the job is not paused, is being resumed already, or its pools cannot be made again. */
void cstd_pause_end(struct cstd_job *job, struct cstd_pending *request);

/* Go on with what a pause waits for. Called after each event of the core. */
void cstd_pause_look(struct cstd_job *job);

/* The pools of @job, which were parked, exist again, or *err says why not. */
void cstd_pause_pools_made(struct cstd_job *job, const struct cst_err *err);

#endif
