/* SPDX-License-Identifier: Apache-2.0 */
/* All states of one rank in GPU memory, for --store=local on a GPU. It shows by comparison what the
 * daemon costs. The arithmetic is the daemon's (kernels/cuda/kernels.h, offload/base/clip.h). The
 * layout is that of the host's local store. */
#ifndef GPT_CUDA_STORE_H
#define GPT_CUDA_STORE_H

#include "client/gpt/cuda/gpu.h"
#include "client/gpt/store.h"

/* Allocate the states of @model as zeros. @gpu and @model are borrowed until ops->close, which
 * frees the store. CST_ENOMEM: the text gives the bytes. */
int gpt_cuda_store_open(struct gpt_store **out, const struct gpt_gpu *gpu,
                        const struct gpt_model *model, struct cst_err *err);

/* As gpt_store_read_open, with the weights in GPU memory. */
int gpt_cuda_view_open(struct gpt_store **out, const struct gpt_gpu *gpu, struct gpt_store *from,
                       const struct gpt_model *model, struct cst_err *err);

#endif
