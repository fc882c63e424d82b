/* SPDX-License-Identifier: Apache-2.0 */
/* The mixture of experts on the processor: router, experts, and the way of the rows to the experts'
 * ranks and back (exchange.h). In each block, forwards:
 *
 *   router      every rank: choose for its rows
 *   dispatch    publish rows and choices; meet
 *   experts     each by its rank, on the rows that chose it, in order of the ranks; results into
 *               the region of the rank that the row is from
 *   combine     meet; residual stream += gate x result, over the row's choices in their order
 *
 * and backwards the same with gradients, from combine to router. An expert that nobody chose is
 * left out of both. There is no capacity, so every row is computed, and which rank does it does not
 * show in the order of any sum. */
#ifndef GPT_HOST_MOE_H
#define GPT_HOST_MOE_H

#include "client/gpt/exchange.h"
#include "client/gpt/pass_host.h"

/* For passes of at most @max_rows rows. CST_ENOMEM. NULL may be closed. */
int gpt_moe_open(struct gpt_moe **out, const struct gpt_model *model, size_t max_rows, bool bf16,
                 struct cst_err *err);
void gpt_moe_close(struct gpt_moe *moe);

/* Begin a pass: @exchange of all ranks, borrowed and joined; NULL: this rank has all experts and no
 * peers. CST_ENOMEM. */
int gpt_moe_begin(struct gpt_moe *moe, struct gpt_exchange *exchange, struct cst_err *err);

/* Bytes of a rank's region in the exchange, for passes of at most @rows rows. */
size_t gpt_moe_region_bytes(const struct gpt_model *model, size_t rows);

/* Bytes that a block keeps for the way back, with its router and with an expert of @rows rows. */
size_t gpt_moe_layer_bytes(const struct gpt_model *model, size_t rows);
size_t gpt_moe_expert_bytes(const struct gpt_model *model, size_t rows, size_t operand);

/* Between the router and the first expert of a block, between its last expert and what follows;
 * backwards likewise. CST_EPEERDIED, CST_ENOMEM. */
int gpt_moe_dispatch(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err);
int gpt_moe_combine(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err);
int gpt_moe_dispatch_backward(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err);
int gpt_moe_combine_backward(struct gpt_pass_host *p, uint32_t layer, struct cst_err *err);

/* After dispatch: true where this rank runs the expert, because it is its own and has rows. */
bool gpt_moe_runs(const struct gpt_pass_host *p, const struct gpt_operator *op);

/* The operators, as gpt_host_fn. */
int gpt_host_router(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                    struct cst_err *err);
int gpt_host_expert(struct gpt_pass_host *p, const struct gpt_operator *op, const struct cst_io *io,
                    struct cst_err *err);
int gpt_host_router_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                             const struct cst_io *io, struct cst_err *err);
int gpt_host_expert_backward(struct gpt_pass_host *p, const struct gpt_operator *op,
                             const struct cst_io *io, struct cst_err *err);

#endif
