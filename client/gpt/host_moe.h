/* SPDX-License-Identifier: Apache-2.0 */
/* The mixture of experts on the host processor: the router, the experts, and the transport of rows
 * to the experts' ranks and back (exchange.h). Forward, in each block:
 *
 *   router      every rank chooses experts for its own rows
 *   send        every rank sends its rows to the ranks of the experts
 *   experts     the rank of each expert computes the rows that chose the expert, in order of the
 *               ranks
 *   combine     the results return; residual stream += gate x result, over a row's choices in their
 *               order
 *
 * The literature calls the second one dispatch. The backward pass does the same with gradients,
 * from combine to router. An expert that no row chose is left out of both passes. Experts have no
 * capacity limit: every row is computed. The order of each sum is independent of the rank that
 * computes it. */
#ifndef GPT_HOST_MOE_H
#define GPT_HOST_MOE_H

#include "client/gpt/exchange.h"
#include "client/gpt/pass_host.h"

/* Open the mixture's memory for passes of at most @max_rows rows. The caller frees it with
 * gpt_moe_close, which allows NULL. CST_ENOMEM. */
int gpt_moe_open(struct gpt_moe **out, const struct gpt_model *model, size_t max_rows, bool bf16,
                 struct cst_err *err);
void gpt_moe_close(struct gpt_moe *moe);

/* Begin a pass. @comms connect all ranks, and are borrowed. NULL: this rank has all experts and no
 * peers. */
void gpt_moe_begin(struct gpt_moe *moe, struct gpt_exchange_comms comms);

/* Bytes that a block keeps for the backward pass: with its router, and with an expert that received
 * @rows rows. @operand: bytes of an operand's element. */
size_t gpt_moe_layer_bytes(const struct gpt_model *model, size_t rows);
size_t gpt_moe_expert_bytes(const struct gpt_model *model, size_t rows, size_t operand);

/* Transport of rows. Sending runs before a block's first expert in the direction of the pass, and
 * combine runs after its last expert. CST_EPEERDIED, CST_ENOMEM. */
int gpt_moe_send_rows(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err);
int gpt_moe_combine(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err);
int gpt_moe_send_rows_backward(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err);
int gpt_moe_combine_backward(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err);

/* After sending: true where this rank runs the expert @op, because the rank holds the expert and
 * rows chose it. */
bool gpt_moe_runs(const struct gpt_pass_host *p, const struct gpt_operator *op);

/* The operators of a mixture, as gpt_host_fn (pass_host.h). */
gpt_host_fn gpt_host_router, gpt_host_expert, gpt_host_router_backward, gpt_host_expert_backward;

#endif
