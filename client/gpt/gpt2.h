/* SPDX-License-Identifier: Apache-2.0 */
/* The model as other programs know it: GPT-2 of Hugging Face's transformers, whose layout of the
 * weights is that of model.h, and the adapters of PEFT. A mixture of experts has no such form. */
#ifndef GPT_GPT2_H
#define GPT_GPT2_H

#include "client/gpt/model.h"

#define GPT_GPT2_NAME_BYTES 128
#define GPT_GPT2_PREFIX "transformer." /* files may leave it out */

/* Write the name of @tensor in model files to @out. *transposed: the file has columns as rows.
 * False: @model has no form in other programs. */
bool gpt_gpt2_name(const struct gpt_model *model, const struct gpt_tensor *tensor,
                   char out[GPT_GPT2_NAME_BYTES], bool *transposed);

/* True if @name is the name of an adapter's tensor in the model. */
bool gpt_gpt2_is_adapter(const char *name);

/* Make the text of config.json. The caller frees it. NULL: @model has no form in other programs, or
 * no memory. */
char *gpt_gpt2_config(const struct gpt_model *model);

/* Make the text of PEFT's adapter_config.json. @base: directory of the base model, or NULL. NULL:
 * @model has no adapters, or no memory. */
char *gpt_gpt2_adapter_config(const struct gpt_model *model, const char *base);

/* The sizes in a config.json. */
struct gpt_gpt2_sizes {
    uint32_t layers, heads, width, context, vocab;
};

/* Read config.json in the directory @dir. CST_EINVAL: it is not a model that cistern-gpt computes;
 * the error names the key. CST_ENOTFOUND: there is no such file; CST_EIO: it cannot be read. */
int gpt_gpt2_read(const char *dir, struct gpt_gpt2_sizes *out, struct cst_err *err);

#endif
