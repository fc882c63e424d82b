/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA kernels and those who launch them agree on. For C, for CUDA and for C++ without
 * CUDA's headers. */
#ifndef CST_CUDA_ARGS_H
#define CST_CUDA_ARGS_H

#include "kernels/update.h"

#include <stdbool.h>
#include <stdint.h>

#define CST_CUDA_MAX_SRC 64         /* contributions in a reduction */
#define CST_CUDA_TILE_ELEMS 4096    /* CST_TILE_ELEMS */
#define CST_CUDA_UPDATE_THREADS 256 /* threads per tile in the update kernels */
#define CST_CUDA_TILE_THREADS 128   /* threads per tile in cst_reduce_kernel */
#define CST_CUDA_BLOCK_TILES 2    /* tiles per block there: a half-warp each adds up the squares */
#define CST_CUDA_NORM_THREADS 256 /* threads of the one block of cst_norm_kernel */
#define CST_CUDA_CAST_THREADS 256 /* threads of a block of the two casts */
#define CST_CUDA_CAST_ELEMS 4096  /* elements that it converts */

/* A tile: elements [start, start + n_elems) of a chunk's rows. */
struct cst_cuda_tile {
    uint64_t start;   /* elements */
    uint32_t n_elems; /* 1..CST_TILE_ELEMS */
    uint32_t span;    /* UPDATE: index into the scalars */
    uint64_t number;  /* UPDATE: of the tile in the table, for random numbers */
    uint32_t keep;    /* UPDATE: 1: the states stay as they are */
    uint32_t pad;     /* 0 */
};

/* Arguments of the update kernels, by value. */
struct cst_cuda_update {
    struct cst_update_rows rows; /* of the chunk */
    uint64_t seed;               /* of stochastic rounding */
    uint64_t t;                  /* step of the optimizer */
    uint32_t optimizer;          /* enum cst_optimizer */
    uint32_t pad;                /* 0 */
};

/* Arguments of "cst_reduce_kernel", by value. */
struct cst_cuda_sources {
    const uint16_t *v[CST_CUDA_MAX_SRC]; /* in rank order; each points to the row's first element */
    uint32_t n;                          /* contributions, 0..CST_CUDA_MAX_SRC */
};

#endif
