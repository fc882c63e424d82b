/* SPDX-License-Identifier: Apache-2.0 */
/* What the attention kernels and those who launch them agree on. For C, for CUDA and for C++
 * without CUDA's headers. */
#ifndef GPT_CUDA_ATTENTION_ARGS_H
#define GPT_CUDA_ATTENTION_ARGS_H

#include <stdint.h>

/* Instances, by the widest head that each takes; a narrower one is filled up with zeros in shared
 * memory. K(dim, tiles of 16 rows per warp, warps, columns per step, blocks per multiprocessor that
 * the registers must allow, parts). Rows are queries in forward and dq, keys in dkv; columns the
 * other. Parts: 2 where dk and dv are made by a block each, as both do not fit in the registers.
 * Why these: ATTENTION.md. */
#define GPT_ATTENTION_FORWARD(K)                                                                   \
    K(32, 1, 4, 32, 4, 1)                                                                          \
    K(64, 2, 4, 64, 3, 1)                                                                          \
    K(128, 2, 4, 64, 2, 1)                                                                         \
    K(256, 1, 8, 32, 1, 1)
#define GPT_ATTENTION_DQ(K)                                                                        \
    K(32, 1, 4, 32, 4, 1)                                                                          \
    K(64, 2, 4, 64, 2, 1)                                                                          \
    K(128, 1, 8, 64, 1, 1)                                                                         \
    K(256, 1, 4, 32, 1, 1)
#define GPT_ATTENTION_DKV(K)                                                                       \
    K(32, 1, 4, 32, 4, 1)                                                                          \
    K(64, 2, 4, 32, 2, 1)                                                                          \
    K(128, 1, 8, 64, 1, 1)                                                                         \
    K(256, 1, 4, 32, 1, 2)

#define GPT_ATTENTION_INSTANCES 4      /* K's in each of the lists */
#define GPT_ATTENTION_PAD 128          /* rows of scratch are a multiple: no tile reaches beyond */
#define GPT_ATTENTION_PREPARE 16       /* positions per block of the prepare kernel */
#define GPT_ATTENTION_PREPARE_LANES 16 /* threads for each of them */

/* Bytes of dynamic shared memory. */
#define GPT_ATTENTION_FORWARD_SHARED(dim, tiles, warps, columns)                                   \
    ((16 * (tiles) * (warps) + 2 * (columns)) * 2 * (dim))
#define GPT_ATTENTION_DQ_SHARED(dim, tiles, warps, columns)                                        \
    ((2 * 16 * (tiles) * (warps) + 4 * (columns)) * 2 * (dim))
#define GPT_ATTENTION_DKV_SHARED(dim, tiles, warps, columns)                                       \
    (GPT_ATTENTION_DQ_SHARED(dim, tiles, warps, columns) + 4 * (columns)*4)

/* By value, of every kernel. */
struct gpt_attention_sizes {
    uint32_t context; /* positions of a sequence */
    uint32_t padded;  /* those of a row of scratch */
    uint32_t n_heads; /* per sequence */
    uint32_t dim;     /* elements of a head */
    uint32_t n_tiles; /* blocks per sequence and head */
    float scale;      /* of the scores: 1 / sqrt(dim) */
    float scale_log2; /* the same x log2(e) */
};

#endif
