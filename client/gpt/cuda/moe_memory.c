/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a mixture on a GPU. */
#include "client/gpt/cuda/carver.h"
#include "client/gpt/cuda/moe_inside.h"

#include <stdlib.h>

/* Arrays that have a fixed size in every pass. */
static void carve_fixed(struct gpt_cuda_moe *moe, struct gpt_carver *c)
{
    const size_t rows = moe->max_rows, experts = moe->model->experts;
    const size_t choices = rows * moe->model->top_k;

    for (uint32_t i = 0; i < moe->model->layers; i++) {
        struct gpt_cuda_moe_layer *l = &moe->layers[i];

        l->probs = gpt_carve(c, rows * experts * sizeof(float));
        l->chosen = gpt_carve(c, choices * sizeof(uint32_t));
        l->gates = gpt_carve(c, choices * sizeof(float));
        l->place = gpt_carve(c, choices * sizeof(uint32_t));
        l->shares = gpt_carve(c, experts * sizeof(float));
        l->away = gpt_carve(c, choices * sizeof(uint32_t));
    }
    moe->dz = gpt_carve(c, rows * experts * sizeof(uint16_t));
}

int gpt_cuda_moe_grow(const struct gpt_gpu *gpu, struct gpt_cuda_growing *g, size_t bytes,
                      struct cst_err *err)
{
    /* The reserve avoids an allocation for every small increase. */
    const size_t wanted = bytes + bytes / 4;
    int rc;

    if (bytes <= g->bytes) {
        return 0;
    }
    rc = gpt_gpu_wait(gpu, err); /* Work that uses the old memory must end first. */
    if (rc != 0) {
        return rc;
    }
    gpt_gpu_free(gpu, g->p);
    *g = (struct gpt_cuda_growing){0};
    rc = gpt_gpu_alloc(gpu, wanted, "the rows of experts", &g->p, err);
    if (rc == 0) {
        g->bytes = wanted;
    } else {
        g->p = 0;
    }
    return rc;
}

/* As gpt_cuda_moe_grow for moe->from, in elements. */
static int grow_from(struct gpt_cuda_moe *moe, size_t n, struct cst_err *err)
{
    if (n > moe->n_from) {
        free(moe->from);
        moe->n_from = n + n / 4;
        moe->from = malloc(moe->n_from * sizeof *moe->from);
        if (moe->from == NULL) {
            moe->n_from = 0;
            return cst_err_set(err, CST_ENOMEM, "out of memory: %zu rows of experts", n);
        }
    }
    return 0;
}

static bool open_host(struct gpt_cuda_moe *moe)
{
    const size_t choices = moe->max_rows * moe->model->top_k, experts = moe->model->experts;
    bool ok;

    moe->layers = calloc(moe->model->layers, sizeof *moe->layers);
    moe->place = calloc(choices, sizeof *moe->place);
    moe->away = calloc(choices, sizeof *moe->away);
    moe->shares = calloc(experts, sizeof *moe->shares);
    ok = moe->layers != NULL && moe->place != NULL && moe->away != NULL && moe->shares != NULL;
    for (uint32_t i = 0; ok && i < moe->model->layers; i++) {
        moe->layers[i].counts = calloc(moe->model->world * experts, sizeof(uint32_t));
        moe->layers[i].starts = calloc(experts + 1, sizeof(uint32_t));
        ok = moe->layers[i].counts != NULL && moe->layers[i].starts != NULL;
    }
    return ok;
}

int gpt_cuda_moe_open(struct gpt_cuda_moe **out, const struct gpt_gpu *gpu,
                      const struct gpt_model *model, size_t max_rows, struct cst_err *err)
{
    struct gpt_cuda_moe *moe = calloc(1, sizeof *moe);
    struct gpt_carver c = {0};
    int rc;

    if (moe == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    moe->gpu = gpu;
    moe->model = model;
    moe->max_rows = max_rows;
    if (!open_host(moe)) {
        rc = cst_err_set(err, CST_ENOMEM, "out of memory: choices of %u experts", model->experts);
        goto err_close;
    }
    carve_fixed(moe, &c);
    rc = gpt_gpu_alloc(gpu, c.bytes, "choices of experts", &moe->memory, err);
    if (rc != 0) {
        moe->memory = 0;
        goto err_close;
    }
    c = (struct gpt_carver){.base = moe->memory};
    carve_fixed(moe, &c);
    rc = gpt_gpu_alloc_host(gpu, max_rows * model->top_k * sizeof *moe->chosen,
                            (void **)&moe->chosen, err);
    if (rc != 0) {
        moe->chosen = NULL;
        goto err_close;
    }
    *out = moe;
    return 0;
err_close:
    gpt_cuda_moe_close(moe);
    return rc;
}

void gpt_cuda_moe_close(struct gpt_cuda_moe *moe)
{
    if (moe == NULL) {
        return;
    }
    for (uint32_t i = 0; moe->layers != NULL && i < moe->model->layers; i++) {
        gpt_gpu_free(moe->gpu, moe->layers[i].kept.p);
        free(moe->layers[i].counts);
        free(moe->layers[i].starts);
    }
    gpt_gpu_free(moe->gpu, moe->away_rows.p);
    gpt_gpu_free(moe->gpu, moe->received.p);
    gpt_gpu_free(moe->gpu, moe->dy.p);
    gpt_gpu_free(moe->gpu, moe->dx.p);
    gpt_gpu_free(moe->gpu, moe->wide.p);
    gpt_gpu_free(moe->gpu, moe->parts.p);
    gpt_gpu_free(moe->gpu, moe->memory);
    gpt_gpu_free_host(moe->gpu, moe->chosen);
    free(moe->layers);
    free(moe->place);
    free(moe->away);
    free(moe->shares);
    free(moe->from);
    free(moe);
}

int gpt_cuda_moe_make_room(struct gpt_cuda_moe *moe, struct gpt_cuda_moe_layer *l, uint32_t most,
                           struct cst_err *err)
{
    const size_t kept = l->starts[moe->model->experts], all = kept + l->n_away;
    const size_t row = moe->model->width * sizeof(uint16_t);
    struct gpt_carver c = {0};
    int rc = 0;

    /* The first turn counts the bytes, and the second one assigns the arrays. */
    for (int turn = 0; rc == 0 && turn < 2; turn++) {
        l->from = gpt_carve(&c, kept * sizeof(uint32_t));
        l->x = gpt_carve(&c, kept * row);
        l->pre = gpt_carve(&c, kept * 4 * row);
        l->act = gpt_carve(&c, kept * 4 * row);
        l->y = gpt_carve(&c, all * row);
        rc = turn == 0 ? gpt_cuda_moe_grow(moe->gpu, &l->kept, c.bytes, err) : 0;
        c = (struct gpt_carver){.base = l->kept.p};
    }
    if (rc == 0) {
        rc = gpt_cuda_moe_grow(moe->gpu, &moe->dy, kept * row, err);
    }
    if (rc == 0) {
        rc = gpt_cuda_moe_grow(moe->gpu, &moe->dx, all * row, err);
    }
    if (rc == 0) {
        rc = gpt_cuda_moe_grow(moe->gpu, &moe->wide, most * 4 * row, err);
    }
    if (rc == 0) {
        rc = gpt_cuda_moe_grow(moe->gpu, &moe->parts, gpt_cuda_parts_bytes(most, moe->model->width),
                               err);
    }
    return rc == 0 ? grow_from(moe, kept, err) : rc;
}
