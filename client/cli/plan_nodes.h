/* SPDX-License-Identifier: Apache-2.0 */
/* What `cistern plan --nodes` says of a job on several machines. */
#ifndef CLI_PLAN_NODES_H
#define CLI_PLAN_NODES_H

#include "client/cli/plan_input.h"
#include "offload/plan/nodes.h"

#include <jansson.h>

struct cli_plan_nodes {
    struct cst_plan_nodes_config config; /* n_nodes 0: the plan is for one machine. */
    struct cst_plan_nodes nodes;
};

/* Read the number in --nodes, and check what the command line says of several machines.
 * CST_EINVAL: it is wrong. */
int cli_plan_check_nodes(struct cli *cli, struct cst_err *err);

/* Compute what each machine does by the plan @choice. Statuses as cst_plan_nodes. */
int cli_plan_nodes(struct cli_plan_nodes *out, const struct cli *cli,
                   const struct cli_plan_input *input, const struct cst_plan_choice *choice,
                   struct cst_err *err);

/* Print it to stdout; nothing for one machine. */
void cli_plan_nodes_print(const struct cli_plan_nodes *nodes, const struct cli_plan_input *input);

/* Return it as a new JSON value, null for one machine; NULL: out of memory. */
json_t *cli_plan_nodes_json(const struct cli_plan_nodes *nodes);

#endif
