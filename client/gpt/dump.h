/* SPDX-License-Identifier: Apache-2.0 */
/* States written to files, for tests that compare them byte by byte. */
#ifndef GPT_DUMP_H
#define GPT_DUMP_H

#include "client/gpt/model.h"
#include "client/gpt/store.h"

/* Master weights as fp32, all tensors in order of declaration, then the bf16 weights likewise.
 * CST_EIO, CST_ENOMEM, and those of the store's read. */
int gpt_dump_weights(const char *path, const struct gpt_model *model, struct gpt_store *store,
                     struct cst_err *err);

/* The last reduced gradients as bf16, likewise. */
int gpt_dump_grads(const char *path, const struct gpt_model *model, struct gpt_store *store,
                   struct cst_err *err);

#endif
