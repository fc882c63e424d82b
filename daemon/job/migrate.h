/* SPDX-License-Identifier: Apache-2.0 */
/* Moves the states of a job to its successor (reshape.h) when host memory cannot hold them twice.
 * The successor's arenas have no pages at first. state_copy.c copies the states portion by portion
 * (offload/layout/migration.h), and this module adds pages before a portion and gives pages back
 * after it:
 *
 *   pages of portion 0 -> its copies -> advance -> give back portion 0, pages of portion 1 -> ...
 *                                               |
 *          from here on the job is the new one: the predecessor lacks what portion 0 has moved
 *
 * Record of a move in progress. `n_moved` is the number of portions whose states are in the
 * successor. It is increased, and written to the ledgers, before any page of these portions is
 * given back. Until it is 1 nothing is lost if the move ends: the job is the old one. From then on
 * the move only goes forward, and each of its actions may be repeated: pages of portions below
 * n_moved are given back again, and portion n_moved is copied again as a whole, because the
 * predecessor still has it.
 *
 *   - An engine dies: the next one carries out its commands.
 *   - An engine is given up, or there is no memory for pages: the commit stalls (commit.c). The
 *     next Commit of a rank goes on at portion n_moved.
 *   - The daemon dies: if the predecessor is kept, so is the successor from portion 1 on. The next
 *     daemon takes both over and goes on at portion n_moved (revive.c).
 *   - Either job is removed: both are.
 *
 * Loop thread only. */
#ifndef CSTD_MIGRATE_H
#define CSTD_MIGRATE_H

#include "daemon/job/job.h"
#include "daemon/memory/page_work.h"
#include "offload/layout/migration.h"

/* The pages for the next portion exist, or @err says why not. */
typedef void (*cstd_migrate_cb)(void *arg, const struct cst_err *err);

struct cstd_migrate {
    struct cst_reshard reshard;
    struct cst_migration plan;
    uint32_t n_moved;    /* Portions whose states are in the successor. */
    uint64_t more_bytes; /* Host memory that the move needs in addition to the old arenas. */
    uint64_t charged;    /* Part of more_bytes that is charged to the job's owner, in bytes. */
    struct cstd_page_work *work; /* Pages that are being added and given back; NULL: none. */
    cstd_migrate_cb on_pages;    /* Called with `arg` at the end of the work. */
    void *arg;
};

/* True if the predecessor of @job lacks states that @job has. */
static inline bool cstd_migrate_is_torn(const struct cstd_job *job)
{
    return job->migrate != NULL && job->migrate->n_moved > 0;
}

/* CST_EBUSY: the states of @job are being moved to its successor, and cannot be read. */
int cstd_migrate_check_whole(const struct cstd_job *job, struct cst_err *err);

/* Plan the move of the states of job->predecessor to @job, which has its layout: make job->migrate.
 * CST_EUNSUPPORTED: a job uses an accelerator, whose engine pins host memory. CST_EMISMATCH: see
 * cst_reshard_open. CST_ENOMEM. */
int cstd_migrate_open(struct cstd_job *job, struct cst_err *err);

/* The move ends, or there is none: free job->migrate and give its charge back. */
void cstd_migrate_close(struct cstd_job *job);

/* Charge more_bytes. CST_EBUDGET: a limit would be exceeded. @force: even then, because another
 * daemon has begun the move. */
int cstd_migrate_charge(struct cstd_job *job, bool force, struct cst_err *err);

/* Give back pages of what has moved, and add those for portion n_moved. CST_EAGAIN: @on_pages
 * follows, unless cstd_migrate_stop is called. CST_OK: there is nothing to do. CST_ENOMEM. */
int cstd_migrate_prepare(struct cstd_job *job, cstd_migrate_cb on_pages, void *arg,
                         struct cst_err *err);

/* on_pages is not called any more. */
void cstd_migrate_stop(struct cstd_job *job);

/* All states of portion n_moved are in @job: record that. CST_EBUDGET, CST_ENOMEM: it cannot be
 * recorded; this is so only for portion 0. */
int cstd_migrate_advance(struct cstd_job *job, struct cst_err *err);

#endif
