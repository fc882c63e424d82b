/* SPDX-License-Identifier: Apache-2.0 */
/* The implementation of client/gpt/pass.h on a GPU. Operands, products and gradients of activations
 * are bf16. The residual stream, its gradient and all statistics are fp32. Each operator computes
 * the parts of a step (micro-batches) one after the other. Therefore its weights are fetched once
 * per step, and the gradients of the parts are added up in the store's block. In a dense model only
 * loss() and logits() wait for the GPU. */
#ifndef GPT_CUDA_PASS_H
#define GPT_CUDA_PASS_H

#include "client/gpt/cuda/activations.h"
#include "client/gpt/options.h"
#include "client/gpt/pass.h"

/* Number of passes of a step. Micro-batches are parts of one pass, unless workers share them out.
 */
uint32_t gpt_cuda_passes(const struct gpt_options *options);

/* The memory of a pass. */
struct gpt_activation_size gpt_cuda_pass_size(const struct gpt_options *options,
                                              const struct gpt_model *model);

/* Open a pass on @gpu, which is borrowed until the pass is closed. CST_ENOMEM: the text gives the
 * bytes and the free memory. CST_EUNSUPPORTED: the model is too wide. Other statuses are those of
 * cst_cuda_check. */
int gpt_cuda_pass_open(struct gpt_pass **out, const struct gpt_gpu *gpu,
                       const struct gpt_options *options, const struct gpt_model *model,
                       struct cst_err *err);

#endif
