/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/span_view.h"

#include "daemon/base/daemon_state.h"
#include "daemon/engine/engines.h"
#include "daemon/engine/net_engine.h"
#include "daemon/job/job.h"
#include "daemon/job/span_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* From this part of a step on, the node for which it waits is named. */
#define SLOW_SHARE 0.1
/* A wait that has lasted so long is told though it is not over. */
#define LONG_NS UINT64_C(2000000000)

uint32_t cstd_span_view_count(const struct cstd_job *job)
{
    return job->span != NULL ? job->span->n : 0;
}

/* The machines for which the step here waits now. *ns: how long nothing has come. */
static uint64_t waits_now(const struct cstd_job *job, uint64_t *ns)
{
    uint64_t since = 0, machines = 0;

    if (job->core != NULL && job->state == CSTD_JOB_READY) {
        machines = cst_core_waits_for(job->core, &since);
    }
    *ns = machines != 0 ? uv_hrtime() - since : 0;
    return machines;
}

/* What is known before the parts are numbered lacks members, traffic and waits. */
void cstd_span_view_node(const struct cstd_job *job, uint32_t m, struct cstd_span_node *out)
{
    const struct cstd_span *span = job->span;
    const struct cstd_span_machine *machine = &span->machines[m];
    const struct cstd_machine *peer = machine->peer;
    struct cst_machine_stats stats = {0};
    struct cstd_net_traffic traffic = {0};
    uint64_t waits_ns;
    const uint64_t waits = waits_now(job, &waits_ns);

    if (span->has_engine) {
        traffic = cstd_net_engine_traffic(job->daemon->engines->v[span->engine].net, m);
    }
    if (job->core != NULL) {
        cst_core_machine_stats(job->core, m, &stats);
    }
    *out = (struct cstd_span_node){.name = peer != NULL ? peer->entry.name
                                                        : cstd_links_self(job->daemon->links)->name,
                                   .is_self = peer == NULL,
                                   .first_rank = machine->first_rank,
                                   .world = machine->world,
                                   .is_member = cstd_span_is_member(span, m),
                                   .is_up = peer == NULL || peer->up != NULL,
                                   .since_ns = peer != NULL ? uv_hrtime() - peer->since_ns : 0,
                                   .received = traffic.received,
                                   .sent = traffic.sent,
                                   .wait_ns = stats.wait_ns,
                                   .wait_share = stats.wait_share,
                                   .waits = (waits >> m & 1) != 0,
                                   .waits_ns = waits_ns};
    if (!out->is_up) {
        out->why =
            peer->why.status != CST_OK ? peer->why.text : "the node has not answered since then";
    }
}

void cstd_span_missing(const struct cstd_job *job, char *text, size_t size)
{
    const struct cstd_span *span = job->span;
    uint32_t n_ranks = 0;

    text[0] = '\0';
    if (span == NULL) {
        return;
    }
    for (uint32_t m = 0; m < span->n; m++) {
        n_ranks += span->machines[m].world;
    }
    if (span->state == CSTD_SPAN_MEETING) {
        (void)snprintf(text, size,
                       "%" PRIu32 " of %" PRIu32
                       " ranks, which no node with a link has: see 'cistern node list'",
                       cst_job_all_ranks(&job->spec) - n_ranks, cst_job_all_ranks(&job->spec));
    } else if (span->state == CSTD_SPAN_PLANNING && (span->self != 0 || span->replaces)) {
        (void)snprintf(text, size, "node '%s', which plans the job",
                       span->names[span->self != 0 ? 0 : 1]);
    } else if (span->state == CSTD_SPAN_JOINING) {
        (void)snprintf(text, size, "the engines of the job's nodes");
    } else if (span->replaces && span->members == NULL) {
        (void)snprintf(text, size, "the states, which other nodes have");
    }
}

