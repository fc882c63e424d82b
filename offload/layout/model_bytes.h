/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory declarations take, in the heap and as messages: whoever serves several users
 * counts it (daemon/job/declare.h, daemon/memory/upkeep.h). The numbers depend on the declarations
 * alone, and include what malloc adds. Any thread. */
#ifndef CST_MODEL_BYTES_H
#define CST_MODEL_BYTES_H

#include "offload/layout/edge.h"
#include "offload/layout/layout.h"

/* Bytes of the heap that @model uses. */
uint64_t cst_model_bytes(const struct cst_model *model);

/* The same, if the tensor @words, or an operator @name of @n_tensors tensors, was declared, too. */
uint64_t cst_model_bytes_with_tensor(const struct cst_model *model,
                                     const struct cst_tensor_words *words);
uint64_t cst_model_bytes_with_operator(const struct cst_model *model, const char *name,
                                       uint32_t n_tensors);

/* Bytes of the heap that @layout of @model for @world ranks uses. */
uint64_t cst_layout_heap_bytes(const struct cst_layout *layout, const struct cst_model *model,
                               uint32_t world);

/* Upper bound for the bytes of all declarations of @model in a packed JobDescription
 * (proto/cistern.proto), with the number of each tensor's chunk. */
uint64_t cst_model_packed_bytes(const struct cst_model *model);

/* Count a tensor, or an operator, that was just declared; or one that is removed. For model.c and
 * model_forget.c alone. */
void cst_model_count_tensor(struct cst_model *model, const struct cst_tensor_words *words);
void cst_model_count_operator(struct cst_model *model, const char *name, uint32_t n_tensors);
void cst_model_uncount_tensor(struct cst_model *model, const struct cst_tensor_words *words);
void cst_model_uncount_operator(struct cst_model *model, const char *name, uint32_t n_tensors);

#endif
