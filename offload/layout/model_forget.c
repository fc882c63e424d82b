/* SPDX-License-Identifier: Apache-2.0 */
/* Removing the last declarations of a model. */
#include "offload/layout/external.h"
#include "offload/layout/model_bytes.h"
#include "offload/layout/model_index.h"

#include <stdlib.h>

enum { MIN_CAPACITY = 16 };

/* Halve the table @v of *@capacity entries of @size bytes if it is less than a quarter full. A
 * larger table than this is not charged to anybody. Returns the table. */
static void *shrink(void *v, uint32_t *capacity, uint32_t n, size_t size)
{
    void *moved;

    if (*capacity <= MIN_CAPACITY || 4 * n >= *capacity) {
        return v;
    }
    moved = realloc(v, *capacity / 2 * size);
    if (moved == NULL) {
        return v;
    }
    *capacity /= 2;
    return moved;
}

static void remove_operator(struct cst_model *model)
{
    struct cst_model_index *index = model->index;
    struct cst_layout_operator *op = &model->operators[--model->n_operators];

    for (uint32_t i = 0; i < op->n_tensors; i++) {
        model->tensors[op->tensors[i]].n_uses--;
    }
    model->n_uses -= op->n_tensors;
    cst_model_uncount_operator(model, op->name, op->n_tensors);
    cst_name_index_remove_last(&index->operators, op->name);
    free(op->name);
    free(op->tensors);
    model->operators = shrink(model->operators, &index->operators_capacity, model->n_operators,
                              sizeof *model->operators);
}

static void remove_tensor(struct cst_model *model)
{
    struct cst_model_index *index = model->index;
    const uint32_t last = model->n_tensors - 1, capacity = index->tensors_capacity;
    const struct cst_tensor_words words = cst_model_words(model, last);
    struct cst_layout_tensor *t = &model->tensors[last];
    uint32_t *seen;

    cst_model_uncount_tensor(model, &words);
    cst_external_remove_last(model);
    cst_name_index_remove_last(&index->tensors, t->name);
    model->n_params -= t->n_elems;
    model->weight_bytes -= cst_dtype_bytes(t->dtype) * t->n_elems;
    free(t->name);
    free(t->box);
    free(t->external);
    model->n_tensors = last;
    model->tensors = shrink(model->tensors, &index->tensors_capacity, last, sizeof *model->tensors);
    if (index->tensors_capacity < capacity) {
        seen = realloc(index->seen, index->tensors_capacity * sizeof *seen);
        index->seen = seen != NULL ? seen : index->seen;
    }
}

/* Return whether tensor @i or a later one is used. */
static bool is_any_used(const struct cst_model *model, uint32_t i)
{
    for (; i < model->n_tensors; i++) {
        if (model->tensors[i].n_uses > 0) {
            return true;
        }
    }
    return false;
}

static void forget_edges(struct cst_model *model, uint32_t n)
{
    struct cst_layout_edge *edges;

    if (model->n_edges <= n) {
        return;
    }
    model->n_edges = n;
    edges = realloc(model->edges, (n + 1) * sizeof *edges); /* 0 bytes might be freed. */
    model->edges = edges != NULL ? edges : model->edges;
}

int cst_model_forget(struct cst_model *model, const struct cst_model_extent *much,
                     struct cst_err *err)
{
    while (model->n_operators > much->n_operators) {
        remove_operator(model);
    }
    if (is_any_used(model, much->n_tensors)) {
        return cst_err_set(err, CST_EINVAL, "an operator uses a tensor that is removed");
    }
    while (model->n_tensors > much->n_tensors) {
        remove_tensor(model);
    }
    forget_edges(model, much->n_edges);
    model->n_groups = model->n_groups < much->n_groups + 1 ? model->n_groups : much->n_groups + 1;
    if (model->n_stages > 0) {
        model->n_stages =
            model->n_operators > 0 ? model->operators[model->n_operators - 1].stage + 1 : 0;
    }
    return CST_OK;
}
