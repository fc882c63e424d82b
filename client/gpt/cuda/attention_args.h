/* SPDX-License-Identifier: Apache-2.0 */
/* Constants and types shared by the attention kernels and the code that launches them. The file is
 * for C, for CUDA and for C++ without CUDA's headers. */
#ifndef GPT_CUDA_ATTENTION_ARGS_H
#define GPT_CUDA_ATTENTION_ARGS_H

#include <stdint.h>

/* Instances of the kernels, by the widest head that each takes. A narrower head is padded with
 * zeros in shared memory. ATTENTION.md gives the reasons for these parameters.
 *
 * K(dim, tiles, warps, columns, blocks, parts):
 *   - tiles: tiles of 16 rows per warp
 *   - columns: columns per step
 *   - blocks: blocks per multiprocessor that the registers must allow
 *   - parts: 2 where one block computes dk and another dv, because both do not fit into the
 *     registers
 *
 * Rows are queries in forward and dq, and keys in dkv. Columns are keys in forward and dq, and
 * queries in dkv. */
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

#define GPT_ATTENTION_INSTANCES 4 /* number of K's in each of the lists */
/* Rows of scratch have a multiple of this number of positions: no tile reaches beyond a row. */
#define GPT_ATTENTION_PAD 128
#define GPT_ATTENTION_PREPARE 16       /* positions per block of the prepare kernel */
#define GPT_ATTENTION_PREPARE_LANES 16 /* threads per position of the prepare kernel */

/* Bytes of dynamic shared memory of an instance. */
#define GPT_ATTENTION_FORWARD_SHARED(dim, tiles, warps, columns)                                   \
    ((16 * (tiles) * (warps) + 2 * (columns)) * 2 * (dim))
#define GPT_ATTENTION_DQ_SHARED(dim, tiles, warps, columns)                                        \
    ((2 * 16 * (tiles) * (warps) + 4 * (columns)) * 2 * (dim))
#define GPT_ATTENTION_DKV_SHARED(dim, tiles, warps, columns)                                       \
    (GPT_ATTENTION_DQ_SHARED(dim, tiles, warps, columns) + 4 * (columns)*4)

/* Argument of every kernel, passed by value. */
struct gpt_attention_sizes {
    uint32_t context; /* positions of a sequence */
    uint32_t padded;  /* positions of a row of scratch, padding included */
    uint32_t n_heads; /* heads per sequence */
    uint32_t dim;     /* elements of a head */
    uint32_t n_tiles; /* blocks per sequence and head */
    float scale;      /* factor on the scores: 1 / sqrt(dim) */
    float scale_log2; /* scale x log2(e) */
};

#endif
