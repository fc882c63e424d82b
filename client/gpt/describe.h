/* SPDX-License-Identifier: Apache-2.0 */
/* Costs of the model's operators, for planning: hints to the daemon, and the model as JSON for
 * `cistern plan` (schema: client/cli/model_json.h).
 *
 * Operations of a forward pass:
 *   - A matrix product of m x k by k x n counts 2 m n k. A training step then has the usual 6
 *     operations per parameter and token (Kaplan et al. 2020, section 2.1).
 *   - Causal attention counts 2 (context + 1) d per token, half of the full square (Dao et al.
 *     2022).
 *   - Layer norms, GELU, softmax and biases are not counted.
 *
 * A backward pass has twice as many operations. The bytes that are kept between the passes are
 * those of the host device (host_memory.c). A GPU keeps about as many.
 *
 * An expert is assumed to receive an even share of the tokens of all ranks. Its expected uses are
 * the probability that it receives at least one token when each token picks top_k experts at
 * random: 1 - (1 - top_k / experts) ^ tokens. */
#ifndef GPT_DESCRIBE_H
#define GPT_DESCRIBE_H

#include "cistern/cistern.h"
#include "client/gpt/model.h"
#include "client/gpt/options.h"

/* Cost of operator @number of @model for one micro-batch in each rank: what a job declares, and
 * what --describe writes. The device of @options need not be open. */
struct cst_operator_cost gpt_describe_cost(const struct gpt_options *options,
                                           const struct gpt_model *model, uint32_t number);

/* Write the model of @options as JSON to the file that --describe names. Statuses: CST_EIO,
 * CST_ENOMEM. */
int gpt_describe(const struct gpt_options *options, struct cst_err *err);

#endif
