/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#include "daemon/serve/route.h"

#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/serve/serve.h"
#include "daemon/job/comms.h"
#include "proto/cistern.pb-c.h"
#include "daemon/session/pending.h"
#include "daemon/session/unpack.h"
#include "daemon/settings/settings.h"

#include <string.h>

/* -- greeting ------------------------------------------------------------------------------- */

static void serve_hello(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__Hello *hello = body;
    struct cstd_daemon *daemon = session->daemon;
    Cistern__Welcome welcome = CISTERN__WELCOME__INIT;

    if (hello->min_version > CSTD_PROTOCOL_VERSION || hello->max_version < CSTD_PROTOCOL_VERSION) {
        cstd_serve_error(session, id, CST_EVERSION,
                         "the client speaks protocol %u to %u, this daemon (%s) speaks %d",
                         hello->min_version, hello->max_version, PACKAGE_VERSION,
                         CSTD_PROTOCOL_VERSION);
        /* A client of another version cannot understand any other reply. */
        session->last_words = true;
        return;
    }
    if (session->state != CSTD_SESSION_NEW) {
        cstd_serve_error(session, id, CST_EPROTO, "a second Hello");
        return;
    }
    cstd_session_greeted(session);
    cstd_log(CSTD_LOG_DEBUG, "pid %d: %.64s", (int)session->peer.pid,
             hello->build != NULL ? hello->build : "client");
    welcome.version = CSTD_PROTOCOL_VERSION;
    welcome.epoch = daemon->epoch;
    welcome.credits = daemon->config->credits;
    welcome.max_batch = CSTD_PENDING_MAX_ITEMS;
    welcome.build = (char *)(uintptr_t) "cisternd " PACKAGE_VERSION;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_WELCOME, &welcome.base, NULL, 0);
}

static void serve_ping(struct cstd_session *session, uint64_t id, void *body)
{
    (void)body;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_PONG, NULL, NULL, 0);
}

/* -- table of message types ----------------------------------------------------------------- */

/* JOB: the session must be attached to a job that still exists. JOB_AND_FDS: as JOB, and the
 * request can have descriptors, which serve takes or closes; no other request has any. */
enum needs { NOTHING, JOB, JOB_AND_FDS };

struct row {
    /* Serves the request; NULL: there is no request of this type. */
    cstd_serve_fn serve;
    /* Type of the body, decoded before serve is called. NULL: the body is empty, or serve decodes
     * it. */
    const ProtobufCMessageDescriptor *type;
    enum needs needs;
};

