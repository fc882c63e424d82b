/* SPDX-License-Identifier: Apache-2.0 */
/* Which chunks the nodes of a span have, and which rank blocks: node 0 says how large chunks are.
 */
#include "daemon/base/daemon_state.h"
#include "daemon/engine/engines.h"
#include "daemon/engine/net_peers.h"
#include "daemon/job/job.h"
#include "daemon/job/span_parts.h"
#include "daemon/settings/settings.h"

#include <inttypes.h>
#include <string.h>

uint32_t cstd_span_blocks(const struct cstd_job *job, uint32_t world)
{
    const uint32_t n = job->spec.updates.block_ranks;

    return n > 0 && n < world ? world / n : 1;
}

int cstd_span_take_engine(struct cstd_job *job, struct cst_err *err)
{
    const struct cstd_settings *config = job->daemon->config;
    struct cstd_span *span = job->span;

    if (!span->has_engine &&
        cstd_net_engine_take(job->daemon->engines, job->name,
                             config->node.network == CSTD_NETWORK_TRUSTED ? "tcp" : "tls",
                             cstd_span_listen(job->daemon), span->self, &span->engine,
                             err) != CST_OK) {
        return err->status;
    }
    span->has_engine = true;
    return CST_OK;
}

int cstd_span_prepare(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_span *span = job->span;

    if (span == NULL) {
        return CST_OK;
    }
    if (cstd_span_take_engine(job, err) != CST_OK) {
        return err->status;
    }
    return (span->self == 0 && !span->replaces) || span->class_elems[0] != 0 ? CST_OK : CST_EAGAIN;
}

void cstd_span_tell_chunks(struct cstd_job *job)
{
    const struct cstd_span *span = job->span;

    for (uint32_t m = 1; span != NULL && span->self == 0 && !span->replaces && m < span->n; m++) {
        cstd_span_send_chunks(job, &span->machines[m]);
    }
}

static int take_chunks(struct cstd_job *job, struct cstd_machine *peer, const Span__Chunks *chunks,
                       struct cst_err *err)
{
    struct cstd_span *span = job->span;
    const struct cstd_span_machine *machine = cstd_span_find(span, peer);

    if (machine == NULL || machine->life != chunks->from->life) {
        return CST_OK; /* Of an earlier life. */
    }
    if (chunks->n_class_elems == 0 || chunks->n_class_elems > CST_LAYOUT_MAX_CLASSES ||
        chunks->class_elems[0] == 0 || chunks->token.len != sizeof span->token ||
        (machine->first_rank != 0 && !machine->goes_on)) {
        return cst_err_set(err, CST_EPROTO, "sizes of chunks that are none");
    }
    if (span->state > CSTD_SPAN_PLANNING || span->class_elems[0] != 0) {
        return CST_OK; /* Told again, or by another part that goes on. */
    }
    memcpy(span->class_elems, chunks->class_elems,
           chunks->n_class_elems * sizeof *span->class_elems);
    memcpy(span->token, chunks->token.data, sizeof span->token);
    if (job->phase == CSTD_COMMIT_CHUNKS) {
        job->daemon->span_ops->met(job, &(struct cst_err){0});
    }
    return CST_OK;
}

static int on_chunks(void *arg, struct cstd_machine *peer, const uint8_t *body, size_t n,
                     struct cst_err *err)
{
    Span__Chunks *chunks = span__chunks__unpack(NULL, n, body);
    struct cstd_job *job;
    int rc = CST_OK;

    if (chunks == NULL) {
        return cst_err_set(err, CST_EPROTO, "no sizes of chunks");
    }
    job = cstd_span_job(arg, chunks->from);
    if (job != NULL) {
        rc = take_chunks(job, peer, chunks, err);
    }
    span__chunks__free_unpacked(chunks, NULL);
    return rc;
}

struct cst_set cstd_span_serves(const struct cstd_job *job)
{
    return job->span != NULL ? cst_set_of(job->span->engine) : (struct cst_set){{0}};
}

/* True if the sum of a rank block is that of several contributions, and is added to others. */
static bool adds_sums(const struct cstd_job *job)
{
    uint32_t most = job->world;

    for (uint32_t m = 0; job->span != NULL && m < job->span->n; m++) {
        most = most > job->span->machines[m].world ? most : job->span->machines[m].world;
    }
    return (job->span != NULL || cstd_span_blocks(job, job->world) > 1) &&
           (job->spec.updates.micro_batches > 1 || most / cstd_span_blocks(job, most) > 1);
}

int cstd_span_lay_out(const struct cstd_job *job, struct cst_layout_config *config,
                      struct cst_err *err)
{
    const uint32_t block = job->spec.updates.block_ranks;
    const struct cstd_span *span = job->span;
    struct cst_core_machines machines;

    if (block > 0 && job->world % block != 0) {
        return cst_err_set(err, CST_EINVAL,
                           "job '%s' has %" PRIu32 " ranks on this node, and block_ranks %" PRIu32
                           ": each node needs a multiple of it",
                           job->name, job->world, block);
    }
    config->partials.n_here = cstd_span_blocks(job, job->world);
    config->grad_bytes = adds_sums(job) ? 4 : config->grad_bytes;
    if (span == NULL) {
        return CST_OK;
    }
    (void)cstd_span_machines(job, &machines);
    config->machines = (struct cst_layout_machines){
        .n = machines.n, .self = machines.self, .copies = machines.copies};
    config->partials.n_come = machines.n_rank_blocks - config->partials.n_here;
    if (span->class_elems[0] != 0) { /* As another node has told. */
        config->chunk_elems = span->class_elems[0];
        memcpy(config->class_elems, span->class_elems + 1,
               (CST_LAYOUT_MAX_CLASSES - 1) * sizeof *span->class_elems);
    }
    return CST_OK;
}

bool cstd_span_machines(const struct cstd_job *job, struct cst_core_machines *out)
{
    const struct cstd_span *span = job->span;
    uint32_t blocks = 0;

    if (span == NULL) {
        return false;
    }
    *out = (struct cst_core_machines){.n = span->n,
                                      .self = span->self,
                                      .copies =
                                          job->spec.nodes.copies > 0 ? job->spec.nodes.copies : 1,
                                      .engine = span->engine,
                                      .names = span->names};
    for (uint32_t m = 0; m < span->n; m++) {
        const uint32_t n = cstd_span_blocks(job, span->machines[m].world);

        if (m == span->self) {
            out->rank_blocks = (n < 64 ? (UINT64_C(1) << n) - 1 : UINT64_MAX) << blocks;
        }
        blocks += n;
    }
    out->n_rank_blocks = blocks;
    return true;
}

void cstd_span_handle_chunks(struct cstd_daemon *daemon)
{
    cstd_links_handle(daemon->links, SPAN__MSG_TYPE__SPAN_CHUNKS, on_chunks, daemon);
}
