/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps jobs over the death of the daemon: writes the ledger of each job (ledger_file.h), and gives
 * the job's memory to the service manager's store (keeper.h). revive.h reads them again.
 *
 * A job is kept from its first cst_sync on, because earlier its states are not complete, and until
 * it is removed. Of its pools only the slabs are kept that can have results of updates
 * (lent_slabs.h); the others are made again. A job to which the states of a kept
 * job are moved in portions is kept from the first portion on. Loop thread only. */
#ifndef CSTD_LEDGER_H
#define CSTD_LEDGER_H

#include "daemon/base/keeper.h"
#include "daemon/ledger/ledger_file.h"

#include <stdbool.h>

struct cstd_daemon;
struct cstd_job;
struct cstd_kept_job;
struct cstd_ledger_work;

enum cstd_ledger_state {
    CSTD_LEDGER_NONE,    /* The job is not kept yet. */
    CSTD_LEDGER_MADE,    /* The job is not kept yet, and its ledger is made. */
    CSTD_LEDGER_KEPT,    /* The job is kept. */
    CSTD_LEDGER_REFUSED, /* The job cannot be kept. */
};

/* Called on the loop thread: the ledger of @job is made, or the log says why it will not be kept.
 */
typedef void (*cstd_ledger_cb)(struct cstd_job *job);

/* The ledger of one job. Zeroed: NONE. */
struct cstd_ledger {
    enum cstd_ledger_state state;
    struct cstd_ledger_file file;  /* MADE, KEPT */
    struct cstd_ledger_work *work; /* NONE: the ledger is being made; NULL: it is not. */
    cstd_ledger_cb done;           /* NONE: called when it is made. */
    /* What the job, which is in CSTD_JOB_REVIVING, is made from, and the steps that it has made;
     * NULL: nothing. */
    struct cstd_kept_job *reviving;
    uint64_t step;
};

/* @job is committed, apart from its states, and may be kept later: make its ledger in a thread,
 * because it can have hundreds of megabytes. True: @done follows, never within this call; until
 * then job->ledger.work is set, and the job must not be freed. False: there is nothing to make. */
bool cstd_ledger_prepare(struct cstd_job *job, cstd_ledger_cb done);

/* The core of @job has processed an event, or a worker has left: record how far the job is. Must be
 * called before the event's actions are carried out. */
void cstd_ledger_note(struct cstd_job *job);

/* The members of @job, which has ranks on several nodes, have processed an event, or a node has
 * taken the place of another. Must be called before the event's actions are carried out. */
void cstd_ledger_note_members(struct cstd_job *job);

/* Slabs of @job's pools were made. If they cannot be kept, the job is not kept any more, and the
 * log says so. */
void cstd_ledger_note_pools(struct cstd_job *job);

/* Keep @job, which has a core, from now on. CST_EUNSUPPORTED: its base is not kept; CST_EBUDGET:
 * the store is full; CST_ENOMEM. */
int cstd_ledger_begin(struct cstd_job *job, struct cst_err *err);

/* Most descriptors that are stored for @job, which has memory and a core. */
uint32_t cstd_ledger_n_fds(const struct cstd_job *job);

/* @job goes on from @file, and its memory and @file are in the service manager's store. The keeper
 * has room for cstd_ledger_n_fds more (cstd_keeper_reserve). */
void cstd_ledger_continue(struct cstd_job *job, const struct cstd_ledger_file *file);

/* Keep all jobs from now on, although there is no service manager's store, because they are handed
 * over. Jobs that have not begun their first step have no states, and end with this daemon.
 * CST_EBUSY: a job is still being revived. Other statuses: a job cannot be kept. */
int cstd_ledger_keep_all(struct cstd_daemon *daemon, struct cst_err *err);

/* @job is removed: it and its memory are not kept any more. A job in CSTD_JOB_REVIVING leaves them
 * to a later daemon. */
void cstd_ledger_forget(struct cstd_job *job);

/* Hash of the UUID of an accelerator, by which a record names it; 0: @uuid is NULL, for the host.
 */
uint64_t cstd_ledger_hash_uuid(const char *uuid);

/* Hash of all places in the layout of @job, to be compared after the layout was built again. */
uint64_t cstd_ledger_hash(const struct cstd_job *job);

/* True if @job is kept, or will be when its first cst_sync has completed, as far as is known. */
bool cstd_ledger_keeps(const struct cstd_job *job);

/* True if any job is kept. */
bool cstd_ledger_keeps_any(const struct cstd_daemon *daemon);

#endif
