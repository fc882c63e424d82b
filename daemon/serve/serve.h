/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that serve requests, one per message type, and what they share. route.c calls
 * them. Loop thread only. */
#ifndef CSTD_SERVE_H
#define CSTD_SERVE_H

#include "daemon/session/session.h"

struct cstd_job;

/* Serve request @id with the decoded @body. */
typedef void (*cstd_serve_fn)(struct cstd_session *session, uint64_t id, void *body);

/* serve_job.c: a job as a whole. */
void cstd_serve_job_open(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_declare(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_layout(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_pool(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_arena(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_edge(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_commit(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_edge_refuse(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_job_files(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_leave(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_standby(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_job_remove(struct cstd_session *session, uint64_t id, void *body);

/* serve_pause.c: a job is paused, and goes on. */
void cstd_serve_pause(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_resume(struct cstd_session *session, uint64_t id, void *body);

/* serve_step.c: steps, and reading and writing of tensors. */
void cstd_serve_sync(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_batch(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_step(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_prepare_step(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_accumulate(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_next(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_cancel(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_staging(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_tensor_read(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_tensor_write(struct cstd_session *session, uint64_t id, void *body);

/* serve_save.c: checkpoints. */
void cstd_serve_save(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_save_end(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_saved(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_restore(struct cstd_session *session, uint64_t id, void *body);

/* serve_reader.c: readers of weights. */
void cstd_serve_reader_open(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_reader_arena(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_reader_next(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_reader_check(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_reader_release(struct cstd_session *session, uint64_t id, void *body);

/* serve_handover.c: another daemon takes over, or the daemon is to end. */
void cstd_serve_handover(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_handover_end(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_drain(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_bar(struct cstd_session *session, uint64_t id, void *body);

/* serve_node.c: links to other nodes. */
void cstd_serve_node_list(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_node_add(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_node_drop(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_node_drain(struct cstd_session *session, uint64_t id, void *body);

/* job_info.c: descriptions of jobs. */
void cstd_serve_job_list(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_job_info(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_explain(struct cstd_session *session, uint64_t id, void *body);

/* serve_tensors.c, serve_trace.c, stats.c, serve_quota.c. */
void cstd_serve_tensors(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_trace(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_history(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_stat(struct cstd_session *session, uint64_t id, void *body);
void cstd_serve_quota(struct cstd_session *session, uint64_t id, void *body);

/* Answer request @id with the formatted error. */
void cstd_serve_error(struct cstd_session *session, uint64_t id, int status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* If @job, which may be NULL, is in CSTD_JOB_REVIVING, let request @id of @type wait until it is
 * not, and return true. @serve is then called with @message again. */
bool cstd_serve_wait(struct cstd_job *job, struct cstd_session *session, uint64_t id, uint16_t type,
                     const ProtobufCMessage *message, cstd_serve_fn serve);

/* Find the job that @name means in this session: a job of the session's user or, on the manager
 * socket, of user @uid if @has_uid. Without @has_uid the manager socket finds jobs of all users.
 * CST_ENOTFOUND: there is no such job; CST_EDENIED: @uid is another user and this is not the
 * manager socket; CST_EINVAL: several users have a job of this name. */
int cstd_serve_find_job(const struct cstd_session *session, const char *name, bool has_uid,
                        uint32_t uid, struct cstd_job **out, struct cst_err *err);

#endif
