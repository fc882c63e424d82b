/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of whole training steps of a small model on a GPU against the host worker. The tests run
 * with and without a GPU, as those of cuda_cases.h. */
#ifndef GPT_CUDA_MODEL_H
#define GPT_CUDA_MODEL_H

#include <stdbool.h>
#include <stddef.h>

struct cuda_model_row {
    const char *name;
    /* Run the test. False: it failed, and @why has a sentence about it. @plain: use the plain
     * product. */
    bool (*run)(bool plain, char *why, size_t why_bytes);
};

/* Return all tests; *n is their number. */
const struct cuda_model_row *cuda_models_all(unsigned *n);

#endif