/* Add to @text which member is not in the list of nodes any more, and what helps. */
static void explain_dropped(const struct cstd_span *span, char *text, size_t size)
{
    for (uint32_t m = 0; m < span->n; m++) {
        const struct cstd_machine *peer = span->machines[m].peer;
        const size_t n = strlen(text);

        if (peer != NULL && peer->is_dropped && cstd_span_is_member(span, m)) {
            (void)snprintf(text + n, size - n,
                           ". Node %s was dropped here: 'cistern node add %s' lets it come back",
                           peer->entry.name, peer->entry.name);
            return;
        }
    }
}

void cstd_span_view_explain(const struct cstd_job *job, char *text, size_t size)
{
    const struct cstd_span *span = job->span;
    char missing[128];

    text[0] = '\0';
    if (span == NULL) {
        return;
    }
    if (span->members != NULL) {
        cst_members_explain(span->members, uv_hrtime(), text, size);
        explain_dropped(span, text, size);
        return;
    }
    cstd_span_missing(job, missing, sizeof missing);
    if (missing[0] != '\0') {
        (void)snprintf(text, size, "waits for %s", missing);
    }
}

/* The member for whose link the job has waited longest; span->n: none. */
static uint32_t find_away(const struct cstd_span *span, unsigned *n_away)
{
    uint32_t first = span->n;

    *n_away = 0;
    for (uint32_t m = 0; m < span->n; m++) {
        const struct cstd_machine *peer = span->machines[m].peer;

        if (!cstd_span_is_member(span, m) || peer == NULL || peer->up != NULL) {
            continue;
        }
        (*n_away)++;
        if (first == span->n || peer->since_ns < span->machines[first].peer->since_ns) {
            first = m;
        }
    }
    return first;
}

/* The node for which the steps here wait longest; span->n: none is worth a word. */
static uint32_t find_slow(const struct cstd_job *job, double *share)
{
    uint32_t slow = job->span->n;

    *share = SLOW_SHARE;
    for (uint32_t m = 0; job->core != NULL && m < job->span->n; m++) {
        struct cst_machine_stats stats;

        cst_core_machine_stats(job->core, m, &stats);
        if (stats.wait_share >= *share) {
            *share = stats.wait_share;
            slow = m;
        }
    }
    return slow;
}

void cstd_span_view_brief(const struct cstd_job *job, char *text, size_t size)
{
    const struct cstd_span *span = job->span;
    unsigned n_away = 0;
    uint32_t away, slow;
    uint64_t now, ns;
    double share;

    text[0] = '\0';
    if (span == NULL) {
        return;
    }
    if (span->members == NULL) {
        cstd_span_view_explain(job, text, size);
        return;
    }
    away = find_away(span, &n_away);
    slow = find_slow(job, &share);
    now = waits_now(job, &ns);
    if (away < span->n) {
        ns = uv_hrtime() - span->machines[away].peer->since_ns;
        (void)snprintf(text, size, "waits for node %s, away for %" PRIu64 " s",
                       cstd_span_name(span, away), ns / 1000000000);
        if (n_away > 1) {
            const size_t n = strlen(text);

            (void)snprintf(text + n, size - n, ", and %u more", n_away - 1);
        }
    } else if (!cst_members_hold(span->members)) {
        (void)snprintf(text, size, "waits until its nodes agree on the last step");
    } else if (now != 0 && ns >= LONG_NS) {
        (void)snprintf(text, size, "waits for node %s, for %" PRIu64 " s",
                       cstd_span_name(span, (uint32_t)__builtin_ctzll(now)), ns / 1000000000);
    } else if (slow < span->n) {
        (void)snprintf(text, size, "%.0f %% of the step waits for node %s", 100 * share,
                       cstd_span_name(span, slow));
    }
}

bool cstd_span_view_find(const struct cstd_job *job, const struct cstd_machine *machine,
                         uint32_t *m)
{
    const struct cstd_span_machine *part =
        job->span != NULL ? cstd_span_find(job->span, machine) : NULL;

    if (part != NULL) {
        *m = (uint32_t)(part - job->span->machines);
    }
    return part != NULL;
}
