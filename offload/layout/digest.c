/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/digest.h"

#include "cistern/optimizer.h"
#include "cistern/pattern.h"

#include <string.h>

/* FNV-1a, 64 bits. */
static uint64_t add(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    }
    return hash;
}

static uint64_t add_number(uint64_t hash, uint64_t number)
{
    return add(hash, &number, sizeof number);
}

static uint64_t add_text(uint64_t hash, const char *text)
{
    return add(hash, text, strlen(text) + 1);
}

static uint64_t add_dims(uint64_t hash, const int64_t *dims, uint32_t n)
{
    return dims != NULL ? add(hash, dims, n * sizeof *dims) : hash;
}

/* Fingerprints of jobs of up to 64 ranks are as they were, when a set was one word: words at the
 * end that are 0 are left out. */
static uint64_t add_ranks(uint64_t hash, const struct cst_set *ranks)
{
    const uint32_t last = cst_set_last(ranks);

    hash = add_number(hash, ranks->words[0]);
    for (uint32_t w = 1; last < CST_SET_MAX && w <= last / CST_SET_WORD; w++) {
        hash = add_number(hash, ranks->words[w]);
    }
    return hash;
}

static uint64_t add_tensor(uint64_t hash, const struct cst_model *model, uint32_t i, uint32_t world)
{
    struct cst_tensor_words words = cst_model_words(model, i);
    const struct cst_set ranks =
        cst_set_intersect(cst_model_group_ranks(model, words.group), cst_set_range(0, world));

    hash = add_text(hash, words.name);
    hash = add_number(hash, words.n_dims);
    hash = add_dims(hash, words.shape, words.n_dims);
    hash = add_ranks(hash, &ranks);
    hash = add_number(hash, words.pattern);
    /* Fingerprints of models that do not say the update or the type are as they were. */
    hash = words.update != CST_TENSOR_UPDATE_AUTO ? add_number(hash, words.update) : hash;
    hash = words.dtype == CST_FP32 ? add_number(hash, words.dtype) : hash;
    hash = add_dims(hash, words.whole, words.n_dims);
    hash = add_dims(hash, words.first, words.n_dims);
    return add_dims(hash, words.packed, words.n_dims);
}

static uint64_t add_operator(uint64_t hash, const struct cst_layout_operator *op)
{
    hash = add_text(hash, op->name);
    hash = add_number(hash, op->n_tensors);
    /* Fingerprints of models without stages, and of a first stage, are as they were. */
    hash = op->stage > 0 ? add_number(hash, op->stage) : hash;
    return add(hash, op->tensors, op->n_tensors * sizeof *op->tensors);
}

uint64_t cst_model_digest(const struct cst_model *model, uint32_t world)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    for (uint32_t i = 0; i < model->n_tensors; i++) {
        hash = add_tensor(hash, model, i, world);
    }
    for (uint32_t i = 0; i < model->n_operators; i++) {
        hash = add_operator(hash, &model->operators[i]);
    }
    /* Keep 53 bits, which a JSON number represents exactly. */
    return hash >> 11;
}
