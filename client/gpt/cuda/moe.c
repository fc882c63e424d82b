/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/cuda/moe_inside.h"

#include <string.h>

void gpt_cuda_moe_begin(struct gpt_cuda_moe *moe, struct gpt_exchange_comms comms)
{
    gpt_exchange_begin(&moe->exchange, comms, moe->model->experts, true);
}

int gpt_cuda_moe_end(struct gpt_cuda_moe *moe, struct cst_err *err)
{
    return gpt_exchange_wait(&moe->exchange, err);
}

/* -- placement of rows ------------------------------------------------------------------------ */

/* Count this rank's choices per expert, and list the choices of other ranks' experts in moe->away.
 * moe->chosen has @n choices. */
static void sort(const struct gpt_cuda_moe *moe, struct gpt_cuda_moe_layer *l, size_t n)
{
    uint32_t *counts = gpt_cuda_moe_counts(moe, l, moe->exchange.rank);
    uint32_t at[GPT_MAX_EXPERTS];

    memset(counts, 0, moe->model->experts * sizeof *counts);
    for (size_t i = 0; i < n; i++) {
        counts[moe->chosen[i]]++;
    }
    l->n_away = (uint32_t)gpt_exchange_n_sent(&moe->exchange, l->counts);
    for (uint32_t e = 0; e < moe->model->experts; e++) {
        at[e] = (uint32_t)gpt_exchange_sent_at(&moe->exchange, l->counts, e);
    }
    for (size_t i = 0; i < n; i++) {
        const uint32_t e = moe->chosen[i];

        if (!gpt_cuda_moe_is_mine(moe, e)) {
            moe->away[at[e]++] = (uint32_t)i;
        }
    }
}

/* Compute the starts of this rank's experts from the counts of all ranks, and f_e. Returns the
 * number of rows of the largest expert, padding included. */
static uint32_t count(const struct gpt_cuda_moe *moe, struct gpt_cuda_moe_layer *l)
{
    const uint32_t experts = moe->model->experts;
    uint32_t most = 0;
    uint64_t all = 0;

    l->starts[0] = 0;
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t n = 0, padded;

        for (uint32_t r = 0; r < moe->exchange.world; r++) {
            n += gpt_cuda_moe_counts(moe, l, r)[e];
        }
        padded = (n + GPT_CUDA_EXPERT_ROWS - 1) / GPT_CUDA_EXPERT_ROWS * GPT_CUDA_EXPERT_ROWS;
        padded = gpt_cuda_moe_is_mine(moe, e) ? padded : 0;
        all += n;
        moe->shares[e] = (float)n;
        l->starts[e + 1] = l->starts[e] + padded;
        most = padded > most ? padded : most;
    }
    for (uint32_t e = 0; e < experts; e++) {
        moe->shares[e] /= (float)all;
    }
    return most;
}

/* Fill moe->place and moe->from. at[e] is the place of this rank's next row for e. */
static void find_places(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                        size_t n)
{
    const uint32_t experts = moe->model->experts;
    uint32_t at[GPT_MAX_EXPERTS];

    for (uint32_t e = 0; e < experts; e++) {
        uint32_t i = l->starts[e];

        if (!gpt_cuda_moe_is_mine(moe, e)) {
            at[e] =
                l->starts[experts] + (uint32_t)gpt_exchange_sent_at(&moe->exchange, l->counts, e);
            continue;
        }
        /* All rows of this rank's experts are first marked as coming from other ranks. The last
         * loop of this function overwrites the marks of this rank's own rows. */
        for (uint32_t r = 0; r < moe->exchange.world; r++) {
            at[e] = r == moe->exchange.rank ? i : at[e];
            for (uint32_t k = 0; k < gpt_cuda_moe_counts(moe, l, r)[e]; k++) {
                moe->from[i++] = GPT_CUDA_OTHERS_ROW;
            }
        }
        while (i < l->starts[e + 1]) {
            moe->from[i++] = GPT_CUDA_NO_ROW;
        }
    }
    for (size_t i = 0; i < n; i++) {
        const uint32_t e = moe->chosen[i], place = at[e]++;

        moe->place[i] = place;
        if (gpt_cuda_moe_is_mine(moe, e)) {
            moe->from[place] = (uint32_t)i;
        }
    }
}

/* -- forward ---------------------------------------------------------------------------------- */

static size_t choices_of(const struct gpt_cuda_pass *p)
{
    return p->n_seqs * p->all.context * p->head.model->top_k;
}

/* Copy the router's choices to the host, sort them, and upload the choices of the away rows. */
static int learn_choices(const struct gpt_cuda_pass *p, struct gpt_cuda_moe_layer *l,
                         struct cst_err *err)
{
    struct gpt_cuda_moe *moe = p->moe;
    const size_t n = choices_of(p);
    int rc = gpt_gpu_download(p->gpu, moe->chosen, l->chosen, n * sizeof(uint32_t), err);

