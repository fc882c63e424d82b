/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for other ranks in memory that they share (proto/shared.h). Every such wait ends: with the
 * condition, with the end of the attempt or of the connection, or after a time limit. While it
 * lasts, blocks that the job's device has done with are given back, because another rank may need
 * them first: as long as there are some, the device is asked at intervals as in cstc_shared_poll.
 * Used by the job's thread only. */
#ifndef CST_SHARED_WAIT_H
#define CST_SHARED_WAIT_H

#include "client/lib/job.h"
#include "proto/shared.h"

/* Wait until @ready returns true for @arg, at most @timeout_ms milliseconds; another rank makes it
 * true, and then calls cst_shared_notify for @head. @n_processes: as in struct cst_shared_wait. The
 * caller has checked cstc_job_check_step, and that no call is pending. CST_EPEERDIED, CST_ESTALE:
 * the step is void; the daemon has given the cause. CST_ETIMEDOUT: the condition was not met; the
 * caller says for what it waited. Other statuses: those that ended the connection, or
 * CST_ENOTFOUND: the job was removed. */
int cstc_shared_wait(struct cst_job *job, struct cst_shared_head *head, uint32_t n_processes,
                     bool (*ready)(void *arg), void *arg, uint32_t timeout_ms, struct cst_err *err);

/* As cstc_shared_wait, for a condition of which nobody can tell that it is met: @ready is called
 * again and again. The interval grows with the time that has been waited. It is an eighth of it,
 * but 1 to 100 ms, so that a long wait costs little and is not much longer than necessary. */
int cstc_shared_poll(struct cst_job *job, struct cst_shared_head *head, bool (*ready)(void *arg),
                     void *arg, uint32_t timeout_ms, struct cst_err *err);

#endif
