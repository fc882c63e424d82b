/* SPDX-License-Identifier: Apache-2.0 */
/* cst_model.index. Private to model.c and model_forget.c. */
#ifndef CST_MODEL_INDEX_H
#define CST_MODEL_INDEX_H

#include "offload/layout/name_index.h"

struct cst_model_index {
    struct cst_name_index tensors;
    struct cst_name_index operators;
    uint32_t tensors_capacity;   /* Number of allocated entries of model->tensors and of `seen`. */
    uint32_t operators_capacity; /* Number of allocated entries of model->operators. */
    uint32_t *seen;              /* Per tensor: 1 + the last operator that named it; owned. */
};

#endif
