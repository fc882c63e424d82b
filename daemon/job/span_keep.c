/* SPDX-License-Identifier: Apache-2.0 */
/* How a later daemon makes a span again from what the ledger has of it. */
#include "daemon/base/daemon_state.h"
#include "daemon/engine/engines.h"
#include "daemon/job/job.h"
#include "daemon/job/span_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Check that *ledger and *record say what a span of @job can be. */
static int check(const struct cstd_job *job, const Ledger__Span *ledger,
                 const struct cstd_ledger_members *record, struct cst_err *err)
{
    uint32_t n_ranks = 0;

    if (ledger->n_nodes < 2 || ledger->n_nodes > CST_MACHINES_MAX ||
        ledger->self >= ledger->n_nodes || ledger->token.len != CSTD_SPAN_TOKEN_BYTES ||
        ledger->window == 0) {
        return cst_err_set(err, CST_ELOST,
                           "its ledger has node %" PRIu32 " of %zu, and %zu bytes of a token",
                           ledger->self, ledger->n_nodes, ledger->token.len);
    }
    for (size_t m = 0; m < ledger->n_nodes; m++) {
        const Ledger__Node *node = ledger->nodes[m];

        if (record->lives[m] == 0 || node->first_rank != n_ranks || node->world == 0 ||
            node->world > cst_job_all_ranks(&job->spec) - n_ranks ||
            (m == ledger->self && node->world != job->world)) {
            return cst_err_set(err, CST_ELOST,
                               "its ledger has %" PRIu32 " ranks from %" PRIu32
                               " on at node %zu, of %" PRIu32,
                               node->world, node->first_rank, m, cst_job_all_ranks(&job->spec));
        }
        n_ranks += node->world;
    }
    return CST_OK;
}

int cstd_span_restore(struct cstd_job *draft, const Ledger__Span *ledger,
                      const struct cstd_ledger_members *record, struct cst_err *err)
{
    struct cstd_span *span;

    if (check(draft, ledger, record, err) != CST_OK ||
        cstd_span_make(draft, record->lives[ledger->self], err) != CST_OK) {
        return err->status;
    }
    span = draft->span;
    span->state = CSTD_SPAN_JOINED;
    span->n = (uint32_t)ledger->n_nodes;
    span->self = ledger->self;
    span->window_id = ledger->window;
    memcpy(span->token, ledger->token.data, sizeof span->token);
    for (uint32_t m = 0; m < span->n; m++) {
        span->machines[m].first_rank = ledger->nodes[m]->first_rank;
        span->machines[m].world = ledger->nodes[m]->world;
    }
    return CST_OK;
}

void cstd_span_move(struct cstd_job *draft, struct cstd_job *job)
{
    job->span = draft->span;
    draft->span = NULL;
    if (job->span != NULL) {
        job->span->job = job;
    }
}

static int find_nodes(struct cstd_job *job, const struct cstd_ledger_members *record,
                      struct cst_err *err)
{
    struct cstd_span *span = job->span;

    for (uint32_t m = 0; m < span->n; m++) {
        if (m != span->self && cstd_links_keep(job->daemon->links, record->names[m],
                                               &span->machines[m].peer, err) != CST_OK) {
            return err->status;
        }
        span->machines[m].life = record->lives[m];
        span->names[m] = cstd_span_name(span, m);
    }
    return CST_OK;
}

int cstd_span_reopen(struct cstd_job *job, const struct cstd_ledger_members *record,
                     struct cst_err *err)
{
    struct cstd_span *span = job->span;

    if (job->daemon->links == NULL) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "it has ranks on %" PRIu32
                           " nodes, and this daemon has no links to others: set 'listen' in [node] "
                           "of cistern.conf, see cistern-nodes(7)",
                           span->n);
    }
    span->record = malloc(sizeof *span->record);
    if (span->record == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for its nodes");
    }
    *span->record = record->members;
    cstd_span_watch(span);
    if (find_nodes(job, record, err) != CST_OK || cstd_span_take_engine(job, err) != CST_OK) {
        return err->status;
    }
    return cstd_span_open_window(job, err);
}
