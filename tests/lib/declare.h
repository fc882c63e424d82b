/* SPDX-License-Identifier: Apache-2.0 */
/* Short declarations of models, for tests. */
#ifndef TESTS_LIB_DECLARE_H
#define TESTS_LIB_DECLARE_H

#include "offload/layout/layout.h"

/* Declare a tensor of all ranks with the pattern CST_PATTERN_SHARD. */
static inline int declare_tensor(struct cst_model *model, const char *name, const int64_t *shape,
                                 uint32_t n_dims, float lr_scale, float decay_scale,
                                 struct cst_err *err)
{
    const struct cst_tensor_words words = {.name = name,
                                           .shape = shape,
                                           .n_dims = n_dims,
                                           .lr_scale = lr_scale,
                                           .decay_scale = decay_scale};

    return cst_model_tensor(model, &words, err);
}

#endif