    /* The stream may have an exchange with another rank, for which only this has a time limit. */
    if (rc == 0) {
        rc = gpt_exchange_wait(&moe->exchange, err);
    }
    if (rc == 0) {
        rc = gpt_gpu_wait(p->gpu, err);
    }
    if (rc != 0) {
        return rc;
    }
    sort(moe, l, n);
    rc = gpt_cuda_moe_grow(p->gpu, &moe->away_rows,
                           l->n_away * moe->model->width * sizeof(uint16_t), err);
    return rc != 0 || l->n_away == 0
               ? rc
               : gpt_gpu_upload(p->gpu, l->away, moe->away, l->n_away * sizeof(uint32_t), err);
}

/* Compute the places of the rows of all ranks and upload them. */
static int place_rows(const struct gpt_cuda_pass *p, struct gpt_cuda_moe_layer *l,
                      struct cst_err *err)
{
    struct gpt_cuda_moe *moe = p->moe;
    const size_t n = choices_of(p), experts = p->head.model->experts;
    int rc = gpt_cuda_moe_make_room(moe, l, count(moe, l), err);

    if (rc != 0) {
        return rc;
    }
    find_places(moe, l, n);
    if (l->starts[experts] > 0) {
        rc = gpt_gpu_upload(p->gpu, l->from, moe->from, l->starts[experts] * sizeof(uint32_t), err);
    }
    if (rc == 0) {
        rc = gpt_gpu_upload(p->gpu, l->place, moe->place, n * sizeof(uint32_t), err);
    }
    return rc != 0 ? rc
                   : gpt_gpu_upload(p->gpu, l->shares, moe->shares, experts * sizeof(float), err);
}

int gpt_cuda_moe_send_rows(const struct gpt_cuda_pass *p, uint32_t layer, struct cst_err *err)
{
    struct gpt_cuda_moe *moe = p->moe;
    struct gpt_cuda_moe_layer *l = &moe->layers[layer];
    const CUdeviceptr ln2 = p->a.blocks[layer].ln2;
    const uint32_t top_k = p->head.model->top_k;
    const size_t d = p->head.model->width;
    int rc = learn_choices(p, l, err);

    if (rc == 0) {
        rc = gpt_cuda_gather(&p->gpu->kernels, l->n_away, d, top_k, l->away, ln2, moe->away_rows.p,
                             err);
    }
    if (rc == 0) {
        rc = gpt_cuda_peers_count(moe, l, err);
    }
    if (rc == 0) {
        rc = gpt_cuda_peers_send(moe, l, err);
    }
    if (rc == 0) {
        rc = place_rows(p, l, err);
    }
    if (rc == 0) {
        rc = gpt_cuda_gather(&p->gpu->kernels, l->starts[p->head.model->experts], d, top_k, l->from,
                             ln2, l->x, err);
    }
    return rc != 0 ? rc : gpt_cuda_peers_fetch(moe, l, l->x, err);
}

bool gpt_cuda_moe_runs(const struct gpt_cuda_pass *p, const struct gpt_operator *op)
{
    const struct gpt_cuda_moe_layer *l = &p->moe->layers[op->layer];

    return l->starts[op->expert + 1] > l->starts[op->expert];
}

/* a.branch receives the sum of gate x result. */
int gpt_cuda_moe_combine(const struct gpt_cuda_pass *p, uint32_t layer, struct cst_err *err)
{
    const struct gpt_cuda_moe_layer *l = &p->moe->layers[layer];
    int rc = gpt_cuda_peers_return(p->moe, l, l->y, err);

    return rc != 0 ? rc
                   : gpt_cuda_combine(&p->gpu->kernels, p->n_seqs * p->all.context,
                                      p->head.model->width, p->head.model->top_k, l->place,
                                      l->gates, l->y, p->a.branch, err);
}

/* -- backward --------------------------------------------------------------------------------- */

int gpt_cuda_moe_send_rows_backward(const struct gpt_cuda_pass *p, uint32_t layer,
                                    struct cst_err *err)
{
    struct gpt_cuda_moe *moe = p->moe;
    const struct gpt_cuda_moe_layer *l = &moe->layers[layer];
    const uint32_t top_k = p->head.model->top_k;
    const size_t d = p->head.model->width;
    int rc = gpt_cuda_gather_gated(&p->gpu->kernels, l->n_away, d, top_k, l->away, l->gates,
                                   p->a.dx, moe->away_rows.p, err);

    if (rc == 0) {
        rc = gpt_cuda_peers_send(moe, l, err);
    }
    if (rc == 0) {
        rc = gpt_cuda_gather_gated(&p->gpu->kernels, l->starts[p->head.model->experts], d, top_k,
                                   l->from, l->gates, p->a.dx, moe->dy.p, err);
    }
    return rc != 0 ? rc : gpt_cuda_peers_fetch(moe, l, moe->dy.p, err);
}

/* moe->dx receives the gradients of all rows by way of their experts. The router adds them up. */
int gpt_cuda_moe_combine_backward(const struct gpt_cuda_pass *p, uint32_t layer,
                                  struct cst_err *err)
{
    return gpt_cuda_peers_return(p->moe, &p->moe->layers[layer], p->moe->dx.p, err);
}
