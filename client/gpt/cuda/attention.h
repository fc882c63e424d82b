/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention on a GPU, forward and backward: what gpt_attention and gpt_attention_backward of
 * client/gpt/layers.h compute, with bf16 in and out and fp32 sums. Deterministic: no atomics on
 * floats; every launch of the same shape gives the same bits.
 *
 * Shapes (bf16, row-major, 16-byte aligned): qkv, dqkv: n_seqs x context rows of 3 x width, q, k, v
 * side by side, a head's columns at head x head_dim; out, dout: rows of width. lse (fp32): per
 * (seq, head, position) the log of the sum of exponentials. head_dim: a multiple of 16, at most
 * 256; any context. Launches only: nothing here waits for the GPU. */
#ifndef GPT_CUDA_ATTENTION_H
#define GPT_CUDA_ATTENTION_H

#include "client/gpt/cuda/attention_args.h"
#include "client/gpt/layers.h"
#include "kernels/cuda/driver.h"

#define GPT_CUDA_MAX_HEAD_DIM 256

struct gpt_cuda_attention_kernels {
    const struct cst_cuda_driver *driver; /* borrowed */
    CUfunction prepare;                   /* of the module */
    CUfunction forward[GPT_ATTENTION_INSTANCES], dq[GPT_ATTENTION_INSTANCES],
        dkv[GPT_ATTENTION_INSTANCES]; /* of it, by width of a head */
};

/* Look the kernels up in @module (the worker's fatbinary), in the context that is current now; they
 * live as long as it does. Statuses of cst_cuda_check; *kernels untouched on failure. */
int gpt_cuda_attention_open(struct gpt_cuda_attention_kernels *kernels,
                            const struct cst_cuda_driver *driver, CUmodule module,
                            struct cst_err *err);

/* Bytes of device memory, 16-byte aligned, that _backward wants as scratch for @shape. */
size_t gpt_cuda_attention_scratch(const struct gpt_attention_shape *shape);

/* out, lse := attention of qkv. CST_EUNSUPPORTED: head_dim, or more than a launch has; statuses of
 * cst_cuda_check. */
int gpt_cuda_attention(const struct gpt_cuda_attention_kernels *kernels, CUstream stream,
                       const struct gpt_attention_shape *shape, CUdeviceptr qkv, CUdeviceptr out,
                       CUdeviceptr lse, struct cst_err *err);

/* dqkv := its gradient, all columns written. qkv, out and lse are those of the forward pass. */
int gpt_cuda_attention_backward(const struct gpt_cuda_attention_kernels *kernels, CUstream stream,
                                const struct gpt_attention_shape *shape, CUdeviceptr qkv,
                                CUdeviceptr out, CUdeviceptr lse, CUdeviceptr dout,
                                CUdeviceptr dqkv, CUdeviceptr scratch, struct cst_err *err);

#endif
