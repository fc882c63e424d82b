/* SPDX-License-Identifier: Apache-2.0 */
/* What `cistern plan` plans: a model, rates and budgets out of the command line. */
#ifndef CLI_PLAN_INPUT_H
#define CLI_PLAN_INPUT_H

#include "client/cli/cli.h"
#include "client/cli/model_json.h"
#include "offload/plan/plan.h"

#include <limits.h>

struct cli_plan_input {
    struct cli_model model;
    struct cst_rates rates;
    char rates_from[PATH_MAX]; /* where they are from, for people */
    struct cst_plan_budget budget;
    struct cst_plan_least least; /* what a plan would need, after a search in which nothing fits */
    struct cst_plan_config config; /* points into this */
};

/* Fill it, which stays where it is; to be closed. CST_EINVAL, CST_ENOTFOUND (no rates, no such
 * preset or device: with what there is), CST_EIO, CST_ENOMEM. */
int cli_plan_input_open(struct cli_plan_input *input, const struct cli *cli, struct cst_err *err);
void cli_plan_input_close(struct cli_plan_input *input);

#define CLI_PLAN_MAX_WARNINGS (CST_PATTERN_COUNT + 1)

/* What looks like a mistake: rates of a busy machine, tensors of a pattern that is of no use in a
 * group of all ranks. Writes at most @max sentences; how many. */
unsigned cli_plan_input_warn(const struct cli_plan_input *input, char words[][192], unsigned max);

#endif
