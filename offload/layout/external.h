/* SPDX-License-Identifier: Apache-2.0 */
/* External names: under which names, and in which layout, model files of other programs have a
 * tensor. Nothing in a job depends on them; they are for checkpoints. Private to offload/layout. */
#ifndef CST_EXTERNAL_H
#define CST_EXTERNAL_H

#include "offload/layout/layout.h"

/* Check the external tensors of @words, whose shape and box are valid. Those of a part of a whole
 * that has a name of its own are those of the whole. CST_EINVAL: too many; a name that is
 * empty, too long, not printable or used twice; numbers of rows that are below 1 or do not sum to
 * the rows of the tensor; a transposed tensor that is not a matrix. */
int cst_external_check(const struct cst_tensor_words *words, struct cst_err *err);

/* Copy the external tensors of @words to an allocation that the caller frees. NULL: no memory. */
struct cst_layout_external *cst_external_copy(const struct cst_tensor_words *words);

/* CST_OK if @t and @other have equal external tensors, otherwise CST_EMISMATCH; see
 * cst_model_same_tensor. */
int cst_external_same(const struct cst_layout_tensor *t, const struct cst_layout_tensor *other,
                      const char *mine, const char *theirs, struct cst_err *err);

/* The names of all tensors of @model in model files: external names, and the names of tensors that
 * have none. Make room for the names of @words. CST_ENOMEM. */
int cst_external_reserve(struct cst_model *model, const struct cst_tensor_words *words);

/* Check that no tensor of @model, except other parts of the same whole, has a name of @words in
 * model files. CST_EEXIST. */
int cst_external_check_names(const struct cst_model *model, const struct cst_tensor_words *words,
                             struct cst_err *err);

/* Add the names of the tensor that is being declared, after the n_tensors others of @model. Room
 * was made. */
void cst_external_add(struct cst_model *model);

/* Remove the names of the last tensor of @model. Those that an earlier part of the same whole has
 * added stay. */
void cst_external_remove_last(struct cst_model *model);

/* Free the names of @model, but not its tensors. */
void cst_external_close(struct cst_model *model);

#endif
