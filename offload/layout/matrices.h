/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors of a job of CST_OPTIMIZER_MUON are updated by Muon, and the memory that a node's
 * engine needs for it (proto/muon.h). Owns nothing. Called by packing, rows, layout.c and the
 * simulator. */
#ifndef CST_MATRICES_H
#define CST_MATRICES_H

#include "offload/layout/layout.h"

/* Set muon[t] for each tensor t of @model to whether Muon updates it: by its declaration, or by the
 * rule of CST_TENSOR_UPDATE_AUTO. With other optimizers, and for frozen tensors, it is false.
 * CST_EINVAL: the tensor is a part of a larger matrix, which Muon needs as a whole. */
int cst_matrices_choose(const struct cst_model *model, enum cst_optimizer optimizer, bool *muon,
                        struct cst_err *err);

#define CST_MATRICES_ANY_NODE UINT32_MAX

/* Bytes of a scratch for the chunks of @node, or of all nodes; 0: Muon updates none of them.
 * Tensors are placed. */
uint64_t cst_matrices_scratch_bytes(const struct cst_layout *layout, const struct cst_model *model,
                                    uint32_t node);

/* Floating-point operations of the products in an update of @tensor, which Muon updates. */
double cst_matrices_flops(const struct cst_layout_tensor *tensor);

/* Floating-point operations that the busiest of @cores cores makes in an update of @chunk by Muon.
 * A tile of a product is made by one core, and each product waits for the one before. */
double cst_matrices_core_flops(const struct cst_layout *layout, const struct cst_model *model,
                               const struct cst_layout_chunk *chunk, uint32_t cores);

#endif
