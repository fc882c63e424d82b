/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/store.h"

#include <stdlib.h>

#define ALIGN_ELEMS 64 /* 128 bytes */

struct read_store {
    struct gpt_store head;
    struct gpt_store *from;        /* borrowed */
    const struct gpt_model *model; /* borrowed */
    uint16_t *weights;             /* weights of the operator that is begun */
};

static struct read_store *self(struct gpt_store *store)
{
    return (struct read_store *)(void *)store;
}

static uint64_t padded(const struct gpt_model *model, int tensor)
{
    return (model->tensors[tensor].n_elems + ALIGN_ELEMS - 1) / ALIGN_ELEMS * ALIGN_ELEMS;
}

size_t gpt_store_read_bytes(const struct gpt_model *model)
{
    uint64_t most = ALIGN_ELEMS;

    for (uint32_t i = 0; i < model->n_operators; i++) {
        const struct gpt_operator *op = &model->operators[i];
        uint64_t n = 0;

        for (uint32_t k = 0; k < op->n_tensors; k++) {
            n += padded(model, op->tensors[k]);
        }
        most = n > most ? n : most;
    }
    return most * sizeof(uint16_t);
}

static int read_op_begin(struct gpt_store *store, uint32_t op, enum cst_direction direction,
                         struct cst_io *io, uint32_t n_io, struct cst_err *err)
{
    struct read_store *s = self(store);
    uint16_t *at = s->weights;
    int rc = 0;

    if (direction != CST_FORWARD) {
        return cst_err_set(err, CST_EINVAL, "weights that are only looked at have no gradients");
    }
    for (uint32_t k = 0; k < n_io && rc == 0; k++) {
        const int tensor = s->model->operators[op].tensors[k];
        const uint64_t n = s->model->tensors[tensor].n_elems;

        rc = s->from->ops->read(s->from, (uint32_t)tensor, CST_STATE_WEIGHT, 0, n, at, err);
        io[k] = (struct cst_io){.weight = at, .n_elems = n};
        at += padded(s->model, tensor);
    }
    return rc;
}

static int read_op_end(struct gpt_store *store, uint32_t op, struct cst_err *err)
{
    (void)store;
    (void)op;
    (void)err;
    return 0;
}

static void read_close(struct gpt_store *store, bool good)
{
    struct read_store *s = self(store);

    (void)good;
    free(s->weights);
    free(s);
}

/* Only the operations of a forward pass. */
static const struct gpt_store_ops read_ops = {
    .name = "read",
    .op_begin = read_op_begin,
    .op_end = read_op_end,
    .close = read_close,
};

int gpt_store_read_open(struct gpt_store **out, struct gpt_store *from,
                        const struct gpt_model *model, struct cst_err *err)
{
    struct read_store *s = calloc(1, sizeof *s);

    if (s != NULL) {
        s->weights = aligned_alloc(2 * ALIGN_ELEMS, gpt_store_read_bytes(model));
    }
    if (s == NULL || s->weights == NULL) {
        free(s);
        return cst_err_set(err, CST_ENOMEM, "out of memory: the weights of an operator");
    }
    s->head.ops = &read_ops;
    s->from = from;
    s->model = model;
    *out = &s->head;
    return 0;
}
