/* SPDX-License-Identifier: Apache-2.0 */
/* The mixture of experts on a GPU: client/gpt/host_moe.h with the rows in device memory. Between
 * the products stand the kernels of mixture.cu; how many rows each expert gets the host must know,
 * so that a dispatch waits for the router's choices.
 *
 * Rows for experts of other ranks go down into the exchange's memory (client/gpt/exchange.h), and
 * up again on the other side, in bf16 and by the worker's stream; results come back likewise. With
 * one rank nothing leaves the GPU. All rows of a pass go at once, whatever parts the other
 * operators are computed in. */
#ifndef GPT_CUDA_MOE_H
#define GPT_CUDA_MOE_H

#include "client/gpt/cuda/pass_inside.h"

/* For passes of at most @max_rows rows. CST_ENOMEM with the bytes. NULL may be closed. */
int gpt_cuda_moe_open(struct gpt_cuda_moe **out, const struct gpt_gpu *gpu,
                      const struct gpt_model *model, size_t max_rows, struct cst_err *err);
void gpt_cuda_moe_close(struct gpt_cuda_moe *moe);

/* Bytes of a rank's region in the exchange, for passes of at most @rows rows; never those of the
 * host's for as many, so that ranks on either do not take the other's for theirs. */
size_t gpt_cuda_moe_region_bytes(const struct gpt_model *model, size_t rows);

/* Begin a pass with the weights of @store: @exchange of all ranks, borrowed and joined; NULL: this
 * rank has all experts and no peers. */
void gpt_cuda_moe_begin(struct gpt_cuda_moe *moe, struct gpt_store *store,
                        struct gpt_exchange *exchange);

/* Between the router and the first expert of a block, between its last expert and what follows;
 * backwards likewise. CST_EPEERDIED, CST_ENOMEM, CST_EGPU. */
int gpt_cuda_moe_dispatch(const struct gpt_cuda_pass *p, uint32_t layer, struct cst_err *err);
int gpt_cuda_moe_combine(const struct gpt_cuda_pass *p, uint32_t layer, struct cst_err *err);
int gpt_cuda_moe_dispatch_backward(const struct gpt_cuda_pass *p, uint32_t layer,
                                   struct cst_err *err);
int gpt_cuda_moe_combine_backward(const struct gpt_cuda_pass *p, uint32_t layer,
                                  struct cst_err *err);

/* After dispatch: true where this rank runs the expert, because it is its own and has rows. */
bool gpt_cuda_moe_runs(const struct gpt_cuda_pass *p, const struct gpt_operator *op);

/* The operators, as gpt_cuda_fn. */
int gpt_cuda_op_router(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                       const struct gpt_cuda_part *part, const struct cst_io *io,
                       struct cst_err *err);
int gpt_cuda_op_expert(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                       const struct gpt_cuda_part *part, const struct cst_io *io,
                       struct cst_err *err);
int gpt_cuda_op_router_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                                const struct gpt_cuda_part *part, const struct cst_io *io,
                                struct cst_err *err);
int gpt_cuda_op_expert_backward(const struct gpt_cuda_pass *p, const struct gpt_operator *op,
                                const struct gpt_cuda_part *part, const struct cst_io *io,
                                struct cst_err *err);

#endif
