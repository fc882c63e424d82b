/* SPDX-License-Identifier: Apache-2.0 */
/* A session's staging segment: memory that the session's process shares with the engines, through
 * which tensors are read and written. The segment exists until the last request that uses it has
 * its result, even if the session has ended. Loop thread only. */
#ifndef CST_STAGING_H
#define CST_STAGING_H

#include "daemon/budget/arena.h"
#include "daemon/base/deferred.h"
#include "daemon/session/held.h"

#define CSTD_STAGING_MIN_BYTES (64u << 10)
#define CSTD_STAGING_MAX_BYTES (4u << 20)

struct cstd_daemon;
struct cstd_session;
struct cstd_pending;

struct cstd_staging {
    struct cstd_daemon *daemon;
    struct cstd_session *session; /* NULL: the session has ended or has replaced the segment. */
    struct cstd_segment *segment;
    struct cstd_population population;
    /* References of the session and of the requests that use the segment. */
    uint32_t n_refs;
    bool ready; /* All engines map the segment. */
    /* StagingGet that waits until the engines map the segment; NULL: none. */
    struct cstd_pending *request;
    struct cstd_deferred mounted; /* Runs when the engines have answered. */
};

/* Requests that wait until a segment comes back that was lent for an earlier one (job/upkeep.h). */
struct cstd_staging_queue {
    struct cstd_daemon *daemon;
    struct cstd_held_list held;
    struct cstd_deferred look; /* Serves them again. */
};

void cstd_staging_queue_init(struct cstd_staging_queue *queue, struct cstd_daemon *daemon);

/* A segment has come back: serve the requests that wait, soon. */
void cstd_staging_look(struct cstd_staging_queue *queue);

/* The daemon ends: forget the requests. They end with their sessions. */
void cstd_staging_stop(struct cstd_staging_queue *queue);

/* Answer request @id, a StagingGet of @session for @bytes, with a segment of at least
 * CSTD_STAGING_MIN_BYTES, which is smaller than @bytes if the budgets have no more left: at once if
 * the session has a usable segment, otherwise when the engines map a new one. Errors are answered,
 * too. */
void cstd_staging_get(struct cstd_session *session, uint64_t id, uint64_t bytes);

/* Return whether @session has a segment that is mapped by all engines that hold states of its job.
 * A segment that was made before the job had its layout may lack some engines. */
bool cstd_staging_serves(const struct cstd_session *session);

/* Drop the session's reference, because the session ends or replaces the segment. */
void cstd_staging_abandon(struct cstd_staging *staging);

/* Take or drop a reference of a request. The last reference unmaps the segment from the engines and
 * frees @staging. */
void cstd_staging_ref(struct cstd_staging *staging);

void cstd_staging_unref(struct cstd_staging *staging);

#endif
