/* SPDX-License-Identifier: Apache-2.0 */
/* Output of a plan, as text (plan_report.c) and as JSON (plan_json.c). */
#ifndef CLI_PLAN_REPORT_H
#define CLI_PLAN_REPORT_H

#include "client/cli/plan_input.h"
#include "client/cli/table.h"

#include <jansson.h>
#include <stdbool.h>

enum { CLI_PLAN_ROWS = CST_ROW_COUNT + 1 }; /* All rows, and the second weight row. */

/* Name of @row, below CLI_PLAN_ROWS, for people and in JSON. */
const char *cli_plan_row_name(int row);

/* Bytes of each row of all chunks, by the place where they are. */
struct cli_plan_rows {
    /* On the devices of all ranks together; or on accelerators, if the ranks compute on the
     * host. */
    uint64_t device[CLI_PLAN_ROWS];
    uint64_t host[CLI_PLAN_ROWS];  /* In host memory. */
    uint64_t drive[CLI_PLAN_ROWS]; /* On all drives together. */
};

/* Compute the rows of the plan @choice for the model of @input. CST_ENOMEM, and the statuses of
 * cst_layout_build. */
int cli_plan_rows(struct cli_plan_rows *out, const struct cli_plan_input *input,
                  const struct cst_plan_choice *choice, struct cst_err *err);

/* Return whether the plan is for several ranks whose devices cannot access each other's memory. */
bool cli_plan_is_apart(const struct cli_plan_input *input);

/* Return the tokens per second of all ranks together; 0: the model does not say how many tokens a
 * micro-batch has. */
double cli_plan_tokens(const struct cli_plan_input *input, const struct cst_plan_choice *choice);

/* Return the days until @input->tbw terabytes are written to each drive; 0: not given, or nothing
 * is written. */
double cli_plan_days(const struct cli_plan_input *input, const struct cst_plan_choice *choice);

/* Write a size of at least @bytes as a person types it, rounded up: "100G". Returns @out. */
const char *cli_size_option(uint64_t bytes, char out[CLI_HUMAN_BYTES]);

/* Print the plan to stdout. False: out of memory; the error was printed to stderr. */
bool cli_plan_print(const struct cli_plan_input *input, const struct cst_plans *plans,
                    const struct cli_plan_rows *rows);

/* The functions below return a new JSON value; NULL: out of memory. */

/* Times and traffic of a simulated step. */
json_t *cli_plan_step_json(const struct cst_replay_result *step);
/* Bytes of a budget; null: no limit. */
json_t *cli_limit_json(uint64_t bytes);

/* The whole plan. */
json_t *cli_plan_json(const struct cli_plan_input *input, const struct cst_plans *plans,
                      const struct cli_plan_rows *rows);

#endif
