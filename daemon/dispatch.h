/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch of request frames to the functions that serve them, by a table with one row per message
 * type. Every invalid request gets an error reply. */
#ifndef CST_DISPATCH_H
#define CST_DISPATCH_H

#include "daemon/session.h"
#include "proto/frame.h"

/* The version of the protocol that this daemon speaks. */
#define CST_PROTOCOL_VERSION 1

/* Serve @frame. Its descriptors are taken over. */
void cst_dispatch(struct cst_session *session, struct cst_frame *frame);

/* Serve request @id with the decoded @body. */
typedef void (*cst_serve_fn)(struct cst_session *session, uint64_t id, void *body);

/* Functions that serve requests. A trailing comment names the source file of its function and of
 * those that follow. */
void cst_serve_job_open(struct cst_session *session, uint64_t id, void *body); /* In serve_job.c. */
void cst_serve_declare(struct cst_session *session, uint64_t id, void *body);
void cst_serve_commit(struct cst_session *session, uint64_t id, void *body);
void cst_serve_layout(struct cst_session *session, uint64_t id, void *body);
void cst_serve_pool(struct cst_session *session, uint64_t id, void *body);
void cst_serve_arena(struct cst_session *session, uint64_t id, void *body);
void cst_serve_leave(struct cst_session *session, uint64_t id, void *body);
void cst_serve_job_remove(struct cst_session *session, uint64_t id, void *body);
/* In serve_trace.c. */
void cst_serve_trace(struct cst_session *session, uint64_t id, void *body);
void cst_serve_sync(struct cst_session *session, uint64_t id, void *body); /* In serve_step.c. */
void cst_serve_batch(struct cst_session *session, uint64_t id, void *body);
void cst_serve_step(struct cst_session *session, uint64_t id, void *body);
void cst_serve_prepare_step(struct cst_session *session, uint64_t id, void *body);
void cst_serve_accumulate(struct cst_session *session, uint64_t id, void *body);
void cst_serve_cancel(struct cst_session *session, uint64_t id, void *body);
void cst_serve_staging(struct cst_session *session, uint64_t id, void *body);
void cst_serve_tensor_read(struct cst_session *session, uint64_t id, void *body);
void cst_serve_tensor_write(struct cst_session *session, uint64_t id, void *body);
void cst_serve_stat(struct cst_session *session, uint64_t id, void *body); /* In stats.c. */
/* In job_info.c. */
void cst_serve_job_list(struct cst_session *session, uint64_t id, void *body);
void cst_serve_job_info(struct cst_session *session, uint64_t id, void *body);
void cst_serve_explain(struct cst_session *session, uint64_t id, void *body);
void cst_serve_quota(struct cst_session *session, uint64_t id, void *body); /* In serve_quota.c. */

/* Answer request @id with the formatted error. */
void cst_serve_error(struct cst_session *session, uint64_t id, int status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Find the job that @name means in this session: a job of the session's user or, on the manager
 * socket, of user @uid if @has_uid. Without @has_uid the manager socket finds jobs of all users.
 * CST_ENOTFOUND: there is no such job; CST_EDENIED: @uid is another user and this is not the
 * manager socket; CST_EINVAL: several users have a job of this name. */
int cst_serve_find_job(const struct cst_session *session, const char *name, bool has_uid,
                       uint32_t uid, struct cst_job **out, struct cst_err *err);

#endif
