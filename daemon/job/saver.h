/* SPDX-License-Identifier: Apache-2.0 */
/* Which connection saves which job. A job is saved by one connection at a time, which need not be
 * one of its workers. Loop thread only. */
#ifndef CSTD_SAVER_H
#define CSTD_SAVER_H

#include <stdbool.h>

struct cstd_daemon;
struct cstd_job;
struct cstd_pending;
struct cstd_session;
struct cst_reply;

/* The save of @request has begun: answer with the description of its job, as soon as there is one.
 */
void cstd_saver_begun(struct cstd_pending *request);

/* The save of @request has begun, or was refused: answer with the job's description. A Save of what
 * is recorded waits until the last step is (cstd_durable_look). */
void cstd_saver_answer(struct cstd_daemon *daemon, struct cstd_pending *request,
                       const struct cst_reply *reply);

/* The states and counters of @job are those of a checkpoint: forget what it had done before.
 * @whole: all of them are, and the checkpoint is one of the job's. */
void cstd_saver_restored(struct cstd_job *job, bool whole);

/* @session no longer saves a job, and its job is not saved any more. Tells the core nothing. */
void cstd_saver_detach(struct cstd_session *session);

/* @session ends: end its save, if it has one. */
void cstd_saver_gone(struct cstd_session *session);

#endif
