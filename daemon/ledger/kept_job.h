/* SPDX-License-Identifier: Apache-2.0 */
/* A job that an earlier daemon has left in the service manager's store: its ledger, its description
 * and its memory. Nothing here makes a job of this daemon: see revive_job.h. Loop thread only. */
#ifndef CSTD_KEPT_JOB_H
#define CSTD_KEPT_JOB_H

#include "daemon/ledger/ledger_file.h"
#include "daemon/memory/memory.h"
#include "proto/cistern.pb-c.h"

#include <stdbool.h>

struct cst_err;
struct cst_layout;
struct cstd_daemon;

/* Owned by revive.c. One with zeros and file.fd -1 is empty. */
struct cstd_kept_job {
    Ledger__Job *ledger;
    Cistern__JobDescription *description;
    struct cstd_ledger_file file;
    struct cstd_memory_kept *segments; /* As many as the ledger has. */
    bool settled; /* The job goes on, or was named, together with the one that it replaces. */
};

/* Read the ledger in @fd, which belongs to the empty @kept from now on, also after an error.
 * CST_ELOST, CST_EVERSION: this daemon cannot read it. */
int cstd_kept_job_read(struct cstd_kept_job *kept, int fd, struct cst_err *err);

/* Close what @kept still has. It may be empty. */
void cstd_kept_job_close(struct cstd_kept_job *kept);

/* True if the job's ledger ends in the middle of a move of states to it. After the last portion a
 * job is initialised. */
bool cstd_kept_job_is_moving(const struct cstd_kept_job *kept);

/* Take the memory of the job out of the store, into kept->segments. Segments of the base job have
 * no descriptor of their own; @layout, the job's, tells which these are. CST_ELOST: some of it is
 * not there. CST_ENOMEM. */
int cstd_kept_job_find_segments(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                                const struct cst_layout *layout, struct cst_err *err);

/* Write into the ledger that the undo slots are lost: the jobs of this daemon will use them, and
 * tiles of this job may be in them. */
void cstd_kept_job_undo_lost(struct cstd_kept_job *kept);

#endif
