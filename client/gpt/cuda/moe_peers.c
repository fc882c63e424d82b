/* SPDX-License-Identifier: Apache-2.0 */
/* Transport of rows to and from other ranks, by all-to-all calls in the worker's stream. The rows
 * that a rank receives are in the order of the ranks, and those that it keeps for its experts in
 * the order of the experts. Therefore they are copied from one array to the other. */
#include "client/gpt/cuda/moe_inside.h"

#include <string.h>

static void *pointer(CUdeviceptr p)
{
    return (void *)(uintptr_t)p;
}

static size_t row_bytes(const struct gpt_cuda_moe *moe)
{
    return moe->model->width * sizeof(uint16_t);
}

static bool has_peers(const struct gpt_cuda_moe *moe)
{
    return moe->exchange.comms.host != NULL;
}

int gpt_cuda_peers_count(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                         struct cst_err *err)
{
    uint32_t own[GPT_MAX_EXPERTS];

    if (!has_peers(moe)) {
        return 0;
    }
    memcpy(own, gpt_cuda_moe_counts(moe, l, moe->exchange.rank), moe->model->experts * sizeof *own);
    return gpt_exchange_counts(&moe->exchange, own, l->counts, err);
}

int gpt_cuda_peers_send(struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                        struct cst_err *err)
{
    struct gpt_exchange *x = &moe->exchange;
    const size_t row = row_bytes(moe);
    int rc;

    if (!has_peers(moe)) {
        return 0;
    }
    rc = gpt_cuda_moe_grow(moe->gpu, &moe->received, gpt_exchange_n_received(x, l->counts) * row,
                           err);
    return rc == 0 ? gpt_exchange_send(x, l->counts, pointer(moe->away_rows.p),
                                       pointer(moe->received.p), row, err)
                   : rc;
}

/* Copy the rows of other ranks between moe->received and @rows, an array of kept rows: @back, to
 * moe->received. One copy for each expert and rank. */
static int copy_rows(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                     CUdeviceptr rows, bool back, struct cst_err *err)
{
    const struct gpt_exchange *x = &moe->exchange;
    int rc = 0;

    for (uint32_t e = 0; rc == 0 && e < x->experts; e++) {
        const uint32_t n_ranks = gpt_cuda_moe_is_mine(moe, e) ? x->world : 0;
        size_t at = l->starts[e];

        for (uint32_t r = 0; rc == 0 && r < n_ranks; r++) {
            const size_t n = gpt_cuda_moe_counts(moe, l, r)[e];
            const CUdeviceptr kept = gpt_cuda_moe_row(moe, rows, at);
            const CUdeviceptr received = gpt_cuda_moe_row(
                moe, moe->received.p, gpt_exchange_received_at(x, l->counts, r, e));

            if (r != x->rank && n > 0) {
                rc = gpt_gpu_copy(moe->gpu, back ? received : kept, back ? kept : received,
                                  n * row_bytes(moe), err);
            }
            at += n;
        }
    }
    return rc;
}

int gpt_cuda_peers_fetch(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                         CUdeviceptr to, struct cst_err *err)
{
    return has_peers(moe) ? copy_rows(moe, l, to, false, err) : 0;
}

int gpt_cuda_peers_return(struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                          CUdeviceptr results, struct cst_err *err)
{
    struct gpt_exchange *x = &moe->exchange;
    const CUdeviceptr away = gpt_cuda_moe_row(moe, results, l->starts[x->experts]);
    int rc;

    if (!has_peers(moe)) {
        return 0;
    }
    rc = copy_rows(moe, l, results, true, err);
    return rc == 0 ? gpt_exchange_return(x, l->counts, pointer(moe->received.p), pointer(away),
                                         row_bytes(moe), err)
                   : rc;
}
