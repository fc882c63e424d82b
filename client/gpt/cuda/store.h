/* SPDX-License-Identifier: Apache-2.0 */
/* All states of one rank in GPU memory: --store=local on a GPU, the yardstick for what the daemon
 * costs. The arithmetic is the daemon's (kernels/cuda/kernels.h, offload/clip.h) on the same layout
 * as the local store of the host. */
#ifndef GPT_CUDA_STORE_H
#define GPT_CUDA_STORE_H

#include "client/gpt/cuda/gpu.h"
#include "client/gpt/store.h"

/* Memory for the states of @model, zeroed; both are borrowed for the store's life. ops->close
 * frees. CST_ENOMEM with the bytes. */
int gpt_cuda_store_open(struct gpt_store **out, const struct gpt_gpu *gpu,
                        const struct gpt_model *model, struct cst_err *err);

/* gpt_store_read_open with the weights in GPU memory. */
int gpt_cuda_view_open(struct gpt_store **out, const struct gpt_gpu *gpu, struct gpt_store *from,
                       const struct gpt_model *model, struct cst_err *err);

#endif
