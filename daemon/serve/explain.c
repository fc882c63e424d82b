/* SPDX-License-Identifier: Apache-2.0 */
/* Where a tensor is, and why: serves Explain. */
#include "daemon/base/daemon_state.h"
#include "daemon/job/comms.h"
#include "daemon/job/job.h"
#include "daemon/job/planner.h"
#include "daemon/memory/edge_slots.h"
#include "daemon/memory/tiers/tier.h"
#include "daemon/serve/job_nodes.h"
#include "daemon/serve/serve.h"
#include "daemon/serve/state_files.h"
#include "daemon/session/session.h"

#include <inttypes.h>
#include <stdio.h>

enum { EXPLAIN_LINES = 224 };

/* Write lines about the tiers of all ranks' pools. */
static unsigned explain_devices(const struct cstd_job *job, char lines[][192], unsigned max)
{
    unsigned n = 0;

    for (uint32_t r = 0; r < job->world && n < max; r++) {
        const struct cstd_tier *tier = job->workers[r].tier;

        n += tier->kind->explain(tier, r, lines + n, max - n);
    }
    return n;
}

/* Write a line about the drive that has the states of @chunk, or its frozen weights, if one has. */
static unsigned explain_drive(const struct cst_layout_chunk *chunk,
                              const struct cstd_state_files *files,
                              const struct cstd_state_places *places, char lines[][192],
                              unsigned max)
{
    const Cistern__StateFile *file = places->n > 0 ? &files->files[places->places[0].file] : NULL;

    if (file == NULL || max == 0) {
        return 0;
    }
    (void)snprintf(lines[0], 192, "its %s in a file on drive %s (engine %s)",
                   cst_layout_has_states(chunk) ? "states are" : "weights are also", file->drive,
                   file->uuid);
    return 1;
}

/* Write a line about the pause of the job, if there is one. */
static unsigned explain_pause(const struct cstd_job *job, char lines[][192], unsigned max)
{
    if (!cstd_job_is_paused(job) || max == 0) {
        return 0;
    }
    (void)snprintf(
        lines[0], 192, "the job has been paused for %.0f s%s",
        (double)(uv_hrtime() - job->pause.paused_ns) * 1e-9,
        cstd_job_lacks_pools(job) ? ", and its pools are released: no weights are in them" : "");
    return 1;
}

static void explain(struct cstd_session *session, uint64_t id, const struct cstd_job *job,
                    uint32_t tensor)
{
    const struct cst_layout_tensor *t = &job->model.tensors[tensor];
    Cistern__ExplainReply reply = CISTERN__EXPLAIN_REPLY__INIT;
    char lines[EXPLAIN_LINES][192], *pointers[EXPLAIN_LINES];
    struct cstd_state_files files;
    struct cstd_state_places places;
    unsigned n = 1;

    (void)snprintf(lines[0], sizeof lines[0],
                   "tensor '%s': %" PRIu64 " elements at element %" PRIu64
                   " of chunk %u of %u (size class %u), used by %u operator%s",
                   t->name, t->n_elems, t->offset, t->chunk, job->layout.n_chunks,
                   job->layout.chunks[t->chunk].size_class, t->n_uses, t->n_uses == 1 ? "" : "s");
    cstd_state_files_describe(job, &files);
    cstd_state_files_places(job, &files, t->chunk, &places);
    n += cst_core_explain(job->core, t->chunk, lines + n, EXPLAIN_LINES - n);
    n += cstd_planner_explain(job, job->layout.chunks[t->chunk].size_class, lines + n,
                              EXPLAIN_LINES - n);
    n +=
        explain_drive(&job->layout.chunks[t->chunk], &files, &places, lines + n, EXPLAIN_LINES - n);
    n += explain_pause(job, lines + n, EXPLAIN_LINES - n);
    n += explain_devices(job, lines + n, EXPLAIN_LINES - n);
    n += cstd_comms_explain(job, lines + n, EXPLAIN_LINES - n);
    n += cstd_edge_slots_explain(job, lines + n, EXPLAIN_LINES - n);
    n += cstd_job_nodes_explain(job, lines + n, EXPLAIN_LINES - n);
    for (unsigned i = 0; i < n; i++) {
        pointers[i] = lines[i];
    }
    reply.n_lines = n;
    reply.lines = pointers;
    reply.chunk = t->chunk;
    reply.offset = t->offset;
    reply.n_elems = t->n_elems;
    reply.n_places = places.n;
    reply.places = places.pointers;
    reply.n_files = places.n > 0 ? files.n : 0;
    reply.files = files.pointers;
    reply.has_recorded_step = cstd_state_files_recorded(job, &reply.recorded_step);
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_EXPLAIN_REPLY, &reply.base, NULL, 0);
}

void cstd_serve_explain(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__Explain *message = body;
    struct cstd_job *job;
    struct cst_err err = {0};
    uint32_t tensor;

    if (cstd_serve_find_job(session, message->job, message->has_uid, message->uid, &job, &err) !=
        CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    if (cstd_serve_wait(job, session, id, CISTERN__MSG_TYPE__MSG_EXPLAIN, &message->base,
                        cstd_serve_explain)) {
        return;
    }
    tensor = cst_model_find(&job->model, message->tensor);
    if (tensor == UINT32_MAX) {
        cstd_serve_error(session, id, CST_ENOTFOUND, "job '%s' has no tensor '%.255s'", job->name,
                         message->tensor);
    } else if (job->core == NULL) {
        cstd_serve_error(session, id, CST_EINVAL, "job '%s' is not committed yet", job->name);
    } else {
        explain(session, id, job, tensor);
    }
}
