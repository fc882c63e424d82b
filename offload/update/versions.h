/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of the weights, for readers: processes that map the weight rows and read them while the
 * job goes on. A version is the weights after a committed step. It is readable from the end of the
 * step's updates until its row is to be written again.
 *
 *   one weight row    step i: commit, row revoked, updates, version i readable
 *   two weight rows   the rows take turns: version i is readable until the first update of step
 *                     i + 2, so that a reader can have it during all of step i + 1
 *
 * A reader can keep a version. A step that would write to a row that is kept waits with its commit,
 * and makes no early updates, until the row is kept no more or the time limit of the job is over.
 *
 * Knows nothing of processes: the driver counts its readers, and learns by actions which rows are
 * readable (CST_ACT_VERSION) and which are not any more (CST_ACT_REVOKE). Called by core.c, commit,
 * overlap, states_write, revival and update_end. */
#ifndef CST_VERSIONS_H
#define CST_VERSIONS_H

#include "offload/base/event.h"
#include "proto/table.h"

struct cst_core;

struct cst_version {
    bool readable;
    uint32_t n_kept; /* Readers that keep it. */
};

struct cst_versions {
    struct cst_version rows[CST_MAX_VERSIONS];
    uint32_t newest;       /* The row with the weights of the last committed step. */
    bool due;              /* They are not known to be readable yet. */
    uint32_t n_incomplete; /* Chunks whose weights of the last committed step are being written. */
    uint64_t held_ns;      /* Time since which the commit waits for readers; 0: it does not. */
    uint64_t wait_ns;      /* Time for which commits have waited for readers. */
};

/* Begin with weights that are not readable yet. */
void cst_versions_open(struct cst_core *core);

/* Handle CST_EV_KEEP and CST_EV_UNKEEP. */
void cst_versions_keep(struct cst_core *core, const struct cst_event *event);
void cst_versions_unkeep(struct cst_core *core, const struct cst_event *event);

/* False: @row has no version, or one that the commit under way overwrites. */
bool cst_versions_may_keep(const struct cst_core *core, uint32_t row);

/* False: a reader keeps the row that the updates of the step under way are to write. */
bool cst_versions_may_begin(const struct cst_core *core);

/* A step closes: its commit has not waited for readers yet. */
void cst_versions_begin_wait(struct cst_core *core);

/* True if the commit, which could be made otherwise, waits for readers. */
bool cst_versions_hold(struct cst_core *core);

/* Updates of the step under way are about to be issued: revoke the row that they write. No effect
 * after the first call in a step. */
void cst_versions_begin(struct cst_core *core);

/* The step is committed and its updates are issued, or the core goes on with a kept job. */
void cst_versions_committed(struct cst_core *core);

/* A command of the update of @chunk is complete. */
void cst_versions_updated(struct cst_core *core, uint32_t chunk);

/* Weights, or master weights, of @chunk are about to be written: revoke what has them, also if a
 * reader keeps it. In a job that has begun, what is written is part of the version of the next
 * step, or of the one that is restored. */
void cst_versions_written(struct cst_core *core, uint32_t chunk);

/* The states of a checkpoint are there, and its step is the last committed one. */
void cst_versions_restored(struct cst_core *core);

/* Say that the weights of the last committed step are readable, if they are. Called after each
 * event. */
void cst_versions_look(struct cst_core *core);

/* The time at which cst_versions_expire would revoke what is kept, in ns; or CST_CORE_NEVER. */
uint64_t cst_versions_deadline(const struct cst_core *core);

/* Revoke a row that is kept although a commit has waited for it as long as it may. */
void cst_versions_expire(struct cst_core *core);

#endif
