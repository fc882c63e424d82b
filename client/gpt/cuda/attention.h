/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention on a GPU, forward and backward: it computes what gpt_attention and
 * gpt_attention_backward of client/gpt/layers.h compute, with bf16 inputs and outputs and fp32
 * sums. It is deterministic: there are no atomic operations on floats, and every launch of a shape
 * gives the same bits.
 *
 * Shapes (bf16, row-major, 16-byte aligned):
 *   - qkv, dqkv: n_seqs x context rows of 3 x width, with q, k and v side by side. The columns of a
 *     head begin at head x head_dim.
 *   - out, dout: n_seqs x context rows of width.
 *   - lse (fp32): for each (seq, head, position) the log of the sum of exponentials.
 *   - head_dim: a multiple of 16, at most 256. Any context is allowed.
 *
 * The functions enqueue launches and do not wait for the GPU. */
#ifndef GPT_CUDA_ATTENTION_H
#define GPT_CUDA_ATTENTION_H

#include "client/gpt/cuda/attention_args.h"
#include "client/gpt/layers.h"
#include "kernels/cuda/driver.h"

#define GPT_CUDA_MAX_HEAD_DIM 256

struct gpt_cuda_attention_kernels {
    const struct cst_cuda_driver *driver; /* borrowed */
    CUfunction prepare;                   /* kernel of the worker's module */
    /* Kernels of the module, by the widest head that they take. */
    CUfunction forward[GPT_ATTENTION_INSTANCES], dq[GPT_ATTENTION_INSTANCES],
        dkv[GPT_ATTENTION_INSTANCES];
};

/* Look up the kernels in @module (the worker's fatbinary) in the current context. They are valid as
 * long as the module. The statuses are those of cst_cuda_check. On failure *kernels is
 * unchanged. */
int gpt_cuda_attention_open(struct gpt_cuda_attention_kernels *kernels,
                            const struct cst_cuda_driver *driver, CUmodule module,
                            struct cst_err *err);

/* Bytes of device memory, 16-byte aligned, that gpt_cuda_attention_backward needs as scratch for
 * @shape. */
size_t gpt_cuda_attention_scratch(const struct gpt_attention_shape *shape);

/* Compute out and lse, the attention of qkv. CST_EUNSUPPORTED: the head_dim is not supported, or
 * the grid would be larger than a launch allows. Other statuses are those of cst_cuda_check. */
int gpt_cuda_attention(const struct gpt_cuda_attention_kernels *kernels, CUstream stream,
                       const struct gpt_attention_shape *shape, CUdeviceptr qkv, CUdeviceptr out,
                       CUdeviceptr lse, struct cst_err *err);

/* Compute dqkv, the gradient of the attention. All columns are overwritten. qkv, out and lse are
 * those of the forward pass. The statuses are those of gpt_cuda_attention. */
int gpt_cuda_attention_backward(const struct gpt_cuda_attention_kernels *kernels, CUstream stream,
                                const struct gpt_attention_shape *shape, CUdeviceptr qkv,
                                CUdeviceptr out, CUdeviceptr lse, CUdeviceptr dout,
                                CUdeviceptr dqkv, CUdeviceptr scratch, struct cst_err *err);

#endif
