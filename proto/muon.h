/* SPDX-License-Identifier: Apache-2.0 */
/* Muon: which matrices a tensor has, and the memory that their orthogonalisation takes. The layout
 * reserves this memory, the scratch, once per node, and the node's engine uses it for one chunk
 * after the other. Each buffer of a device reservation has one, too (offload/layout/buffers.h). A
 * scratch holds the matrices of one batch, which is one tensor or more of a chunk:
 *
 *   +--------+-------------------------------------------+---------------------+-----
 *   | header | tensor 0: values | values | Grams | sums  | tensor 1: values .. | ...
 *   +--------+-------------------------------------------+---------------------+-----
 *
 * The two arrays of bf16 values have the tensor's elements each: one is computed from the other. Of
 * the two Gram matrices per matrix, one is X X^T (or X^T X, the smaller one), and the other the
 * polynomial of it. Formulas: kernels/math/muon.h. */
#ifndef CST_MUON_H
#define CST_MUON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_MUON_MOMENTUM 0.95 /* beta1 of the tensors that Muon updates. */
/* A scratch is large enough for several small tensors, so that all threads of an engine have work.
 * It is smaller if all chunks are. */
#define CST_MUON_SCRATCH_BYTES (64ull << 20)
#define CST_MUON_ITERATIONS 5 /* Newton-Schulz iterations (kernels/math/muon.h). */
/* Most rows and columns of the tiles in which products are made. Of a symmetric product, the tiles
 * on and below the diagonal are made. */
#define CST_MUON_TILE 256
/* Elements whose squares are added in one piece of work. */
#define CST_MUON_SUM_ELEMS (1u << 16)

/* Start of a scratch. */
struct cst_muon_header {
    /* Mark of the update for which the directions of the batch are complete; 0: they are not
     * complete. Written last. */
    uint64_t mark;
    uint32_t chunk; /* Index of the chunk in the table. */
    uint32_t batch; /* Number of the batch's first span within the chunk. */
    uint64_t pad[6];
};

/* Sizes of the parts of a tensor in the scratch. */
struct cst_muon_sizes {
    uint64_t n_matrices;
    uint64_t values_bytes; /* One of two arrays. */
    uint64_t gram_bytes;   /* One Gram matrix; there are two for each matrix. */
    uint64_t n_sums;       /* Partial sums of squares, of type double, for each matrix. */
    uint64_t sums_bytes;   /* Those of all matrices. */
    uint64_t total_bytes;
};

static inline uint64_t cst_muon_align(uint64_t bytes)
{
    return (bytes + 63) & ~UINT64_C(63);
}

/* Returns whether a tensor of this shape can be updated by Muon. *rows and *columns receive those
 * of each of its matrices. */
static inline bool cst_muon_shape(const int64_t *shape, uint32_t n_dims, uint32_t *rows,
                                  uint32_t *columns)
{
    if ((n_dims != 2 && n_dims != 3) || shape[n_dims - 2] > UINT32_MAX ||
        shape[n_dims - 1] > UINT32_MAX) {
        return false;
    }
    *rows = (uint32_t)shape[n_dims - 2];
    *columns = (uint32_t)shape[n_dims - 1];
    return true;
}

/* Returns the sizes of a tensor of @n_elems elements, all of them in matrices of @rows and
 * @columns, which are not 0. */
static inline struct cst_muon_sizes cst_muon_sizes(uint64_t n_elems, uint32_t rows,
                                                   uint32_t columns)
{
    uint64_t matrix = (uint64_t)rows * columns, side = rows < columns ? rows : columns;
    struct cst_muon_sizes s;

    s.n_matrices = n_elems / matrix;
    s.values_bytes = cst_muon_align(2 * n_elems);
    s.gram_bytes = cst_muon_align(2 * side * side);
    s.n_sums = (matrix + CST_MUON_SUM_ELEMS - 1) / CST_MUON_SUM_ELEMS;
    s.sums_bytes = cst_muon_align(s.n_matrices * s.n_sums * sizeof(double));
    s.total_bytes = 2 * s.values_bytes + 2 * s.n_matrices * s.gram_bytes + s.sums_bytes;
    return s;
}

/* The products of an iteration, in their order. */
enum cst_muon_product { CST_MUON_GRAM, CST_MUON_POLYNOMIAL, CST_MUON_NEXT, CST_MUON_PRODUCTS };

static inline uint64_t cst_muon_tiles(uint32_t n)
{
    return ((uint64_t)n + CST_MUON_TILE - 1) / CST_MUON_TILE;
}

/* Returns the tiles of @product that are made, for a matrix of @rows and @columns. */
static inline uint64_t cst_muon_product_tiles(enum cst_muon_product product, uint32_t rows,
                                              uint32_t columns)
{
    uint64_t across = cst_muon_tiles(rows < columns ? rows : columns);

    return product == CST_MUON_NEXT ? cst_muon_tiles(rows) * cst_muon_tiles(columns)
                                    : across * (across + 1) / 2;
}

/* Returns the elements in the tiles on and below the diagonal of a matrix of @side rows. */
static inline double cst_muon_symmetric_elems(uint32_t side)
{
    double tiles = side / CST_MUON_TILE, rest = side % CST_MUON_TILE;

    return (double)CST_MUON_TILE * CST_MUON_TILE * tiles * (tiles + 1) / 2 +
           rest * tiles * CST_MUON_TILE + rest * rest;
}

/* Returns the floating-point operations of @product. A multiplication with its addition counts as
 * two. */
static inline double cst_muon_product_flops(enum cst_muon_product product, uint32_t rows,
                                            uint32_t columns)
{
    uint32_t side = rows < columns ? rows : columns, other = rows < columns ? columns : rows;
    double elems =
        product == CST_MUON_NEXT ? (double)rows * columns : cst_muon_symmetric_elems(side);

    return 2 * elems * (product == CST_MUON_GRAM ? other : side);
}

/* Returns the floating-point operations of all products of an update, for the tensor of
 * cst_muon_sizes. */
static inline double cst_muon_flops(uint64_t n_elems, uint32_t rows, uint32_t columns)
{
    double sum = 0;

    for (int i = 0; i < CST_MUON_PRODUCTS; i++) {
        sum += cst_muon_product_flops((enum cst_muon_product)i, rows, columns);
    }
    return CST_MUON_ITERATIONS * sum * ((double)n_elems / ((double)rows * columns));
}

#endif
