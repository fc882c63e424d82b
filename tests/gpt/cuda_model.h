/* SPDX-License-Identifier: Apache-2.0 */
/* Whole steps of a small model on a GPU, against the host worker. With and without a GPU, as
 * cuda_cases.h. */
#ifndef GPT_CUDA_MODEL_H
#define GPT_CUDA_MODEL_H

#include <stdbool.h>
#include <stddef.h>

struct cuda_model_row {
    const char *name;
    /* Write a sentence to @why and return false where something is not as it should be. @plain: by
     * the plain product. */
    bool (*run)(bool plain, char *why, size_t why_bytes);
};

/* All of them; *n: how many. */
const struct cuda_model_row *cuda_models_all(unsigned *n);

#endif
