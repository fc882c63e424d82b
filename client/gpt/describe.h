/* SPDX-License-Identifier: Apache-2.0 */
/* What an operator costs, for plans: hints to the daemon, and the model as JSON for `cistern plan`
 * (client/cli/model_json.h has the schema).
 *
 * Operations of the forward pass: 2 m n k of each matrix product (so that a step has the familiar 6
 * per parameter and token: Kaplan et al. 2020, section 2.1), and of causal attention 2 (context +
 * 1) d per token, half of the full square (Dao et al. 2022). A backward pass has twice as many.
 * Layer norms, GELU, softmax and biases are not counted. Bytes kept: those of the host device
 * (host_memory.c); a GPU keeps about as much. An expert: of its even share of the tokens of all
 * ranks; expected uses are the probability that at least one token comes where each picks top_k of
 * them at random, 1 - (1 - top_k / experts) ^ tokens. */
#ifndef GPT_DESCRIBE_H
#define GPT_DESCRIBE_H

#include "cistern/cistern.h"
#include "client/gpt/model.h"

/* Of a pass over @n_seqs sequences in each rank. @bf16: operands of products. */
struct cst_operator_cost gpt_describe_cost(const struct gpt_model *model,
                                           const struct gpt_operator *op, size_t n_seqs, bool bf16);

/* Write the model of @options to --describe. CST_EIO, CST_ENOMEM. */
int gpt_describe(const struct gpt_options *options, struct cst_err *err);

#endif
