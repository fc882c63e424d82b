/* SPDX-License-Identifier: Apache-2.0 */
/* What a job needs in addition to its arenas and pools as long as it has memory: the daemon's own
 * tables of it, one description (describe.h), its ledger, the buffer of its records (records.h),
 * and the smallest staging segments through which each rank writes its states and one connection
 * saves them. All of it is charged when the job is admitted. Hence a job can always be saved,
 * written and kept, whatever other jobs take later. Loop thread only. */
#ifndef CSTD_UPKEEP_H
#define CSTD_UPKEEP_H

#include "daemon/base/record.h"
#include "daemon/budget/arena.h"

struct cstd_daemon;
struct cstd_job;
struct cstd_session;

/* What is charged for one job. Zeroed: nothing. */
struct cstd_upkeep {
    uint64_t bytes;     /* Charged to the budget of host memory; without the staging segments. */
    uint32_t n_staging; /* Staging segments that are charged and not lent. */
    uint32_t most;      /* Staging segments that the job is to have. */
    unsigned n_files;   /* Charged open files; without those of the staging segments. */
    /* Lent segments that nobody uses any more, which come back when the engines have unmapped
     * them. */
    uint32_t n_returning;
};

/* Bytes of host memory, and open files, that @job needs. It has a layout, and its pools have sizes.
 */
uint64_t cstd_upkeep_bytes(const struct cstd_job *job);
unsigned cstd_upkeep_files(const struct cstd_job *job);

/* What the size of the record of @job, which has a layout, depends on. */
struct cstd_record_job cstd_upkeep_record(const struct cstd_job *job);

/* Upper bound for the bytes of the description of @job. */
uint64_t cstd_upkeep_description(const struct cstd_job *job);

/* Upper bound for the bytes of the description in the files of @job, which has a layout: that of
 * the job, and where its rows are (proto/durable.h). 0: the job is not durable. */
uint64_t cstd_upkeep_durable_description(const struct cstd_job *job);

/* Charge them. @force: even beyond the limits, because the job exists. CST_EBUDGET: a limit is
 * exceeded, and nothing is charged. */
int cstd_upkeep_open(struct cstd_job *job, bool force, struct cst_err *err);

/* Give everything back that is not lent. Does nothing if nothing is charged. */
void cstd_upkeep_close(struct cstd_job *job);

/* Open a staging segment of CSTD_STAGING_MIN_BYTES for @session from what was charged for the job
 * that it works on, or saves. When the segment is gone, it is charged for that job again.
 * CST_EBUDGET: the session has no such job, or all of the job's segments are in use; @err is then
 * as it was. */
int cstd_upkeep_lend(struct cstd_session *session, struct cstd_segment **out, struct cst_err *err);

/* @segment, which may be one that was lent, is about to be unmapped by the engines. */
void cstd_upkeep_return(struct cstd_segment *segment);

/* True if a segment that was lent of the job that @session works on, or saves, comes back soon.
 * cstd_staging_look is called when it has come. */
bool cstd_upkeep_awaits(const struct cstd_session *session);

#endif
