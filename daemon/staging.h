/* SPDX-License-Identifier: Apache-2.0 */
/* A session's staging segment: memory that the session's process shares with the engines, through
 * which tensors are read and written. The segment exists until the last request that uses it has
 * its result, even if the session has ended. Loop thread only. */
#ifndef CST_STAGING_H
#define CST_STAGING_H

#include "daemon/arena.h"
#include "daemon/later.h"

#define CST_STAGING_MIN_BYTES (64u << 10)
#define CST_STAGING_MAX_BYTES (4u << 20)

struct cst_daemon;
struct cst_session;
struct cst_pending;

struct cst_staging {
    struct cst_daemon *daemon;
    struct cst_session *session; /* NULL: the session has ended or has replaced the segment. */
    struct cst_segment *segment;
    struct cst_population population;
    /* References of the session and of the requests that use the segment. */
    uint32_t n_refs;
    bool ready; /* All engines map the segment. */
    /* StagingGet that waits until the engines map the segment; NULL: none. */
    struct cst_pending *request;
    struct cst_later mounted; /* Runs when the engines have answered. */
};

/* Answer request @id, a StagingGet of @session for @bytes: at once if the session has a usable
 * segment, otherwise when the engines map a new one. Errors are answered, too. */
void cst_staging_get(struct cst_session *session, uint64_t id, uint64_t bytes);

/* Return whether @session has a segment that is mapped by all engines that hold states of its job.
 * A segment that was made before the job had its layout may lack some engines. */
bool cst_staging_serves(const struct cst_session *session);

/* Drop the session's reference, because the session ends or replaces the segment. */
void cst_staging_abandon(struct cst_staging *staging);

/* Take or drop a reference of a request. The last reference unmaps the segment from the engines and
 * frees @staging. */
void cst_staging_ref(struct cst_staging *staging);

void cst_staging_unref(struct cst_staging *staging);

#endif
