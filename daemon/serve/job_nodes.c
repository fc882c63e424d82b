/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/job_nodes.h"

#include "daemon/job/job.h"
#include "daemon/job/span_view.h"

#include <stdio.h>
#include <string.h>

void cstd_job_nodes_fill_brief(const struct cstd_job *job, struct cstd_job_nodes_brief *brief,
                               Cistern__JobInfo *out)
{
    if (cst_job_all_ranks(&job->spec) <= job->world) {
        return;
    }
    out->has_all_ranks = 1;
    out->all_ranks = cst_job_all_ranks(&job->spec);
    cstd_span_view_brief(job, brief->wait, sizeof brief->wait);
    out->node_wait = brief->wait[0] != '\0' ? brief->wait : NULL;
}

static void fill_node(const struct cstd_job *job, uint32_t m, char reason[160],
                      Cistern__JobNode *out)
{
    struct cstd_span_node node;

    cstd_span_view_node(job, m, &node);
    cistern__job_node__init(out);
    out->name = (char *)(uintptr_t)node.name;
    out->number = m;
    out->self = node.is_self;
    out->first_rank = node.first_rank;
    out->n_ranks = node.world;
    out->member = node.is_member;
    out->up = node.is_up;
    if (node.why != NULL) {
        (void)snprintf(reason, 160, "%s", node.why);
        out->reason = reason;
    }
    if (node.is_self) {
        return;
    }
    out->has_since_s = out->has_received_bytes = out->has_sent_bytes = 1;
    out->has_wait_seconds = out->has_wait_share = 1;
    out->since_s = (double)node.since_ns * 1e-9;
    out->received_bytes = node.received;
    out->sent_bytes = node.sent;
    out->wait_seconds = (double)node.wait_ns * 1e-9;
    out->wait_share = node.wait_share;
    out->has_waits_s = node.waits;
    out->waits_s = (double)node.waits_ns * 1e-9;
}

void cstd_job_nodes_fill(const struct cstd_job *job, struct cstd_job_nodes *nodes,
                         Cistern__JobInfo *out)
{
    cstd_job_nodes_fill_brief(job, &nodes->brief, out);
    cstd_span_view_explain(job, nodes->state, sizeof nodes->state);
    out->node_state = nodes->state[0] != '\0' ? nodes->state : NULL;
    out->nodes = nodes->pointers;
    out->n_nodes = cstd_span_view_count(job);
    for (uint32_t m = 0; m < out->n_nodes; m++) {
        fill_node(job, m, nodes->reasons[m], &nodes->nodes[m]);
        nodes->pointers[m] = &nodes->nodes[m];
    }
}

/* Append @text to @lines, cut at blanks. */
static unsigned add_text(const char *text, char lines[][192], unsigned max)
{
    unsigned n = 0;

    while (*text != '\0' && n < max) {
        size_t length = strlen(text);

        if (length > 191) {
            length = 191;
            while (length > 0 && text[length] != ' ') {
                length--;
            }
            length = length > 0 ? length : 191;
        }
        (void)snprintf(lines[n++], 192, "%.*s", (int)length, text);
        text += length;
        text += *text == ' ';
    }
    return n;
}

unsigned cstd_job_nodes_explain(const struct cstd_job *job, char lines[][192], unsigned max)
{
    char state[768], text[800];
    unsigned n;

    cstd_span_view_explain(job, state, sizeof state);
    if (state[0] == '\0') {
        return 0;
    }
    (void)snprintf(text, sizeof text, "nodes: %s", state);
    n = add_text(text, lines, max);
    for (uint32_t m = 0; m < cstd_span_view_count(job); m++) {
        struct cstd_span_node node;

        cstd_span_view_node(job, m, &node);
        if (node.wait_ns > 0) {
            (void)snprintf(text, sizeof text,
                           "steps here have waited %.3g s for node %s: %.0f %% of the last steps",
                           (double)node.wait_ns * 1e-9, node.name, 100 * node.wait_share);
            n += add_text(text, lines + n, max - n);
        }
    }
    return n;
}
