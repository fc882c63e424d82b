/* SPDX-License-Identifier: Apache-2.0 */
/* Dumps of states to files, for tests that compare them byte by byte. */
#ifndef GPT_DUMP_H
#define GPT_DUMP_H

#include "client/gpt/model.h"
#include "client/gpt/store.h"

/* Write to @path the master weights as fp32, of all tensors in order of declaration, and then the
 * bf16 weights in the same order. Statuses: CST_EIO, CST_ENOMEM, and the statuses of the store's
 * read. */
int gpt_dump_weights(const char *path, const struct gpt_model *model, struct gpt_store *store,
                     struct cst_err *err);

/* Write the last reduced gradients to @path as bf16, of all tensors in order of declaration. The
 * statuses are those of gpt_dump_weights. */
int gpt_dump_grads(const char *path, const struct gpt_model *model, struct gpt_store *store,
                   struct cst_err *err);

#endif
