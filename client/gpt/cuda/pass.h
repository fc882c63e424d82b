/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's row of client/gpt/pass.h. Operands, products and gradients of activations are bf16; the
 * residual stream, its gradient and all statistics fp32. Within an operator the parts of a step
 * (micro-batches) are computed one after the other, so that its weights are fetched once a step and
 * the gradients of the parts add up in the store's block. Nothing waits for the GPU but loss() and
 * logits(). */
#ifndef GPT_CUDA_PASS_H
#define GPT_CUDA_PASS_H

#include "client/gpt/cuda/gpu.h"
#include "client/gpt/options.h"
#include "client/gpt/pass.h"

/* @gpu is borrowed for the pass's life. CST_ENOMEM: with the bytes and what is free;
 * CST_EUNSUPPORTED: the width. */
int gpt_cuda_pass_open(struct gpt_pass **out, const struct gpt_gpu *gpu,
                       const struct gpt_options *options, const struct gpt_model *model,
                       size_t max_seqs, struct cst_err *err);

#endif
