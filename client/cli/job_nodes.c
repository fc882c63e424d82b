/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/job_nodes.h"

#include "client/cli/html.h"
#include "client/cli/table.h"

enum { COLUMNS = 9, CELL = 200 };

/* The cells of a row, as people read them. */
static void write_cells(const Cistern__JobNode *node, char cells[COLUMNS][CELL])
{
    char text[CLI_HUMAN_BYTES];
    unsigned c = 0;

    (void)snprintf(cells[c++], CELL, "%s", node->name);
    if (node->n_ranks == 1) {
        (void)snprintf(cells[c++], CELL, "%u", node->first_rank);
    } else {
        (void)snprintf(cells[c++], CELL, "%u-%u", node->first_rank,
                       node->first_rank + node->n_ranks - 1);
    }
    (void)snprintf(cells[c++], CELL, "%s", node->member ? "yes" : "no");
    (void)snprintf(cells[c++], CELL, "%s", node->self ? "self" : node->up ? "up" : "down");
    (void)snprintf(cells[c++], CELL, "%s",
                   node->has_since_s ? cli_seconds(node->since_s, text) : "-");
    (void)snprintf(cells[c++], CELL, "%s",
                   node->has_received_bytes ? cli_bytes(node->received_bytes, text) : "-");
    (void)snprintf(cells[c++], CELL, "%s",
                   node->has_sent_bytes ? cli_bytes(node->sent_bytes, text) : "-");
    (void)snprintf(cells[c++], CELL, "%s",
                   node->has_wait_seconds ? cli_seconds(node->wait_seconds, text) : "-");
    if (node->has_wait_share) {
        (void)snprintf(cells[c++], CELL, "%.0f %%", 100 * node->wait_share);
    } else {
        (void)snprintf(cells[c++], CELL, "-");
    }
}

void cli_job_nodes_print_state(const Cistern__JobInfo *job, FILE *out)
{
    char text[CLI_HUMAN_BYTES];

    if (job->node_state != NULL) {
        (void)fprintf(out, "nodes     %s\n", job->node_state);
    }
    /* The sentence says more about nodes that are away. */
    for (size_t i = 0; i < job->n_nodes; i++) {
        const Cistern__JobNode *node = job->nodes[i];

        if (node->has_wait_share && (node->wait_share >= 0.005 || node->has_waits_s)) {
            (void)fprintf(out, "          step waits for node %s: %.0f %%", node->name,
                          100 * node->wait_share);
            if (node->has_waits_s) {
                (void)fprintf(out, ", now for %s", cli_seconds(node->waits_s, text));
            }
            (void)fprintf(out, "\n");
        }
    }
}

bool cli_job_nodes_print(const Cistern__JobInfo *job, FILE *out)
{
    static const char *const titles[] = {"NODE",        "RANKS",     "MEMBER", "LINK",
                                         ">SINCE",      ">RECEIVED", ">SENT",  ">WAITED",
                                         ">STEP WAITS", "",          NULL};
    struct cli_table table;
    char cells[COLUMNS][CELL];

    if (job->n_nodes == 0) {
        return true;
    }
    (void)fprintf(out, "\n");
    cli_table_init(&table, titles);
    for (size_t i = 0; i < job->n_nodes; i++) {
        write_cells(job->nodes[i], cells);
        for (unsigned c = 0; c < COLUMNS; c++) {
            cli_table_cell(&table, "%s", cells[c]);
        }
        cli_table_cell(&table, "%s", job->nodes[i]->reason != NULL ? job->nodes[i]->reason : "");
    }
    return cli_table_print(&table, out);
}

void cli_job_nodes_report(const Cistern__JobInfo *job, FILE *to)
{
    static const char *const columns[] = {"node",
                                          "ranks",
                                          "member",
                                          "link",
                                          "since",
                                          "copied from there",
                                          "copied from here",
                                          "steps have waited for it",
                                          "part of the last steps",
                                          NULL};
    char cells[COLUMNS][CELL];

    if (job->n_nodes == 0) {
        return;
    }
    cli_html_element(to, "h2", "Nodes");
    cli_html_element(to, "p", "%u ranks on %zu nodes, as the daemon of one of them sees it: %s.",
                     job->all_ranks, job->n_nodes, job->node_state != NULL ? job->node_state : "");
    cli_html_table_begin(to, "Table of nodes", columns);
    for (size_t i = 0; i < job->n_nodes; i++) {
        write_cells(job->nodes[i], cells);
        (void)fputs("<tr>", to);
        for (unsigned c = 0; c < COLUMNS; c++) {
            cli_html_element(to, "td", "%s", cells[c]);
        }
        (void)fputs("</tr>\n", to);
    }
    cli_html_table_end(to);
}
