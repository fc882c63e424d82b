/* SPDX-License-Identifier: Apache-2.0 */
/* The mixture of experts on a GPU: the counterpart of client/gpt/host_moe.h with the rows in device
 * memory. mixture.cu has the kernels between the products. The host must know how many rows each
 * expert receives. Therefore rows are sent only after a wait for the router's choices.
 *
 * Rows for experts of other ranks go, as bf16 and in the worker's stream, from GPU to GPU by the
 * all-to-all of a communicator of GPUs (client/gpt/exchange.h). Results return in the same way.
 * With one rank nothing leaves the GPU. All rows of a pass are transported at once, whatever the
 * parts of the other operators are. */
#ifndef GPT_CUDA_MOE_H
#define GPT_CUDA_MOE_H

#include "client/gpt/cuda/pass_inside.h"

/* Allocate the mixture's memory for passes of at most @max_rows rows. The caller frees it with
 * gpt_cuda_moe_close, which allows NULL. CST_ENOMEM: the text gives the bytes. */
int gpt_cuda_moe_open(struct gpt_cuda_moe **out, const struct gpt_gpu *gpu,
                      const struct gpt_model *model, size_t max_rows, struct cst_err *err);
void gpt_cuda_moe_close(struct gpt_cuda_moe *moe);

/* Begin a pass. @comms connect all ranks, and are borrowed. NULL: this rank has all experts and no
 * peers. */
void gpt_cuda_moe_begin(struct gpt_cuda_moe *moe, struct gpt_exchange_comms comms);

/* Wait until the stream has done the last transport of rows. The statuses are those of
 * cst_comm_wait. */
int gpt_cuda_moe_end(struct gpt_cuda_moe *moe, struct cst_err *err);

/* Transport of rows. Sending runs before a block's first expert in the direction of the pass, and
 * combine runs after its last expert. CST_EPEERDIED, CST_ENOMEM, CST_EGPU. */
int gpt_cuda_moe_send_rows(const struct gpt_cuda_pass *p, uint32_t layer, struct cst_err *err);
int gpt_cuda_moe_combine(const struct gpt_cuda_pass *p, uint32_t layer, struct cst_err *err);
int gpt_cuda_moe_send_rows_backward(const struct gpt_cuda_pass *p, uint32_t layer,
                                    struct cst_err *err);
int gpt_cuda_moe_combine_backward(const struct gpt_cuda_pass *p, uint32_t layer,
                                  struct cst_err *err);

/* After sending: true where this rank runs the expert @op, because the rank holds the expert and
 * rows chose it. */
bool gpt_cuda_moe_runs(const struct gpt_cuda_pass *p, const struct gpt_operator *op);

/* The operators of a mixture, as gpt_cuda_fn (pass_inside.h). */
gpt_cuda_fn gpt_cuda_op_router, gpt_cuda_op_expert, gpt_cuda_op_router_backward,
    gpt_cuda_op_expert_backward;

#endif
