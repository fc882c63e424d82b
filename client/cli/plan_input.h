/* SPDX-License-Identifier: Apache-2.0 */
/* The input of `cistern plan`: a model, rates and budgets, from the command line. */
#ifndef CLI_PLAN_INPUT_H
#define CLI_PLAN_INPUT_H

#include "client/cli/cli.h"
#include "client/cli/model_json.h"
#include "offload/plan/card.h"
#include "offload/plan/plan.h"

#include <limits.h>

struct cli_plan_input {
    struct cli_model model;
    struct cst_rates rates;
    char rates_from[PATH_MAX]; /* Source of the rates, for people. */
    struct cst_plan_budget budget;
    /* What the daemon sets aside on the card of the rank that leaves least, by `pool = auto`.
     * memory_bytes 0: the budget of devices is --device, or unlimited. */
    struct cst_card card;
    /* After a search in which nothing fits: the budget that a plan would need. */
    struct cst_plan_least least;
    double tbw; /* Terabytes that may be written to each drive in its life; 0: not given. */
    struct cst_plan_config config; /* Points to the fields above. */
};

/* Read the input from the command line. @input must not be moved afterwards; the caller closes it
 * with cli_plan_input_close. CST_EINVAL; CST_ENOTFOUND: there are no rates, or no preset or device
 * of this name (the error lists those that exist); CST_EIO; CST_EEXIST; CST_ENOMEM. */
int cli_plan_input_open(struct cli_plan_input *input, const struct cli *cli, struct cst_err *err);
void cli_plan_input_close(struct cli_plan_input *input);

/* Count the drives that @text, the value of --disk or of `disk` in a file, names: a number, or
 * directories with commas between them. CST_EINVAL: neither, or too many. */
int cli_plan_count_drives(const char *text, uint32_t *n, struct cst_err *err);

/* Check what the command line says of drives, and set plan.n_drives if it names them; else they are
 * those of the file. CST_EINVAL: the command line is wrong. */
int cli_plan_check_drives(struct cli *cli, struct cst_err *err);

#define CLI_PLAN_MAX_WARNINGS (CST_PATTERN_COUNT + 1)

/* Write at most @max warnings about probable mistakes to @words, one sentence each: rates of a busy
 * machine, and tensors of a pattern that is useless in a group of all ranks. Returns their
 * number. */
unsigned cli_plan_input_warn(const struct cli_plan_input *input, char words[][192], unsigned max);

#endif
