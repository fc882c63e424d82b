/* SPDX-License-Identifier: Apache-2.0 */
/* A plan for people and for programs. */
#ifndef CLI_PLAN_REPORT_H
#define CLI_PLAN_REPORT_H

#include "client/cli/plan_input.h"
#include "client/cli/table.h"

#include <jansson.h>
#include <stdbool.h>

enum { CLI_PLAN_ROWS = CST_ROW_COUNT + 1 }; /* the second weight row too */

extern const char *const cli_plan_row_names[CLI_PLAN_ROWS];

/* Bytes of each row of all chunks, by where they are. */
struct cli_plan_rows {
    uint64_t device[CLI_PLAN_ROWS]; /* of all ranks' devices, or accelerators beside the host */
    uint64_t host[CLI_PLAN_ROWS];
    uint64_t disk[CLI_PLAN_ROWS];
};

/* Rows of @choice for the model of @input. CST_ENOMEM and what cst_layout_build returns. */
int cli_plan_rows(struct cli_plan_rows *out, const struct cli_plan_input *input,
                  const struct cst_plan_choice *choice, struct cst_err *err);

/* Gradients take the weights' places in @choice: the user has said so, or the plan has chosen it.
 */
bool cli_plan_is_over(const struct cli_plan_input *input, const struct cst_plan_choice *choice);

/* Tokens per second of all ranks together; 0: the model does not say. */
double cli_plan_tokens(const struct cli_plan_input *input, const struct cst_plan_choice *choice);

/* "100G": the smallest round size of at least @bytes, as a person types it. Returns @out. */
const char *cli_size_option(uint64_t bytes, char out[CLI_HUMAN_BYTES]);

/* The tables, to stdout. False: out of memory, said. */
bool cli_plan_print(const struct cli_plan_input *input, const struct cst_plans *plans,
                    const struct cli_plan_rows *rows);

/* plan_json.c. New objects; NULL: out of memory. Times and traffic of a step that was played; a
 * plan. */
json_t *cli_plan_step_json(const struct cst_replay_result *step);
/* Bytes of a budget; null: no limit. */
json_t *cli_limit_json(uint64_t bytes);
json_t *cli_plan_json(const struct cli_plan_input *input, const struct cst_plans *plans,
                      const struct cli_plan_rows *rows);

#endif
