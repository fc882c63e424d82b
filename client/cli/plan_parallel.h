/* SPDX-License-Identifier: Apache-2.0 */
/* `cistern plan --parallel auto`: the fastest products of data, tensor and pipeline parallelism. */
#ifndef CLI_PLAN_PARALLEL_H
#define CLI_PLAN_PARALLEL_H

#include "client/cli/plan_input.h"

/* Search and print to stdout; write the schedule of the best product to the file of --schedule, and
 * the section `parallel` of a job's file to that of --save.
 * Statuses:
 *   - CST_EINVAL: the model is divided among ranks already, or an option cannot be combined.
 *   - CST_EBUDGET: no product works; the words are those of one of them.
 *   - CST_EIO, CST_ENOMEM. */
int cli_plan_parallel(const struct cli *cli, const struct cli_plan_input *input,
                      struct cst_err *err);

#endif
