/* SPDX-License-Identifier: Apache-2.0 */
/* What `cistern plan --nodes` says of a job on several machines. */
#include "client/cli/plan_nodes.h"

#include "client/cli/table.h"
#include "proto/value.h"

#include <stdio.h>

int cli_plan_check_nodes(struct cli *cli, struct cst_err *err)
{
    static const struct cst_value number = CST_U32(0, 2, CST_SET_MAX);
    struct cli_plan_request *wish = &cli->plan;

    if (cli->nodes != NULL &&
        cst_value_read(&number, &wish->n_machines, cli->nodes, err) != CST_OK) {
        return cst_err_prefix(err, "--nodes");
    }
    if (wish->n_machines == 0 && (wish->link > 0 || wish->copies > 0)) {
        return cst_err_set(err, CST_EINVAL,
                           "%s is for a job on several nodes: name their number "
                           "with --nodes",
                           wish->link > 0 ? "--link" : "--copies");
    }
    if (wish->n_machines > 0 && wish->link <= 0) {
        return cst_err_set(err, CST_EINVAL,
                           "--nodes needs the speed of their links: --link 100 for 100 Gbit/s");
    }
    if (wish->copies > wish->n_machines) {
        return cst_err_set(err, CST_EINVAL,
                           "--copies %u: %u nodes can have %u copies at most: --copies %u",
                           wish->copies, wish->n_machines, wish->n_machines, wish->n_machines);
    }
    if (wish->n_machines > 0 && wish->parallel != CLI_PARALLEL_NONE) {
        return cst_err_set(err, CST_EINVAL,
                           "--nodes is not for plans with --parallel auto: leave it out, and name "
                           "the ranks of a node with --ranks");
    }
    return CST_OK;
}

int cli_plan_nodes(struct cli_plan_nodes *out, const struct cli *cli,
                   const struct cli_plan_input *input, const struct cst_plan_choice *choice,
                   struct cst_err *err)
{
    out->config = (struct cst_plan_nodes_config){
        .n_nodes = cli->plan.n_machines,
        .n_copies = cli->plan.copies > 0 ? cli->plan.copies : 1,
        .bytes_per_s = cli->plan.link * 1e9 / 8,
        .tokens = input->model.tokens,
    };
    return out->config.n_nodes > 0
               ? cst_plan_nodes(&out->nodes, &out->config, &input->config, choice, err)
               : CST_OK;
}

/* Print whether @s seconds of the link, for @what, fit under @under_s seconds of @pass. */
static void print_hidden(const char *what, double s, double under_s, const char *pass)
{
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES], c[CLI_HUMAN_BYTES];

    (void)printf("%s %s under %s of the %s", what, cli_seconds(s, a), cli_seconds(under_s, b),
                 pass);
    if (s > under_s) {
        (void)printf(", %s too long", cli_seconds(s - under_s, c));
    }
}

void cli_plan_nodes_print(const struct cli_plan_nodes *nodes, const struct cli_plan_input *input)
{
    const struct cst_plan_nodes *n = &nodes->nodes;
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES], c[CLI_HUMAN_BYTES], d[CLI_HUMAN_BYTES];

    if (nodes->config.n_nodes == 0) {
        return;
    }
    (void)printf("\nnodes     %u, each with %u rank%s, and %u cop%s of the states; links of %g "
                 "Gbit/s\n",
                 nodes->config.n_nodes, input->config.world, input->config.world == 1 ? "" : "s",
                 nodes->config.n_copies, nodes->config.n_copies == 1 ? "y" : "ies",
                 nodes->config.bytes_per_s * 8 / 1e9);
    (void)printf(
        "link      a node receives %s in a step: %s of sums, %s of copies, %s of weights\n",
        cli_bytes(n->sum_bytes + n->copy_bytes + n->weight_bytes, a), cli_bytes(n->sum_bytes, b),
        cli_bytes(n->copy_bytes, c), cli_bytes(n->weight_bytes, d));
    (void)printf("hidden    ");
    print_hidden("sums and copies", n->sum_s, n->sum_under_s, "last backward pass");
    (void)printf("; ");
    print_hidden("weights", n->weight_s, n->weight_under_s, "next forward pass");
    (void)printf("\n");
    (void)printf("step      %s on each node: links add %s of sums and copies, and %s of weights\n",
                 cli_seconds(n->step_s, a), cli_seconds(n->sum_exposed_s, b),
                 cli_seconds(n->weight_exposed_s, c));
    if (nodes->config.tokens > 0) {
        (void)printf("tokens    all is hidden if a node has %s in a micro-batch; it has %s\n",
                     cli_count((uint64_t)n->hidden_tokens + 1, a),
                     cli_count(nodes->config.tokens * input->config.world, b));
    }
    (void)printf("rows      %s on each node: all weights and gradients, and states of %u of %u "
                 "parts\n",
                 cli_bytes(n->row_bytes, a), nodes->config.n_copies, nodes->config.n_nodes);
}

json_t *cli_plan_nodes_json(const struct cli_plan_nodes *nodes)
{
    const struct cst_plan_nodes *n = &nodes->nodes;

    if (nodes->config.n_nodes == 0) {
        return json_null();
    }
    return json_pack("{s:i, s:i, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:I}",
                     "nodes", (int)nodes->config.n_nodes, "copies", (int)nodes->config.n_copies,
                     "link_bytes_per_s", nodes->config.bytes_per_s, "sum_bytes",
                     (json_int_t)n->sum_bytes, "copy_bytes", (json_int_t)n->copy_bytes,
                     "weight_bytes", (json_int_t)n->weight_bytes, "sum_s", n->sum_s, "sum_under_s",
                     n->sum_under_s, "weight_s", n->weight_s, "weight_under_s", n->weight_under_s,
                     "sum_exposed_s", n->sum_exposed_s, "weight_exposed_s", n->weight_exposed_s,
                     "step_s", n->step_s, "hidden_tokens",
                     nodes->config.tokens > 0 ? json_real(n->hidden_tokens) : json_null(),
                     "row_bytes", (json_int_t)n->row_bytes);
}