static const struct row rows[] = {
    [CISTERN__MSG_TYPE__MSG_HELLO] = {serve_hello, &cistern__hello__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_PING] = {serve_ping, NULL, NOTHING},
    [CISTERN__MSG_TYPE__MSG_JOB_OPEN] = {cstd_serve_job_open, &cistern__job_open__descriptor,
                                         NOTHING},
    [CISTERN__MSG_TYPE__MSG_JOB_FILES] = {cstd_serve_job_files, NULL, JOB_AND_FDS},
    [CISTERN__MSG_TYPE__MSG_DECLARE] = {cstd_serve_declare, &cistern__declare__descriptor, JOB},
    [CISTERN__MSG_TYPE__MSG_COMMIT] = {cstd_serve_commit, &cistern__commit__descriptor, JOB},
    [CISTERN__MSG_TYPE__MSG_LAYOUT] = {cstd_serve_layout, &cistern__layout_get__descriptor, JOB},
    [CISTERN__MSG_TYPE__MSG_POOL] = {cstd_serve_pool, &cistern__pool_get__descriptor, JOB},
    [CISTERN__MSG_TYPE__MSG_ARENA] = {cstd_serve_arena, &cistern__arena_get__descriptor, JOB},
    [CISTERN__MSG_TYPE__MSG_EDGE] = {cstd_serve_edge, &cistern__edge_get__descriptor, JOB},
    [CISTERN__MSG_TYPE__MSG_EDGE_REFUSE] = {cstd_serve_edge_refuse,
                                            &cistern__edge_refuse__descriptor, JOB},
    [CISTERN__MSG_TYPE__MSG_SYNC] = {cstd_serve_sync, NULL, JOB},
    [CISTERN__MSG_TYPE__MSG_BATCH] = {cstd_serve_batch, NULL, JOB},
    [CISTERN__MSG_TYPE__MSG_STEP] = {cstd_serve_step, &cistern__step__descriptor, JOB},
    [CISTERN__MSG_TYPE__MSG_PREPARE_STEP] = {cstd_serve_prepare_step,
                                             &cistern__prepare_step__descriptor, JOB},
    [CISTERN__MSG_TYPE__MSG_ACCUMULATE] = {cstd_serve_accumulate, &cistern__accumulate__descriptor,
                                           JOB},
    [CISTERN__MSG_TYPE__MSG_NEXT] = {cstd_serve_next, &cistern__next__descriptor, JOB},
    [CISTERN__MSG_TYPE__MSG_CANCEL] = {cstd_serve_cancel, &cistern__cancel__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_LEAVE] = {cstd_serve_leave, NULL, JOB},
    [CISTERN__MSG_TYPE__MSG_STAGING] = {cstd_serve_staging, &cistern__staging_get__descriptor,
                                        NOTHING},
    [CISTERN__MSG_TYPE__MSG_TENSOR_READ] = {cstd_serve_tensor_read, &cistern__tensor_io__descriptor,
                                            NOTHING},
    [CISTERN__MSG_TYPE__MSG_TENSOR_WRITE] = {cstd_serve_tensor_write,
                                             &cistern__tensor_io__descriptor, JOB},
    [CISTERN__MSG_TYPE__MSG_SAVE] = {cstd_serve_save, &cistern__job_name__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_SAVE_END] = {cstd_serve_save_end, NULL, NOTHING},
    [CISTERN__MSG_TYPE__MSG_SAVED] = {cstd_serve_saved, &cistern__saved__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_RESTORE] = {cstd_serve_restore, &cistern__restore__descriptor, JOB},
    [CISTERN__MSG_TYPE__MSG_READER_OPEN] = {cstd_serve_reader_open, &cistern__job_name__descriptor,
                                            NOTHING},
    [CISTERN__MSG_TYPE__MSG_READER_ARENA] = {cstd_serve_reader_arena,
                                             &cistern__arena_get__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_READER_NEXT] = {cstd_serve_reader_next,
                                            &cistern__reader_next__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_READER_CHECK] = {cstd_serve_reader_check,
                                             &cistern__reader_hold__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_READER_RELEASE] = {cstd_serve_reader_release,
                                               &cistern__reader_hold__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_COMM_OPEN] = {cstd_comms_serve_open, &cistern__comm_open__descriptor,
                                          JOB},
    [CISTERN__MSG_TYPE__MSG_COMM_CLOSE] = {cstd_comms_serve_close, &cistern__comm_close__descriptor,
                                           JOB},
    [CISTERN__MSG_TYPE__MSG_HANDOVER] = {cstd_serve_handover, &cistern__handover_get__descriptor,
                                         NOTHING},
    [CISTERN__MSG_TYPE__MSG_HANDOVER_END] = {cstd_serve_handover_end,
                                             &cistern__handover_end__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_DRAIN] = {cstd_serve_drain, NULL, NOTHING},
    [CISTERN__MSG_TYPE__MSG_BAR] = {cstd_serve_bar, NULL, NOTHING},
    [CISTERN__MSG_TYPE__MSG_NODE_LIST] = {cstd_serve_node_list, &cistern__node_list_get__descriptor,
                                          NOTHING},
    [CISTERN__MSG_TYPE__MSG_NODE_ADD] = {cstd_serve_node_add, &cistern__node_add__descriptor,
                                         NOTHING},
    [CISTERN__MSG_TYPE__MSG_NODE_DROP] = {cstd_serve_node_drop, &cistern__node_name__descriptor,
                                          NOTHING},
    [CISTERN__MSG_TYPE__MSG_NODE_DRAIN] = {cstd_serve_node_drain, &cistern__node_name__descriptor,
                                           NOTHING},
    [CISTERN__MSG_TYPE__MSG_STANDBY] = {cstd_serve_standby, &cistern__standby__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_STAT] = {cstd_serve_stat, NULL, NOTHING},
    [CISTERN__MSG_TYPE__MSG_JOB_LIST] = {cstd_serve_job_list, &cistern__job_list_get__descriptor,
                                         NOTHING},
    [CISTERN__MSG_TYPE__MSG_JOB_INFO] = {cstd_serve_job_info, &cistern__job_name__descriptor,
                                         NOTHING},
    [CISTERN__MSG_TYPE__MSG_EXPLAIN] = {cstd_serve_explain, &cistern__explain__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_JOB_REMOVE] = {cstd_serve_job_remove, &cistern__job_name__descriptor,
                                           NOTHING},
    [CISTERN__MSG_TYPE__MSG_PAUSE] = {cstd_serve_pause, &cistern__job_pause__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_RESUME] = {cstd_serve_resume, &cistern__job_name__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_QUOTA] = {cstd_serve_quota, &cistern__quota_get__descriptor, NOTHING},
    [CISTERN__MSG_TYPE__MSG_TENSORS] = {cstd_serve_tensors, &cistern__tensors_get__descriptor,
                                        NOTHING},
    [CISTERN__MSG_TYPE__MSG_HISTORY] = {cstd_serve_history, &cistern__history_get__descriptor,
                                        NOTHING},
    [CISTERN__MSG_TYPE__MSG_TRACE] = {cstd_serve_trace, &cistern__trace_get__descriptor, NOTHING},
};

