/* SPDX-License-Identifier: Apache-2.0 */
/* From a frame to the function that serves its type. One row of the table per message; what is
 * wrong with a request is answered here or there, never with silence. */
#ifndef CST_DISPATCH_H
#define CST_DISPATCH_H

#include "daemon/session.h"
#include "proto/frame.h"

#define CST_PROTOCOL_VERSION 1

/* Serve @frame, whose fds are taken over. */
void cst_dispatch(struct cst_session *session, struct cst_frame *frame);

/* Serve request @id whose body is @body. */
typedef void (*cst_serve_fn)(struct cst_session *session, uint64_t id, void *body);

/* Servers, by file. */
void cst_serve_job_open(struct cst_session *session, uint64_t id, void *body); /* serve_job.c */
void cst_serve_declare(struct cst_session *session, uint64_t id, void *body);
void cst_serve_commit(struct cst_session *session, uint64_t id, void *body);
void cst_serve_layout(struct cst_session *session, uint64_t id, void *body);
void cst_serve_pool(struct cst_session *session, uint64_t id, void *body);
void cst_serve_arena(struct cst_session *session, uint64_t id, void *body);
void cst_serve_leave(struct cst_session *session, uint64_t id, void *body);
void cst_serve_job_remove(struct cst_session *session, uint64_t id, void *body);
void cst_serve_trace(struct cst_session *session, uint64_t id, void *body);
void cst_serve_sync(struct cst_session *session, uint64_t id, void *body); /* serve_step.c */
void cst_serve_batch(struct cst_session *session, uint64_t id, void *body);
void cst_serve_step(struct cst_session *session, uint64_t id, void *body);
void cst_serve_prepare_step(struct cst_session *session, uint64_t id, void *body);
void cst_serve_accumulate(struct cst_session *session, uint64_t id, void *body);
void cst_serve_cancel(struct cst_session *session, uint64_t id, void *body);
void cst_serve_staging(struct cst_session *session, uint64_t id, void *body);
void cst_serve_tensor_read(struct cst_session *session, uint64_t id, void *body);
void cst_serve_tensor_write(struct cst_session *session, uint64_t id, void *body);
void cst_serve_stat(struct cst_session *session, uint64_t id, void *body); /* stats.c */
void cst_serve_job_list(struct cst_session *session, uint64_t id, void *body);
void cst_serve_job_info(struct cst_session *session, uint64_t id, void *body);
void cst_serve_explain(struct cst_session *session, uint64_t id, void *body);
void cst_serve_quota(struct cst_session *session, uint64_t id, void *body); /* serve_quota.c */

/* Answer @id with the formatted error. */
void cst_serve_error(struct cst_session *session, uint64_t id, int status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The job that @name names for this session: its own uid's, or, on the manager socket, @uid's if
 * given. CST_ENOTFOUND; CST_EDENIED. */
int cst_serve_find_job(const struct cst_session *session, const char *name, bool has_uid,
                       uint32_t uid, struct cst_job **out, struct cst_err *err);

#endif
