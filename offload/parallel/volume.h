/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a mesh divide a linear layer Y[M, N] = X[M, K] W[N, K]^T, and what each of them
 * receives. All modes of tensor parallelism are one function with other axes:
 *
 *   Y = RS_y(AG_x(X) AG_w(W)^T)     dX = RS_x(AG_y(dY) AG_w(W))     dW = RS_w(AG_y(dY)^T AG_x(X))
 *
 * AG gathers blocks over an axis of the mesh, RS sums over the axis and leaves each rank its block.
 * An operand whose blocks are the same on all ranks of an axis has a gradient that is summed over
 * it.
 *
 *   mode         mesh   X block          W block          Y block          the name elsewhere
 *   column       a      M    K           N/a  K           M     N/a        Megatron-LM
 *   row          a      M    K/a         N    K/a         M     N          Megatron-LM
 *   sp-column    a      M/a  K    AG a   N/a  K           M     N/a        sequence parallel
 *   sp-row       a      M    K/a         N    K/a         M/a   N    RS a  sequence parallel
 *   zero3        a      M/a  K           N/a  K     AG a  M/a   N          ZeRO-3, FSDP
 *   2d           a b    M/a  K/b  AG b   N/b  K/a   AG a  M/a   N/b        SUMMA, Colossal-AI
 *   2.5d         d a b  M/da K/b  AG b   N/b  K/a   AG a  M/da  N/b        Colossal-AI
 *   3d           a b c  M/ab K/c  AG b   N/b  K/ca  AG a  M/ac  N/b  RS c  Colossal-AI
 *
 * In 2.5d each W block is on d ranks. The meshes need not be square. Pure; nothing is allocated. */
#ifndef CST_VOLUME_H
#define CST_VOLUME_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cst_mesh_axis { CST_MESH_D, CST_MESH_A, CST_MESH_B, CST_MESH_C, CST_MESH_AXES };

enum cst_linear_operand { CST_LINEAR_X, CST_LINEAR_W, CST_LINEAR_Y, CST_LINEAR_OPERANDS };

/* How an operand, a matrix, is divided. Axes are numbered from 1; 0: none. */
struct cst_linear_blocks {
    /* Axes that divide the rows and the columns; the first one is the major one. */
    uint8_t rows[2], columns[2];
    /* The axis over which the operand is gathered before the product, or, for Y, summed after it.
     */
    uint8_t moves;
    bool whole; /* Y: the sum is left on all ranks of the axis; else each gets its block. */
};

struct cst_linear_mode {
    const char *name;
    uint8_t axes[CST_MESH_AXES]; /* The axes of its mesh, from 1 on; 0: none. */
    struct cst_linear_blocks operands[CST_LINEAR_OPERANDS];
};

/* The sizes of the axes; 1 for those that the mode does not have. Rank numbers count along the last
 * axis first. */
struct cst_mesh {
    uint32_t sizes[CST_MESH_AXES];
};

/* The shape of the linear layer. */
struct cst_linear_shape {
    uint64_t m, n, k; /* Tokens, outputs, inputs. */
};

/* A rectangle of an operand. */
struct cst_linear_box {
    uint64_t first[2], size[2]; /* Row and column. */
};

/* Return the row @i of the table of modes, which is static; NULL: there are no more. */
const struct cst_linear_mode *cst_linear_mode(uint32_t i);

/* Find the mode @name. CST_ENOTFOUND: the words list all names. */
int cst_linear_find(const struct cst_linear_mode **out, const char *name, struct cst_err *err);

/* Write to @out the meshes of @n_ranks ranks with which @mode divides @shape, at most @max of them;
 * without a shape, all meshes. Every axis of a mode has at least 2 ranks. Returns their number. */
size_t cst_linear_meshes(const struct cst_linear_mode *mode, uint32_t n_ranks,
                         const struct cst_linear_shape *shape, struct cst_mesh *out, size_t max);

/* Check that @mesh is one of the mode, and that it divides @shape into equal blocks. CST_EINVAL:
 * the words name what does not divide, and the meshes of as many ranks that do; or, if there are
 * none, the nearest numbers of ranks that have some. */
int cst_linear_check(const struct cst_linear_mode *mode, const struct cst_mesh *mesh,
                     const struct cst_linear_shape *shape, struct cst_err *err);

/* Return the block of @operand that the rank @rank of the mesh has. The mesh divides the shape. */
struct cst_linear_box cst_linear_box(const struct cst_linear_mode *mode,
                                     const struct cst_mesh *mesh,
                                     const struct cst_linear_shape *shape,
                                     enum cst_linear_operand operand, uint32_t rank);

/* Return the number of elements that each rank receives in a forward and a backward pass, if
 * collectives are ideal: a rank receives each element once, and (r - 1) / r of it again in a sum
 * that is left on r ranks. Gathered operands are gathered again for the backward pass, unless
 * @keeps. */
uint64_t cst_linear_received(const struct cst_linear_mode *mode, const struct cst_mesh *mesh,
                             const struct cst_linear_shape *shape, bool keeps);

#endif
