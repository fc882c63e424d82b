/* SPDX-License-Identifier: Apache-2.0 */
/* Serves Tensors: the tensors of a job, page by page. */
#include "daemon/base/daemon_state.h"
#include "daemon/job/job.h"
#include "daemon/memory/tiers/tier.h"
#include "daemon/serve/serve.h"
#include "daemon/session/session.h"
#include "proto/cistern.pb-c.h"
#include "proto/dtypes.h"
#include "proto/patterns.h"

enum { PAGE = 64 };

/* The bytes of the master weights and moments of tensor @t, which lie in @chunk. */
static uint64_t state_bytes(const struct cstd_job *job, const struct cst_layout_tensor *t,
                            const struct cst_layout_chunk *chunk)
{
    uint64_t bytes = 0;

    for (int row = CST_ROW_MASTER; cst_layout_has_states(chunk) && row < CST_ROW_COUNT; row++) {
        bytes += cst_layout_chunk_row_bytes(&job->layout, chunk, row, t->n_elems);
    }
    return bytes;
}

/* Where the weights of a tensor are; what a TensorInfo refers to. */
struct places {
    uint32_t segment[CST_MAX_VERSIONS];
    uint64_t offset[CST_MAX_VERSIONS];
};

/* Say where the weights of tensor @t are, which lie in @chunk. The second weight row of a durable
 * job is in a file. */
static void fill_places(const struct cstd_job *job, const struct cst_layout_tensor *t,
                        const struct cst_layout_chunk *chunk, struct places *places,
                        Cistern__TensorInfo *out)
{
    const int rows[] = {CST_ROW_WEIGHT, CST_ROW_WEIGHT_OTHER};

    for (size_t i = 0; i < CST_MAX_VERSIONS; i++) {
        const struct cst_layout_row *row = cst_layout_row(chunk, rows[i]);

        if (row->segment != CST_LAYOUT_NO_ROW && (i == 0 || !job->spec.states.durable)) {
            places->segment[i] = row->segment;
            places->offset[i] = row->offset + t->offset * cst_dtype_bytes(t->dtype);
            out->n_weight_segment = out->n_weight_offset = i + 1;
        }
    }
    out->weight_segment = places->segment;
    out->weight_offset = places->offset;
}

/* What model files of other programs call @t. NULL: they do not have it as it is. */
static char *file_name(const struct cst_layout_tensor *t)
{
    const struct cst_layout_external *external = t->external;

    if (t->box != NULL) {
        return NULL;
    }
    if (external == NULL) {
        return t->name;
    }
    return external->n == 1 && !external->transposed ? external->names[0] : NULL;
}

static void fill(const struct cstd_job *job, struct cst_layout_tensor *t, struct places *places,
                 Cistern__TensorInfo *out)
{
    const struct cst_layout_chunk *chunk =
        cstd_job_has_layout(job) ? &job->layout.chunks[t->chunk] : NULL;
    const struct cstd_tier *tier;

    cistern__tensor_info__init(out);
    out->name = t->name;
    out->file_name = file_name(t);
    out->n_shape = t->n_dims;
    out->shape = t->shape;
    out->dtype = (char *)(uintptr_t)cst_dtype_name(t->dtype);
    out->pattern = (char *)(uintptr_t)cst_pattern(t->pattern)->name;
    out->weight_bytes = t->n_elems * cst_dtype_bytes(t->dtype);
    if (chunk != NULL) {
        tier = cstd_tiers_of_number(job->daemon, chunk->tier);
        out->has_state_bytes = out->has_chunk = 1;
        out->state_bytes = state_bytes(job, t, chunk);
        out->chunk = t->chunk;
        out->states = tier != NULL ? (char *)(uintptr_t)tier->label : NULL;
        fill_places(job, t, chunk, places, out);
    }
}

void cstd_serve_tensors(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__TensorsGet *get = body;
    Cistern__TensorsPart part = CISTERN__TENSORS_PART__INIT;
    Cistern__TensorInfo infos[PAGE], *pointers[PAGE];
    struct places places[PAGE];
    struct cstd_job *job;
    struct cst_err err = {0};

    if (cstd_serve_find_job(session, get->job, get->has_uid, get->uid, &job, &err) != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    if (cstd_serve_wait(job, session, id, CISTERN__MSG_TYPE__MSG_TENSORS, &get->base,
                        cstd_serve_tensors)) {
        return;
    }
    while (part.n_tensors < PAGE && get->first < job->model.n_tensors &&
           part.n_tensors < job->model.n_tensors - get->first) {
        pointers[part.n_tensors] = &infos[part.n_tensors];
        fill(job, &job->model.tensors[get->first + part.n_tensors], &places[part.n_tensors],
             &infos[part.n_tensors]);
        part.n_tensors++;
    }
    part.tensors = pointers;
    part.more =
        get->first < job->model.n_tensors && part.n_tensors < job->model.n_tensors - get->first;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_TENSORS_PART, &part.base, NULL, 0);
}
