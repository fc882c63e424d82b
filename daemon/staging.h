/* SPDX-License-Identifier: Apache-2.0 */
/* A session's staging segment: memory that it shares with the engines to read and write tensors
 * through. It stays until the last request that uses it has its result, even if the session is
 * gone. */
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
    struct cst_session *session; /* NULL: abandoned */
    struct cst_segment *segment;
    struct cst_population population;
    uint32_t n_refs;             /* session, requests that use it */
    bool ready;                  /* all engines map it */
    struct cst_pending *request; /* StagingGet that waits for that; NULL */
    struct cst_later mounted;    /* the engines have answered */
};

/* Answer StagingGet @id of @session for @bytes: at once if it has a segment that serves, else when
 * the engines map a new one. An error is answered too. */
void cst_staging_get(struct cst_session *session, uint64_t id, uint64_t bytes);

/* @session has a segment that all engines map which have states of its job. One that was made
 * before the job had its layout may lack some. */
bool cst_staging_serves(const struct cst_session *session);

/* The session goes. */
void cst_staging_abandon(struct cst_staging *staging);

void cst_staging_ref(struct cst_staging *staging);

/* The last one has it unmapped and frees it. */
void cst_staging_unref(struct cst_staging *staging);

#endif