/* Check whether the session may make this request now. *fatal: the session must be closed after the
 * answer. */
static int check_session(const struct cstd_session *session, const struct cst_frame *frame,
                         const struct row *row, bool *fatal, struct cst_err *err)
{
    struct cstd_daemon *daemon = session->daemon;

    *fatal = false;
    if (session->refusal.status != 0) {
        *fatal = true;
        *err = session->refusal;
        return err->status;
    }
    if (session->state == CSTD_SESSION_NEW && frame->type != CISTERN__MSG_TYPE__MSG_HELLO) {
        *fatal = true;
        return cst_err_set(err, CST_EPROTO, "message of type %u before Hello", frame->type);
    }
    if (row == NULL) {
        return cst_err_set(err, CST_EUNSUPPORTED, "unknown message type %u", frame->type);
    }
    if (daemon->draining) {
        return cst_err_set(err, CST_EDRAINING, "the daemon is shutting down");
    }
    /* A Cancel needs no credit, because a client without credits must be able to end its own
     * requests. */
    if (session->n_requests >= daemon->config->credits &&
        frame->type != CISTERN__MSG_TYPE__MSG_CANCEL) {
        return cst_err_set(err, CST_ENOCREDIT, "%u requests in flight, the limit is %u",
                           session->n_requests, daemon->config->credits);
    }
    if (row->needs != NOTHING && session->job == NULL) {
        return session->job_removed
                   ? cst_err_set(err, CST_ENOTFOUND, "the job was removed: %s",
                                 session->why_removed.text)
                   : cst_err_set(err, CST_EINVAL, "no job is open on this connection");
    }
    return CST_OK;
}

/* True if the body is a single field with a length, such as a Declare with one declaration. */
static bool is_one_field(const struct cst_frame *frame)
{
    uint64_t bytes = 0;
    uint32_t i = 1; /* After the tag. */

    for (unsigned shift = 0; i < frame->body_bytes && shift < 35; shift += 7) {
        bytes |= (uint64_t)(frame->body[i] & 0x7f) << shift;
        if ((frame->body[i++] & 0x80) == 0) {
            break;
        }
    }
    return bytes == frame->body_bytes - i;
}

static int check_length(const struct cst_frame *frame, struct cst_err *err)
{
    if (frame->type != CISTERN__MSG_TYPE__MSG_DECLARE ||
        frame->body_bytes <= CST_FRAME_DECLARE_BYTES || is_one_field(frame)) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EPROTO,
                       "message of type %u has %u bytes, the limit for several declarations in one "
                       "message is %u",
                       frame->type, frame->body_bytes, CST_FRAME_DECLARE_BYTES);
}

/* Check that a request frame has no flags, and descriptors only if the type has some. */
static int check_frame(struct cst_frame *frame, const struct row *row, struct cst_err *err)
{
    unsigned n_fds = frame->n_fds;

    if (frame->flags != 0) {
        return cst_err_set(err, CST_EPROTO, "a request with flags 0x%04x", frame->flags);
    }
    if (n_fds > 0 && (row == NULL || row->needs != JOB_AND_FDS)) {
        return cst_err_set(err, CST_EPROTO, "message of type %u with %u descriptors, it takes none",
                           frame->type, n_fds);
    }
    return CST_OK;
}

void cstd_route(struct cstd_session *session, struct cst_frame *frame)
{
    const struct row *row =
        frame->type < sizeof rows / sizeof *rows && rows[frame->type].serve != NULL
            ? &rows[frame->type]
            : NULL;
    void *body = frame; /* For rows without a type. */
    bool fatal = false;
    struct cst_err err;
    int rc;

    /* The worker asks the next process of the daemon. */
    if (session->daemon->leaving) {
        cst_frame_close_fds(frame);
        return;
    }
    rc = check_frame(frame, row, &err);

    if (rc == CST_OK) {
        rc = check_session(session, frame, row, &fatal, &err);
    }
    if (rc == CST_OK) {
        rc = check_length(frame, &err);
    }
    if (rc == CST_OK && row->type != NULL) {
        rc = cstd_unpack_message(session->daemon->unpack, row->type, frame->body, frame->body_bytes,
                                 &body, &err);
    }
    if (rc != CST_OK) {
        cstd_session_error(session, frame->request, &err);
        session->last_words = session->last_words || fatal;
    } else {
        row->serve(session, frame->request, body);
    }
    cst_frame_close_fds(frame); /* Those that were not taken. */
    if (session->last_words && session->outbox.bytes == 0) {
        cstd_session_doom(session, NULL);
    }
}
