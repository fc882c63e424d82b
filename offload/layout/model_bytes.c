/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/model_bytes.h"

#include "offload/layout/name_index.h"

#include <string.h>

enum {
    /* Most bytes of a packed TensorDecl (proto/cistern.proto) without names and dimensions, of its
     * chunk, and of an OperatorDecl without its name and tensors. */
    TENSOR_PACKED = 48,
    OPERATOR_PACKED = 40,
    /* A dimension of 2^40, a number of rows with the head of its name, the number of a tensor, the
     * head of a name. */
    DIM_PACKED = 7,
    EXTERNAL_PACKED = 12,
    USE_PACKED = 4,
    NAME_PACKED = 4,
    GROUP_PACKED = 8 + 2 * CST_LAYOUT_MAX_WORLD,
    EDGE_PACKED = 64,
};

/* Bytes that malloc uses for an allocation of @n bytes. */
static uint64_t heap(uint64_t n)
{
    return n <= 24 ? 32 : (n + 8 + 15) / 16 * 16;
}

/* Bytes of the slots of an index of @n names (name_index.h). */
static uint64_t slots(uint64_t n)
{
    uint64_t n_slots = 64;

    while (n_slots < 2 * n) {
        n_slots *= 2;
    }
    return n_slots * sizeof(struct cst_name_slot);
}

/* Bytes of the tables of a model with so many entries. */
static uint64_t tables(uint64_t n_tensors, uint64_t n_operators, uint64_t n_file_names)
{
    return n_tensors * (sizeof(struct cst_layout_tensor) + sizeof(uint32_t)) + slots(n_tensors) +
           n_operators * sizeof(struct cst_layout_operator) + slots(n_operators) +
           n_file_names * 2 * sizeof(uint32_t) + slots(n_file_names);
}

static uint64_t edges_and_groups(const struct cst_model *model)
{
    return model->n_edges * sizeof(struct cst_layout_edge) +
           (model->n_groups > 1 ? heap((model->n_groups - 1) * sizeof(struct cst_set)) : 0);
}

static uint64_t text_bytes(const char *text)
{
    return text != NULL ? strlen(text) + 1 : 0;
}

static uint64_t external_text(const struct cst_tensor_words *words)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < words->n_external; i++) {
        bytes += text_bytes(words->external_names[i]);
    }
    return bytes;
}

/* Bytes of the allocations that belong to one tensor alone. */
static uint64_t own_bytes(const struct cst_tensor_words *words)
{
    uint64_t bytes = heap(text_bytes(words->name));

    if (words->whole != NULL) {
        bytes += heap(sizeof(struct cst_layout_box) + text_bytes(words->whole_name) + 1);
    }
    if (words->n_external > 0) {
        bytes += heap(sizeof(struct cst_layout_external) + external_text(words) +
                      words->n_external * (sizeof(int64_t) + sizeof(char *)));
    }
    return bytes;
}

static uint64_t own_operator(const char *name, uint32_t n_tensors)
{
    return heap(text_bytes(name)) + heap((uint64_t)n_tensors * sizeof(uint32_t));
}

static uint32_t file_names(const struct cst_tensor_words *words)
{
    return words->n_external > 0 ? words->n_external : 1;
}

uint64_t cst_model_bytes(const struct cst_model *model)
{
    return model->own_bytes + edges_and_groups(model) +
           tables(model->n_tensors, model->n_operators, model->n_file_names);
}

uint64_t cst_model_bytes_with_tensor(const struct cst_model *model,
                                     const struct cst_tensor_words *words)
{
    return model->own_bytes + own_bytes(words) + edges_and_groups(model) +
           tables(model->n_tensors + 1, model->n_operators,
                  model->n_file_names + file_names(words));
}

uint64_t cst_model_bytes_with_operator(const struct cst_model *model, const char *name,
                                       uint32_t n_tensors)
{
    return model->own_bytes + own_operator(name, n_tensors) + edges_and_groups(model) +
           tables(model->n_tensors, model->n_operators + 1, model->n_file_names);
}

uint64_t cst_layout_heap_bytes(const struct cst_layout *layout, const struct cst_model *model,
                               uint32_t world)
{
    return layout->n_chunks * sizeof(struct cst_layout_chunk) +
           model->n_tensors * sizeof(uint32_t) +
           model->n_operators * sizeof(struct cst_layout_use) + model->n_uses * sizeof(uint32_t) +
           layout->n_segments * sizeof(struct cst_layout_segment) +
           model->n_groups * sizeof(struct cst_set) + world * sizeof(struct cst_layout_need);
}

static uint64_t packed_tensor(const struct cst_tensor_words *words)
{
    /* shape, whole_shape, box_first and box_packed */
    uint32_t lists = words->packed != NULL ? 4 : words->whole != NULL ? 3 : 1;

    return TENSOR_PACKED + text_bytes(words->name) + NAME_PACKED + text_bytes(words->whole_name) +
           NAME_PACKED + (uint64_t)lists * (NAME_PACKED + words->n_dims * DIM_PACKED) +
           external_text(words) + (uint64_t)words->n_external * EXTERNAL_PACKED;
}

static uint64_t packed_operator(const char *name, uint32_t n_tensors)
{
    return OPERATOR_PACKED + text_bytes(name) + NAME_PACKED + (uint64_t)n_tensors * USE_PACKED;
}

void cst_model_count_tensor(struct cst_model *model, const struct cst_tensor_words *words)
{
    model->own_bytes += own_bytes(words);
    model->n_file_names += file_names(words);
    model->packed_bytes += packed_tensor(words);
}

void cst_model_count_operator(struct cst_model *model, const char *name, uint32_t n_tensors)
{
    model->own_bytes += own_operator(name, n_tensors);
    model->packed_bytes += packed_operator(name, n_tensors);
}

void cst_model_uncount_tensor(struct cst_model *model, const struct cst_tensor_words *words)
{
    model->own_bytes -= own_bytes(words);
    model->n_file_names -= file_names(words);
    model->packed_bytes -= packed_tensor(words);
}

void cst_model_uncount_operator(struct cst_model *model, const char *name, uint32_t n_tensors)
{
    model->own_bytes -= own_operator(name, n_tensors);
    model->packed_bytes -= packed_operator(name, n_tensors);
}

uint64_t cst_model_packed_bytes(const struct cst_model *model)
{
    return model->packed_bytes + (uint64_t)model->n_groups * GROUP_PACKED +
           (uint64_t)model->n_edges * (sizeof(struct cst_layout_edge) + EDGE_PACKED);
}
