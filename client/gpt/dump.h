/* SPDX-License-Identifier: Apache-2.0 */
/* Dumps of states to files, for tests that compare them byte by byte. */
#ifndef GPT_DUMP_H
#define GPT_DUMP_H

#include "client/gpt/data.h"
#include "client/gpt/pass.h"

/* Write to @path the master weights as fp32, of all tensors in order of declaration, and then the
 * bf16 weights in the same order. Statuses: CST_EIO, CST_ENOMEM, and the statuses of the store's
 * read. */
int gpt_dump_weights(const char *path, const struct gpt_model *model, struct gpt_store *store,
                     struct cst_err *err);

/* Write the last reduced gradients to @path as bf16, of all tensors in order of declaration. The
 * statuses are those of gpt_dump_weights. */
int gpt_dump_grads(const char *path, const struct gpt_model *model, struct gpt_store *store,
                   struct cst_err *err);

/* Write the logits of the first sequence of @data, in fp32, to @path. The forward pass uses
 * @weights, a read-only store. CST_EIO, and the statuses of @pass and gpt_data_sequence. */
int gpt_dump_logits(const char *path, struct gpt_pass *pass, struct gpt_store *weights,
                    const struct gpt_data *data, struct cst_err *err);

#endif
