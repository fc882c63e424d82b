/* SPDX-License-Identifier: Apache-2.0 */
/* Division of one allocation of device memory into arrays. A first round of the same calls without
 * memory counts the bytes. */
#ifndef GPT_CUDA_CARVER_H
#define GPT_CUDA_CARVER_H

#include "client/gpt/cuda/gpu.h"

#define GPT_CUDA_CARVE_ALIGN 256 /* bytes */

struct gpt_carver {
    CUdeviceptr base; /* 0: only count */
    size_t bytes;     /* bytes that were handed out so far */
};

/* Take the next @bytes. The result is aligned to GPT_CUDA_CARVE_ALIGN bytes if base is. */
static inline CUdeviceptr gpt_carve(struct gpt_carver *c, size_t bytes)
{
    const size_t at = c->bytes;

    c->bytes += (bytes + GPT_CUDA_CARVE_ALIGN - 1) / GPT_CUDA_CARVE_ALIGN * GPT_CUDA_CARVE_ALIGN;
    return c->base + at;
}

#endif
