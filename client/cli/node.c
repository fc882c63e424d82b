/* SPDX-License-Identifier: Apache-2.0 */
/* The commands `cistern node list`, `add`, `drop` and `drain`: the nodes that the daemon trusts,
 * and its links to them. */
#include "client/cli/cli.h"
#include "client/cli/table.h"
#include "client/cli/watch.h"

#include <stdio.h>
#include <string.h>

static void add_seconds(struct cli_table *table, bool has, double seconds)
{
    char text[CLI_HUMAN_BYTES];

    cli_table_cell(table, "%s", has ? cli_seconds(seconds, text) : "-");
}

static void add_bytes(struct cli_table *table, bool has, uint64_t bytes)
{
    char text[CLI_HUMAN_BYTES];

    cli_table_cell(table, "%s", has ? cli_bytes(bytes, text) : "-");
}

/* Add the names of the jobs that use the link: "run7, run8 and 3 more". */
static void add_jobs(struct cli_table *table, const Cistern__NodeInfo *node)
{
    char text[256];
    size_t n = 0, i = 0;

    for (; i < node->n_jobs && n + strlen(node->jobs[i]) + 32 < sizeof text; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i > 0 ? ", " : "", node->jobs[i]);
    }
    if (i < node->job_count) {
        (void)snprintf(text + n, sizeof text - n, " and %u more", node->job_count - (unsigned)i);
    }
    cli_table_cell(table, "%s", node->n_jobs > 0 ? text : "-");
}

static void add_node(struct cli_table *table, const void *item)
{
    const Cistern__NodeInfo *node = item;
    const bool is_up = strcmp(node->state, "up") == 0 || strcmp(node->state, "draining") == 0;

    cli_table_cell(table, "%s", node->name);
    cli_table_cell(table, "%s", node->state);
    add_seconds(table, node->has_since_s, node->since_s);
    add_seconds(table, node->has_round_trip_s, node->round_trip_s);
    add_bytes(table, node->has_received_bytes, node->received_bytes);
    add_bytes(table, node->has_sent_bytes, node->sent_bytes);
    add_jobs(table, node);
    cli_table_cell(table, "%s", node->program != NULL ? node->program : "-");
    cli_table_cell(table, "%s", node->isa != NULL ? node->isa : "-");
    cli_table_cell(table, "%s", node->address);
    cli_table_cell(table, "%s", !is_up && node->reason != NULL ? node->reason : "");
}

static size_t items_of(const ProtobufCMessage *page, ProtobufCMessage ***items, bool *more)
{
    const Cistern__NodeListPart *part = (const Cistern__NodeListPart *)page;

    *items = (ProtobufCMessage **)part->nodes;
    *more = part->more;
    return part->n_nodes;
}

static const char *const titles[] = {"NODE",      "STATE",   ">SINCE", ">ROUND TRIP",
                                     ">RECEIVED", ">SENT",   "JOBS",   "VERSION",
                                     "KERNELS",   "ADDRESS", "",       NULL};

static const struct cli_list nodes_list = {
    .get = CISTERN__MSG_TYPE__MSG_NODE_LIST,
    .part = CISTERN__MSG_TYPE__MSG_NODE_LIST_PART,
    .form = &cistern__node_list_part__descriptor,
    .titles = titles,
    .items = items_of,
    .add = add_node,
};

static bool draw(struct cli *cli, FILE *out, void *arg)
{
    (void)arg;
    return cli_list_print(cli, &nodes_list, out);
}

int cli_node_list(struct cli *cli)
{
    return cli_watch(cli, draw, NULL);
}

/* Make a request whose answer is OK. */
static int change(struct cli *cli, uint16_t type, const ProtobufCMessage *message)
{
    struct cstc_call call = {0};

    if (!cli_ask(cli, &call, type, message, CISTERN__MSG_TYPE__MSG_OK, NULL)) {
        return CLI_EXIT_FAILURE;
    }
    cstc_call_reset(&call);
    return CLI_EXIT_OK;
}

int cli_node_add(struct cli *cli)
{
    Cistern__NodeAdd message = CISTERN__NODE_ADD__INIT;

    message.name = cli->args[0];
    message.address = cli->args[1];
    message.identity = cli->args[2];
    return change(cli, CISTERN__MSG_TYPE__MSG_NODE_ADD, &message.base);
}

static int change_named(struct cli *cli, uint16_t type)
{
    Cistern__NodeName message = CISTERN__NODE_NAME__INIT;

    message.name = cli->args[0];
    return change(cli, type, &message.base);
}

int cli_node_drop(struct cli *cli)
{
    return change_named(cli, CISTERN__MSG_TYPE__MSG_NODE_DROP);
}

int cli_node_drain(struct cli *cli)
{
    return change_named(cli, CISTERN__MSG_TYPE__MSG_NODE_DRAIN);
}
