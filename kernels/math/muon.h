/* SPDX-License-Identifier: Apache-2.0 */
/* Muon: the directions of matrices are orthogonalised before a chunk is updated. Momentum, decay
 * and step are those of torch.optim.Muon (PyTorch 2.9) with nesterov and adjust_lr_fn
 * "match_rms_adamw", after Keller Jordan et al.: Muon, 2024. For each matrix X of R rows and C
 * columns, with n = min(R, C):
 *
 *   X = directions (kernels/math/product.h)                  bf16, R x C
 *   X = X / max(norm(X), 1e-7)                               Frobenius norm, rounded to bf16; a NaN
 *                                                            becomes CST_UPDATE_NAN
 *   five times (a Newton-Schulz iteration of degree five):
 *       G = X X^T if R <= C, else X^T X                      n x n
 *       T = b G + c G G                                      n x n
 *       X = a X + T X if R <= C, else a X + X T              a, b, c = 3.4445, -4.7750, 2.0315
 *   the update of each tile: o = X (kernels/math/update.h)
 *
 * Every product is rounded to bf16. G and T are symmetric, therefore the tiles on one side of the
 * diagonal are computed, and the others are their mirror images. In PyTorch both sides are
 * computed, and products are added in another order.
 *
 * Processors and GPUs have the same bits (kernels/math/product.h), hence a node or any accelerator
 * can update a chunk, as it suits them, in each step. cuBLASLt would be faster, because it uses
 * tensor cores: 15 times as many operations per second as fp32 has on an A100. But how tensor cores
 * add is not specified, and it differs between architectures and between versions of the library.
 * The result of a job would then depend on the GPU, and on which chunks it updates; and engines,
 * which are small and are restarted, would load a library of 200 MB. kernels/cuda/muon.cu therefore
 * makes the products with fused multiply-adds.
 *
 * The matrices of a batch are orthogonalised together, in phases. The pieces of a phase are
 * independent of each other and need all pieces of the phase before. Nothing but the scratch
 * (proto/muon.h) is written, hence a batch can be begun again at any time. In place, its states
 * change only when all its directions are complete, and from then on the header of the scratch says
 * so: an engine that was killed within the update does not need the old momentum again. */
#ifndef CST_MATH_MUON_H
#define CST_MATH_MUON_H

#include "kernels/math/kernels.h"
#include "proto/muon.h"
#include "proto/table.h"

#include <stdbool.h>

/* Smallest norm by which a matrix is divided (torch.optim.Muon). */
#define CST_MUON_LEAST_NORM 1e-7f

/* The phases of a batch. Those of the iterations come last: Gram, polynomial and product in turn.
 */
enum cst_muon_phase {
    CST_MUON_DIRECTIONS, /* Not made here, but by cst_tile_direct_range. */
    CST_MUON_SUMS,       /* Sums of squares. */
    CST_MUON_SCALE,      /* Division by the norm. */
    CST_MUON_ITERATE,    /* First phase of the iterations. */
    CST_MUON_PHASES = CST_MUON_ITERATE + CST_MUON_PRODUCTS * CST_MUON_ITERATIONS,
};

/* Consecutive spans of a chunk. */
struct cst_muon_batch {
    const struct cst_table_span *spans; /* The spans; borrowed. */
    uint32_t n_spans;
    uint32_t first_span; /* Number of the first span within the chunk. */
    uint64_t first_tile; /* Number of tiles of the chunk before this batch. */
    uint64_t n_tiles;    /* Number of tiles of the batch. */
    void *scratch;       /* Start of the scratch. */
};

/* Set @batch to the spans of @chunk from number @first_span on that fit in its scratch, and at
 * least one. @first_tile is the number of tiles of the spans before. The chunk was checked:
 * cst_muon_check. Any thread. */
void cst_muon_batch_at(struct cst_muon_batch *batch, struct cst_table_header *table,
                       const struct cst_table_chunk *chunk, uint32_t first_span,
                       uint64_t first_tile, void *scratch);

/* Returns whether each span of @chunk consists of matrices and fits in the chunk's scratch. */
bool cst_muon_check(struct cst_table_header *table, const struct cst_table_chunk *chunk);

/* Returns the values of span number @span of @batch: the directions, or, when all phases are over,
 * the orthogonalised directions if @orthogonal is true. */
uint16_t *cst_muon_values(const struct cst_muon_batch *batch, uint32_t span, bool orthogonal);

/* The matrices of a span whose norms are computed: they are consecutive in @values, and their
 * partial sums in @sums. */
struct cst_muon_norm {
    uint16_t *values;
    double *sums;
    uint64_t n_elems, n_sums; /* Of one matrix. */
    uint64_t n_matrices;
};

/* One product of the matrices of a span. */
struct cst_muon_work {
    struct cst_product whole; /* The whole product of the first matrix, without rows and columns. */
    uint64_t rows, columns;   /* Of the result. */
    uint64_t tiles;           /* Tiles that are made, for each matrix. */
    bool symmetric;           /* The tiles on and below the diagonal are made. */
    uint64_t n_matrices;
    /* Elements from the operands and the result (and what is added) of a matrix to those of the
     * next one. */
    uint64_t a_step, b_step, out_step;
};

/* Describe the matrices of span number @span of @batch for the phases SUMS and SCALE. The scratch
 * can be memory of a device. */
void cst_muon_norm_of(const struct cst_muon_batch *batch, uint32_t span,
                      struct cst_muon_norm *norm);

/* Describe what @phase, CST_MUON_ITERATE or later, does with span number @span. The scratch can be
 * memory of a device. */
struct cst_muon_work cst_muon_work_of(const struct cst_muon_batch *batch, uint32_t span,
                                      unsigned phase);

/* Returns the number of pieces of @phase for span number @span of @batch. The pieces of a phase are
 * counted through the spans. @phase is not CST_MUON_DIRECTIONS. */
uint64_t cst_muon_span_pieces(const struct cst_muon_batch *batch, uint32_t span, unsigned phase);

/* Returns the number of pieces of @phase, which is not CST_MUON_DIRECTIONS. */
uint64_t cst_muon_pieces(const struct cst_muon_batch *batch, unsigned phase);

/* Do one piece. @space is this thread's. */
void cst_muon_piece(const struct cst_muon_batch *batch, const struct cst_kernels *kernels,
                    unsigned phase, uint64_t piece, struct cst_product_space *space);

/* Returns whether the directions of @batch of chunk number @chunk are complete for the update with
 * @mark. */
bool cst_muon_is_complete(const struct cst_muon_batch *batch, uint32_t chunk, uint64_t mark);

/* Record that the directions are complete. All pieces are done. */
void cst_muon_set_complete(const struct cst_muon_batch *batch, uint32_t chunk, uint64_t mark);

/* Record that the scratch has no complete directions: before its values change, and when the update
 * of the chunk is complete. */
void cst_muon_clear(const struct cst_muon_batch *batch);

#endif
