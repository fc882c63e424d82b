/* SPDX-License-Identifier: Apache-2.0 */
/* Transport of rows to and from other ranks, through memory of the host and its exchange. A rank
 * waits for its stream before a call of the exchange. Therefore the copies to the arrays that are
 * sent, and those from the arrays that are overwritten, have been made. */
#include "client/gpt/cuda/moe_inside.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES 4096

static size_t row_bytes(const struct gpt_cuda_moe *moe)
{
    return moe->model->width * sizeof(uint16_t);
}

/* -- memory on the host ----------------------------------------------------------------------- */

static void staging_free(const struct gpt_gpu *gpu, struct gpt_cuda_staging *s)
{
    if (s->pinned) {
        gpt_gpu_unregister(gpu, s->p);
    }
    free(s->p);
    *s = (struct gpt_cuda_staging){0};
}

/* Make @s hold at least @bytes. Its contents are lost if it has to grow; then the function waits
 * for the GPU first. CST_ENOMEM. */
static int staging_grow(const struct gpt_gpu *gpu, struct gpt_cuda_staging *s, size_t bytes,
                        struct cst_err *err)
{
    /* The reserve avoids an allocation for every small increase. */
    const size_t wanted = (bytes + bytes / 4 + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    struct cst_err why;
    int rc;

    if (bytes <= s->bytes) {
        return 0;
    }
    rc = gpt_gpu_wait(gpu, err);
    if (rc != 0) {
        return rc;
    }
    staging_free(gpu, s);
    s->p = aligned_alloc(PAGE_BYTES, wanted);
    if (s->p == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory: %zu bytes for the rows of experts",
                           wanted);
    }
    s->bytes = wanted;
    s->pinned = gpt_gpu_register(gpu, s->p, wanted, &why) == 0;
    return 0;
}

void gpt_cuda_peers_close(struct gpt_cuda_moe *moe)
{
    staging_free(moe->gpu, &moe->sent);
    staging_free(moe->gpu, &moe->received);
}

/* -- transport of rows ------------------------------------------------------------------------ */

int gpt_cuda_peers_count(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                         struct cst_err *err)
{
    uint32_t own[GPT_MAX_EXPERTS];

    if (moe->exchange.comm == NULL) {
        return 0;
    }
    memcpy(own, gpt_cuda_moe_counts(moe, l, moe->exchange.rank), moe->model->experts * sizeof *own);
    return gpt_exchange_counts(&moe->exchange, own, l->counts, err);
}

/* Wait for this rank's copies. The call of stat lets the store give back the blocks that the GPU
 * used until now: another rank may wait for their gradients before it can take part in the
 * exchange. */
static int settle(const struct gpt_cuda_moe *moe, struct cst_err *err)
{
    struct cst_rank_stat stat;
    const int rc = gpt_gpu_wait(moe->gpu, err);

    return rc == 0 ? moe->store->ops->stat(moe->store, &stat, err) : rc;
}

int gpt_cuda_peers_send(struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                        struct cst_err *err)
{
    const struct gpt_exchange *x = &moe->exchange;
    const size_t row = row_bytes(moe);
    int rc;

    if (x->comm == NULL) {
        return 0;
    }
    rc = staging_grow(moe->gpu, &moe->sent, l->n_away * row, err);
    if (rc == 0) {
        rc = staging_grow(moe->gpu, &moe->received, gpt_exchange_n_received(x, l->counts) * row,
                          err);
    }
    if (rc == 0 && l->n_away > 0) {
        rc = gpt_gpu_download(moe->gpu, moe->sent.p, moe->away_rows.p, l->n_away * row, err);
    }
    if (rc == 0) {
        rc = settle(moe, err);
    }
    return rc == 0 ? gpt_exchange_send(x, l->counts, moe->sent.p, moe->received.p, row, err) : rc;
}

/* One rank's rows for one expert: kept rows on the GPU, received rows on the host. */
struct stretch {
    CUdeviceptr kept;
    void *received;
    size_t bytes; /* of all these rows */
};

typedef int (*stretch_fn)(const struct gpt_gpu *gpu, const struct stretch *s, struct cst_err *err);

/* Call @fn for the received rows of each expert and rank. @rows: an array of kept rows. */
static int for_stretches(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                         stretch_fn fn, CUdeviceptr rows, struct cst_err *err)
{
    const struct gpt_exchange *x = &moe->exchange;
    const size_t row = row_bytes(moe);
    int rc = 0;

    for (uint32_t e = 0; rc == 0 && e < x->experts; e++) {
        const uint32_t n_ranks = gpt_cuda_moe_is_mine(moe, e) ? x->world : 0;
        size_t kept = l->starts[e];

        for (uint32_t r = 0; rc == 0 && r < n_ranks; r++) {
            const size_t n = gpt_cuda_moe_counts(moe, l, r)[e];
            const size_t received = gpt_exchange_received_at(x, l->counts, r, e);
            const struct stretch s = {.kept = gpt_cuda_moe_row(moe, rows, kept),
                                      .received = (char *)moe->received.p + received * row,
                                      .bytes = n * row};

            if (r != x->rank && n > 0) {
                rc = fn(moe->gpu, &s, err);
            }
            kept += n;
        }
    }
    return rc;
}

static int bring(const struct gpt_gpu *gpu, const struct stretch *s, struct cst_err *err)
{
    return gpt_gpu_upload(gpu, s->kept, s->received, s->bytes, err);
}

static int bring_back(const struct gpt_gpu *gpu, const struct stretch *s, struct cst_err *err)
{
    return gpt_gpu_download(gpu, s->received, s->kept, s->bytes, err);
}

int gpt_cuda_peers_fetch(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                         CUdeviceptr to, struct cst_err *err)
{
    return moe->exchange.comm == NULL ? 0 : for_stretches(moe, l, bring, to, err);
}

int gpt_cuda_peers_return(struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                          CUdeviceptr results, struct cst_err *err)
{
    const struct gpt_exchange *x = &moe->exchange;
    const size_t row = row_bytes(moe);
    int rc;

    if (x->comm == NULL) {
        return 0;
    }
    rc = for_stretches(moe, l, bring_back, results, err);
    if (rc == 0) {
        rc = settle(moe, err);
    }
    if (rc == 0) {
        rc = gpt_exchange_return(x, l->counts, moe->received.p, moe->sent.p, row, err);
    }
    if (rc == 0 && l->n_away > 0) {
        rc = gpt_gpu_upload(moe->gpu, gpt_cuda_moe_row(moe, results, l->starts[x->experts]),
                            moe->sent.p, l->n_away * row, err);
    }
    return rc;
}
