/* SPDX-License-Identifier: Apache-2.0 */
/* A job that an earlier daemon has left in the service manager's store: its ledger, its description
 * and its memory, and what is charged for it until it is a job of this daemon (revive_job.h). Loop
 * thread only, except where a function says otherwise. */
#ifndef CSTD_KEPT_JOB_H
#define CSTD_KEPT_JOB_H

#include "daemon/ledger/ledger_file.h"
#include "daemon/memory/memory.h"
#include "offload/layout/layout.h"
#include "proto/cistern.pb-c.h"
#include "proto/job_name.h"

#include <stdbool.h>

struct cst_err;
struct cst_layout;
struct cstd_daemon;
struct cstd_job;
struct cstd_quota_account;

/* How far the revival of a job is. */
enum cstd_kept_stage {
    CSTD_KEPT_WAITS,    /* It has not begun. */
    CSTD_KEPT_BUILDING, /* A thread builds the model and the layout. */
    CSTD_KEPT_BUILT,    /* Both are built. */
    CSTD_KEPT_MOUNTING, /* The engines map the memory. */
    CSTD_KEPT_SETTLED,  /* The job goes on, or is lost to this daemon. */
};

/* Bytes of memory on an accelerator that are charged. */
struct cstd_kept_charge {
    struct cstd_budget *pool;
    uint64_t bytes;
};

/* Owned by revive.c. One with zeros and file.fd -1 is empty. */
struct cstd_kept_job {
    Ledger__Job *ledger;          /* Without the description. */
    struct cstd_ledger_text text; /* The packed description; in the file. */
    char name[CST_JOB_NAME_BYTES];
    char base[CST_JOB_NAME_BYTES]; /* Name of the base job; "": none. */
    uint32_t world;
    /* The description without tensors, operators, groups and edges; NULL before it was read. */
    Cistern__JobDescription *description;
    struct cstd_ledger_file file;
    struct cstd_memory_kept *segments; /* As many as the ledger has; NULL: not taken yet. */
    enum cstd_kept_stage stage;
    /* The job with which the states of this one are, or to which they were being moved; NULL: none.
     * Both are revived together. */
    struct cstd_kept_job *heir;
    bool is_heir;         /* Another one has this one as its heir. */
    bool waited;          /* A request waits for the job, or for one that has it as its base. */
    struct cstd_job *job; /* The job of this daemon; NULL: there is none, or it was removed. */
    /* BUILDING, BUILT: a job that nobody else knows, which gets the model and the layout. */
    struct cstd_job *draft;
    struct cst_layout_config config; /* BUILDING: for the layout. */
    struct cst_err err;              /* Why the job cannot go on; status 0: nothing is known. */
    /* The owner, a reference; NULL: nothing is charged. */
    struct cstd_quota_account *account;
    uint64_t host_bytes; /* Charged host memory: segments and the ledger. */
    struct cstd_kept_charge charges[CST_CORE_MAX_UPDATE_DEVICES];
    uint32_t n_charges;
};

/* Read the ledger in @fd, which belongs to the empty @kept from now on, also after an error. Only a
 * small part of a large ledger is read. CST_ELOST, CST_EVERSION: this daemon cannot read it. */
int cstd_kept_job_open(struct cstd_kept_job *kept, int fd, struct cst_err *err);

/* Close what @kept still has, and give its charges back. It may be empty. */
void cstd_kept_job_close(struct cstd_kept_job *kept);

/* True if the job's ledger ends in the middle of a move of states to it. After the last portion a
 * job is initialised. */
bool cstd_kept_job_is_moving(const struct cstd_kept_job *kept);

/* Charge the host memory of @kept to @account, the owner's, of which a reference is taken, even
 * beyond all limits. */
void cstd_kept_job_charge(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                          struct cstd_quota_account *account);

/* Charge its memory on the accelerators, too, which are known now. */
void cstd_kept_job_charge_devices(struct cstd_daemon *daemon, struct cstd_kept_job *kept);

/* Give all charges back, because the job has its memory now. */
void cstd_kept_job_discharge(struct cstd_daemon *daemon, struct cstd_kept_job *kept);

/* Check that the memory of the job is in the store; @layout is the job's. Segments of the base job
 * have no descriptor of their own. CST_ELOST: some of it is not there. */
int cstd_kept_job_check_segments(struct cstd_daemon *daemon, const struct cstd_kept_job *kept,
                                 const struct cst_layout *layout, struct cst_err *err);

/* Take the memory of the job out of the store, into kept->segments. CST_ELOST: some of it is not
 * there. CST_ENOMEM. */
int cstd_kept_job_take_segments(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                                const struct cst_layout *layout, struct cst_err *err);

/* Write into the ledger that the undo slots are lost: the jobs of this daemon will use them, and
 * tiles of this job may be in them. */
void cstd_kept_job_undo_lost(struct cstd_kept_job *kept);

#endif
