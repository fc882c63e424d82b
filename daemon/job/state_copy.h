/* SPDX-License-Identifier: Apache-2.0 */
/* Copies all states of a job to another job, whose memory and core exist and which has no workers
 * in its core yet. The source is read as a save reads it, so that it stays as it is; the
 * destination is written as from a checkpoint. Both are done by the engines, piece by piece through
 * a staging segment of the daemon. If the destination has the arenas of the source (job->inherits),
 * nothing is copied, and COPYING only lasts until the source's last updates are done. If the states
 * are moved in portions (job->migrate), the pieces are those of one portion after the other.
 *
 *   MOUNTING --engines map the staging--> CUTTING --SAVE--> COPYING --RESTORE--> RESTORING --> done
 *
 *   a slot of the staging:   free --READs--> reading --all done--> full --WRITE--> writing --> free
 *
 * WRITEs are issued in the order of the pieces, because a WRITE of master weights also sets weights
 * and moments. Loop thread only. */
#ifndef CSTD_STATE_COPY_H
#define CSTD_STATE_COPY_H

#include "offload/core/core.h"

struct cstd_job;

#define CSTD_STATE_COPY_SLOTS 8
#define CSTD_STATE_COPY_SLOT_BYTES (1u << 20)
/* Size of the staging segment, which is charged while states are copied. The memory of a job that
 * copies is checked with it (cstd_reshape_staging_bytes). In a move in portions, which has charged
 * it, it is not charged again. */
#define CSTD_STATE_COPY_STAGING ((uint64_t)CSTD_STATE_COPY_SLOTS * CSTD_STATE_COPY_SLOT_BYTES)

/* The copying to @to has ended with @err. */
typedef void (*cstd_state_copy_cb)(struct cstd_job *to, const struct cst_err *err);

/* Copy the states of @from, which is READY and initialised, to @to. NULL: @to takes the place of a
 * lost part of a job on several nodes, and the states are read from the others (span.h);
 * CUTTING waits until these know which step they are of. @done follows later; the caller
 * then calls cstd_state_copy_close. If the predecessor is not whole any more when @done is called
 * with an error (cstd_migrate_is_torn), no command of the copying is in flight. CST_EMISMATCH: the
 * models do not fit (cst_reshard_open); CST_EBUDGET, CST_ENOMEM. */
int cstd_state_copy_open(struct cstd_job *to, struct cstd_job *from, cstd_state_copy_cb done,
                         struct cst_err *err);

/* End the copying to @to, if there is one. @from stays as it is. */
void cstd_state_copy_close(struct cstd_job *to);

/* The source of @to may have no command in flight any more. */
void cstd_state_copy_look(struct cstd_job *to);

/* Bytes that were copied so far. */
uint64_t cstd_state_copy_bytes(const struct cstd_job *to);

/* A reply of the core of @job to a request of this module, whose tags have no serial number
 * (pending.h). Replies to a copying that has ended are ignored. */
void cstd_state_copy_reply(struct cstd_job *job, const struct cst_reply *reply);

#endif
