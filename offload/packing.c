#include "offload/packing.h"

#include <stdlib.h>
#include <string.h>

static void order_by_first_use(struct cst_packing *p)
{
    const struct cst_model *model = p->model;
    uint32_t n = 0;

    memset(p->seen, 0, model->n_tensors * sizeof *p->seen);
    for (uint32_t i = 0; i < model->n_operators; i++) {
        for (uint32_t k = 0; k < model->operators[i].n_tensors; k++) {
            uint32_t t = model->operators[i].tensors[k];

            if (p->seen[t] == 0) {
                p->seen[t] = 1;
                p->order[n++] = t;
            }
        }
    }
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        if (p->seen[t] == 0) {
            p->order[n++] = t;
        }
    }
}

int cst_packing_init(struct cst_packing *packing, const struct cst_model *model)
{
    size_t n =
        model->n_tensors == 0 ? 1 : model->n_tensors; /* there are never more chunks than tensors */

    *packing = (struct cst_packing){
        .model = model,
        .order = calloc(n, sizeof *packing->order),
        .chunk_of = calloc(n, sizeof *packing->chunk_of),
        .offset = calloc(n, sizeof *packing->offset),
        .open_uses = calloc(n, sizeof *packing->open_uses),
        .seen = calloc(n, sizeof *packing->seen),
        .open = calloc(n, sizeof *packing->open),
    };
    if (packing->order == NULL || packing->chunk_of == NULL || packing->offset == NULL ||
        packing->open_uses == NULL || packing->seen == NULL || packing->open == NULL) {
        cst_packing_close(packing);
        return CST_ENOMEM;
    }
    order_by_first_use(packing);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        uint64_t elems = cst_align_up(model->tensors[t].n_elems, CST_LAYOUT_ALIGN_ELEMS);

        packing->largest = elems > packing->largest ? elems : packing->largest;
    }
    return CST_OK;
}

void cst_packing_close(struct cst_packing *packing)
{
    free(packing->order);
    free(packing->chunk_of);
    free(packing->offset);
    free(packing->open_uses);
    free(packing->seen);
    free(packing->open);
    memset(packing, 0, sizeof *packing);
}

uint32_t cst_packing_pack(struct cst_packing *packing, uint64_t capacity)
{
    const struct cst_model *model = packing->model;
    uint32_t chunk = 0;
    uint64_t fill = 0;

    for (uint32_t i = 0; i < model->n_tensors; i++) {
        uint32_t t = packing->order[i];

        if (fill + model->tensors[t].n_elems > capacity) {
            chunk++;
            fill = 0;
        }
        packing->chunk_of[t] = chunk;
        packing->offset[t] = fill;
        fill = cst_align_up(fill + model->tensors[t].n_elems, CST_LAYOUT_ALIGN_ELEMS);
    }
    packing->n_chunks = model->n_tensors == 0 ? 0 : chunk + 1;
    return packing->n_chunks;
}

uint32_t cst_packing_count(const struct cst_packing *packing, uint64_t capacity)
{
    const struct cst_model *model = packing->model;
    uint32_t n = 1;
    uint64_t fill = 0;

    for (uint32_t i = 0; i < model->n_tensors; i++) {
        uint64_t elems = model->tensors[packing->order[i]].n_elems;

        if (fill + elems > capacity) {
            n++;
            fill = 0;
        }
        fill = cst_align_up(fill + elems, CST_LAYOUT_ALIGN_ELEMS);
    }
    return model->n_tensors == 0 ? 0 : n;
}

/* The backward of @op begins: how many chunks it uses; those not open yet are opened. */
static uint32_t sweep_begin(struct cst_packing *p, const struct cst_layout_operator *op,
                            uint32_t visit, uint32_t *n_open)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < op->n_tensors; k++) {
        uint32_t chunk = p->chunk_of[op->tensors[k]];

        if (p->seen[chunk] != visit) {
            p->seen[chunk] = visit;
            n++;
        }
        if (!p->open[chunk]) {
            p->open[chunk] = true;
            ++*n_open;
        }
    }
    return n;
}

/* The backward of @op ends: gradients whose last use this was are handed in. */
static void sweep_end(struct cst_packing *p, const struct cst_layout_operator *op, uint32_t *n_open)
{
    for (uint32_t k = 0; k < op->n_tensors; k++) {
        uint32_t chunk = p->chunk_of[op->tensors[k]];

        if (--p->open_uses[chunk] == 0) {
            p->open[chunk] = false;
            --*n_open;
        }
    }
}

/* Only the backward pass is swept: an operator holds there what it holds in the forward pass, and
 * gradients besides. */
uint32_t cst_packing_need(struct cst_packing *packing, uint32_t *op_out)
{
    const struct cst_model *model = packing->model;
    uint32_t n_open = 0;
    uint32_t need = 1;
    uint32_t need_op = 0;

    memset(packing->open_uses, 0, packing->n_chunks * sizeof *packing->open_uses);
    memset(packing->seen, 0, packing->n_chunks * sizeof *packing->seen);
    memset(packing->open, 0, packing->n_chunks * sizeof *packing->open);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        packing->open_uses[packing->chunk_of[t]] += model->tensors[t].n_uses;
    }
    for (uint32_t i = model->n_operators; i-- > 0;) {
        uint32_t weights = sweep_begin(packing, &model->operators[i], i + 1, &n_open);

        if (weights + n_open + 1 > need) {
            need = weights + n_open + 1;
            need_op = i;
        }
        sweep_end(packing, &model->operators[i], &n_open);
    }
    if (need > 2 * packing->n_chunks) {
        need = 2 * packing->n_chunks;
    }
    *op_out = need_op;
    return need;
}
