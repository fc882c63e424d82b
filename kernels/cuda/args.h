/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments and sizes that the CUDA kernels share with the code that launches them. The header is
 * valid in C, in CUDA and in C++ without CUDA's headers. */
#ifndef CST_CUDA_ARGS_H
#define CST_CUDA_ARGS_H

#include "kernels/math/update.h"
#include "proto/muon.h"

#include <stdbool.h>
#include <stdint.h>

#define CST_CUDA_MAX_SRC 64         /* Largest number of contributions to a reduction. */
#define CST_CUDA_TILE_ELEMS 4096    /* Equals CST_TILE_ELEMS. */
#define CST_CUDA_UPDATE_THREADS 256 /* Threads per tile in the update kernels. */
#define CST_CUDA_TILE_THREADS 128   /* Threads per tile in cst_reduce_kernel and cst_sum_kernel. */
/* Tiles per block in cst_reduce_kernel and cst_sum_kernel. Each half-warp of one warp adds up the
 * squares of one tile. */
#define CST_CUDA_BLOCK_TILES 2
#define CST_CUDA_NORM_THREADS 256  /* Threads of the only block of cst_norm_kernel. */
#define CST_CUDA_CAST_THREADS 256  /* Threads per block of the two cast kernels. */
#define CST_CUDA_CAST_ELEMS 4096   /* Elements per block of the two cast kernels. */
#define CST_CUDA_TOTAL_THREADS 256 /* Threads per block of the two total kernels. */
#define CST_CUDA_TOTAL_BYTES 16384 /* Bytes of each row per block of the two total kernels. */
#define CST_CUDA_MUON_THREADS 256  /* Threads per block of the kernels of muon.cu. */
#define CST_CUDA_PRODUCT_SIDE 128  /* Rows and columns of a product that a block makes. */
/* Blocks of cst_muon_product_kernel for each tile of the processor. */
#define CST_CUDA_PRODUCT_BLOCKS 4

/* A tile: elements [start, start + n_elems) of the rows of a chunk. */
struct cst_cuda_tile {
    uint64_t start;   /* First element. */
    uint32_t n_elems; /* Number of elements, 1 to CST_TILE_ELEMS. */
    uint32_t span;    /* UPDATE: index into the scalars. */
    uint64_t number;  /* UPDATE: number of the tile in the table, for random numbers. */
    uint32_t keep;    /* UPDATE: 1 if the states are to stay as they are. */
    uint32_t pad;     /* Always 0. */
    /* UPDATE of matrices: the directions of the tile, which the update reads and cst_direct_kernel
     * writes, from its first element on. They have whole groups. Otherwise NULL. */
    uint16_t *direction;
};

/* Arguments of the update kernels, passed by value. */
struct cst_cuda_update {
    struct cst_update_rows rows; /* Rows of the chunk. */
    uint64_t seed;               /* Seed of stochastic rounding. */
    uint64_t t;                  /* Step of the optimizer. */
    uint32_t optimizer;          /* enum cst_optimizer. */
    uint32_t n_moments;          /* That of the optimizer; cst_cuda_update sets it. */
};

/* Arguments of cst_muon_product_kernel, passed by value: the products of several matrices, of which
 * the pointers are those of the first one. */
struct cst_cuda_product {
    const uint16_t *a, *b; /* Element [i][j] of a is a[i * a_row + j * a_column]; b likewise. */
    const uint16_t *add;   /* What is added, with the strides of the result. NULL: nothing. */
    uint16_t *out;         /* The result: element [i][j] is out[i * columns + j]. */
    uint64_t a_row, a_column, b_row, b_column;
    uint64_t a_step, b_step, out_step; /* Elements from one matrix to the next. */
    uint64_t rows, columns, depth;     /* Of the result, and of the sums. */
    uint64_t tiles;                    /* Tiles of CST_MUON_TILE that each matrix has. */
    uint64_t first;                    /* Number of the first tile of this launch. */
    float alpha, beta;
    uint32_t symmetric; /* 1: the tiles are those on and below the diagonal. */
    uint32_t pad;       /* Always 0. */
};

/* Arguments of cst_muon_sums_kernel and cst_muon_scale_kernel, passed by value. */
struct cst_cuda_muon_norm {
    uint16_t *values;         /* Consecutive matrices. */
    double *sums;             /* Sums of squares of CST_MUON_SUM_ELEMS elements each. */
    uint64_t n_elems, n_sums; /* Of a matrix. */
    uint64_t first;           /* Number of the first sum of this launch. */
    float least;              /* Smallest divisor. */
    uint32_t pad;             /* Always 0. */
};

/* Arguments of the total kernels, passed by value. Elements are fp32 or bf16. */
struct cst_cuda_total {
    const void *src[CST_CUDA_MAX_SRC]; /* Rows in rank order. */
    void *dst;                         /* May be one of them. */
    uint64_t n;                        /* Number of elements. */
    uint32_t n_src;                    /* Number of rows, 1 to CST_CUDA_MAX_SRC. */
    uint32_t pad;                      /* Always 0. */
};

/* Arguments of cst_reduce_kernel and cst_sum_kernel, passed by value. */
struct cst_cuda_sources {
    /* Contributions in rank order. Each points to the first element of its row. */
    const uint16_t *v[CST_CUDA_MAX_SRC];
    uint32_t n; /* Number of contributions, 0 to CST_CUDA_MAX_SRC. */
};

#endif
