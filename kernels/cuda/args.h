/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments and sizes that the CUDA kernels share with the code that launches them. The header is
 * valid in C, in CUDA and in C++ without CUDA's headers. */
#ifndef CST_CUDA_ARGS_H
#define CST_CUDA_ARGS_H

#include "kernels/math/update.h"

#include <stdbool.h>
#include <stdint.h>

#define CST_CUDA_MAX_SRC 64         /* Largest number of contributions to a reduction. */
#define CST_CUDA_TILE_ELEMS 4096    /* Equals CST_TILE_ELEMS. */
#define CST_CUDA_UPDATE_THREADS 256 /* Threads per tile in the update kernels. */
#define CST_CUDA_TILE_THREADS 128   /* Threads per tile in cst_reduce_kernel and cst_sum_kernel. */
/* Tiles per block in cst_reduce_kernel and cst_sum_kernel. Each half-warp of one warp adds up the
 * squares of one tile. */
#define CST_CUDA_BLOCK_TILES 2
#define CST_CUDA_NORM_THREADS 256 /* Threads of the only block of cst_norm_kernel. */
#define CST_CUDA_CAST_THREADS 256 /* Threads per block of the two cast kernels. */
#define CST_CUDA_CAST_ELEMS 4096  /* Elements per block of the two cast kernels. */

/* A tile: elements [start, start + n_elems) of the rows of a chunk. */
struct cst_cuda_tile {
    uint64_t start;   /* First element. */
    uint32_t n_elems; /* Number of elements, 1 to CST_TILE_ELEMS. */
    uint32_t span;    /* UPDATE: index into the scalars. */
    uint64_t number;  /* UPDATE: number of the tile in the table, for random numbers. */
    uint32_t keep;    /* UPDATE: 1 if the states are to stay as they are. */
    uint32_t pad;     /* Always 0. */
};

/* Arguments of the update kernels, passed by value. */
struct cst_cuda_update {
    struct cst_update_rows rows; /* Rows of the chunk. */
    uint64_t seed;               /* Seed of stochastic rounding. */
    uint64_t t;                  /* Step of the optimizer. */
    uint32_t optimizer;          /* enum cst_optimizer. */
    uint32_t pad;                /* Always 0. */
};

/* Arguments of cst_reduce_kernel and cst_sum_kernel, passed by value. */
struct cst_cuda_sources {
    /* Contributions in rank order. Each points to the first element of its row. */
    const uint16_t *v[CST_CUDA_MAX_SRC];
    uint32_t n; /* Number of contributions, 0 to CST_CUDA_MAX_SRC. */
};

#endif
