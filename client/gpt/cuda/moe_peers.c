/* SPDX-License-Identifier: Apache-2.0 */
/* Transport of rows to and from other ranks, through the memory that the ranks share. A rank
 * finishes its copies before it enters a barrier. Therefore what is written before a barrier is
 * visible after it. What is read after a barrier is not overwritten before the next one. */
#include "client/gpt/cuda/moe_inside.h"

#include "client/gpt/host_moe.h"

#include <string.h>

#define REGION_ALIGN 4096 /* alignment of a region's arrays */

/* A rank's region: what the rank publishes, and the results that other ranks write. */
struct region {
    uint32_t *counts; /* one per expert */
    /* Away rows x width bf16. Forward: inputs of the experts. Backward: gradients of their
     * outputs. */
    char *tokens;
    /* The results for these rows, written by the experts' ranks. Forward: outputs. Backward:
     * gradients of the inputs. */
    char *results;
};

static size_t aligned(size_t bytes)
{
    return (bytes + REGION_ALIGN - 1) / REGION_ALIGN * REGION_ALIGN;
}

static size_t row_bytes(const struct gpt_model *m)
{
    return m->width * sizeof(uint16_t);
}

static struct region region_of(const struct gpt_cuda_moe *moe, uint32_t rank)
{
    const struct gpt_model *m = moe->model;
    char *at = gpt_exchange_region(moe->exchange, rank);
    struct region r = {.counts = (uint32_t *)(void *)at};

    r.tokens = at + aligned(m->experts * sizeof *r.counts);
    r.results = r.tokens + aligned(moe->max_rows * m->top_k * row_bytes(m));
    return r;
}

size_t gpt_cuda_moe_region_bytes(const struct gpt_model *m, size_t rows)
{
    const size_t bytes =
        aligned(m->experts * sizeof(uint32_t)) + 2 * aligned(rows * m->top_k * row_bytes(m));
    const size_t host = gpt_moe_region_bytes(m, rows);

    /* Equal sizes would let ranks on the host and on GPUs join each other. */
    return aligned(bytes) == aligned(host) ? bytes + REGION_ALIGN : bytes;
}

/* -- callbacks of the exchange ---------------------------------------------------------------- */

/* The store does not give a block back while the GPU uses it. Any call of the store sends what can
 * be given back by then. This callback makes such calls while a barrier waits. */
static void look(void *arg)
{
    const struct gpt_cuda_moe *moe = arg;
    struct cst_rank_stat stat;
    struct cst_err err;

    (void)moe->store->ops->stat(moe->store, &stat, &err); /* The next operator reports the error. */
}

static void came(void *arg, void *base, size_t bytes)
{
    struct gpt_cuda_moe *moe = arg;
    struct cst_err err;

    moe->pinned = gpt_gpu_register(moe->gpu, base, bytes, &err) == 0 ? base : NULL;
}

/* Unpin the memory after the copies that may be under way. */
static void goes(void *arg, void *base)
{
    struct gpt_cuda_moe *moe = arg;

    if (moe->pinned == base) {
        (void)gpt_gpu_wait(moe->gpu, NULL);
        gpt_gpu_unregister(moe->gpu, base);
        moe->pinned = NULL;
    }
}

void gpt_cuda_peers_watch(struct gpt_cuda_moe *moe)
{
    gpt_cuda_peers_forget(moe);
    moe->watch = (struct gpt_exchange_watch){.look = look, .came = came, .goes = goes, .arg = moe};
    moe->watched = moe->exchange;
    gpt_exchange_watch(moe->watched, &moe->watch);
}

void gpt_cuda_peers_forget(struct gpt_cuda_moe *moe)
{
    if (moe->watched != NULL) {
        gpt_exchange_watch(moe->watched, NULL);
        moe->watched = NULL;
    }
}

/* -- transport of rows ------------------------------------------------------------------------ */

/* Barrier of all ranks, after this rank's copies. The call of stat lets the store give back the
 * blocks that the GPU used until now: another rank may wait for their gradients before it can reach
 * the barrier. */
static int meet(const struct gpt_cuda_moe *moe, struct cst_err *err)
{
    struct cst_rank_stat stat;
    int rc = gpt_gpu_wait(moe->gpu, err);

    if (rc == 0) {
        rc = moe->store->ops->stat(moe->store, &stat, err);
    }
    return rc == 0 ? gpt_exchange_meet(moe->exchange, err) : rc;
}

/* Number of away rows of @rank before those for @expert. */
static size_t away_before(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                          uint32_t rank, uint32_t expert)
{
    const uint32_t *counts = gpt_cuda_moe_counts(moe, l, rank);
    size_t sum = 0;

    for (uint32_t e = 0; e < expert; e++) {
        sum += gpt_model_expert_rank(e, moe->world) == rank ? 0 : counts[e];
    }
    return sum;
}

int gpt_cuda_peers_publish(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                           struct cst_err *err)
{
    const uint32_t n = moe->model->experts;
    struct region r;
    int rc = 0;

    if (moe->exchange == NULL) {
        return 0;
    }
    r = region_of(moe, moe->rank);
    memcpy(r.counts, gpt_cuda_moe_counts(moe, l, moe->rank), n * sizeof *r.counts);
    if (l->n_away > 0) {
        rc = gpt_gpu_download(moe->gpu, r.tokens, moe->sent.p, l->n_away * row_bytes(moe->model),
                              err);
    }
    if (rc == 0) {
        rc = meet(moe, err);
    }
    for (uint32_t other = 0; rc == 0 && other < moe->world; other++) {
        memcpy(gpt_cuda_moe_counts(moe, l, other), region_of(moe, other).counts,
               n * sizeof *r.counts);
    }
    return rc;
}

/* One rank's rows for one expert: kept rows here, away rows in the other rank's region. */
struct stretch {
    uint32_t rank;
    size_t here, there; /* number of kept and of away rows before them */
    size_t n;           /* number of rows */
};

typedef int (*stretch_fn)(const struct gpt_cuda_moe *moe, const struct stretch *s, CUdeviceptr rows,
                          struct cst_err *err);

static int for_stretches(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                         stretch_fn fn, CUdeviceptr rows, struct cst_err *err)
{
    int rc = 0;

    for (uint32_t e = 0; rc == 0 && e < moe->model->experts; e++) {
        const uint32_t n_ranks = gpt_cuda_moe_is_mine(moe, e) ? moe->world : 0;
        size_t here = l->starts[e];

        for (uint32_t r = 0; rc == 0 && r < n_ranks; r++) {
            const struct stretch s = {.rank = r,
                                      .here = here,
                                      .there = away_before(moe, l, r, e),
                                      .n = gpt_cuda_moe_counts(moe, l, r)[e]};

            if (r != moe->rank && s.n > 0) {
                rc = fn(moe, &s, rows, err);
            }
            here += s.n;
        }
    }
    return rc;
}

static int bring(const struct gpt_cuda_moe *moe, const struct stretch *s, CUdeviceptr rows,
                 struct cst_err *err)
{
    const size_t bytes = row_bytes(moe->model);

    return gpt_gpu_upload(moe->gpu, gpt_cuda_moe_row(moe, rows, s->here),
                          region_of(moe, s->rank).tokens + s->there * bytes, s->n * bytes, err);
}

static int bring_back(const struct gpt_cuda_moe *moe, const struct stretch *s, CUdeviceptr rows,
                      struct cst_err *err)
{
    const size_t bytes = row_bytes(moe->model);

    return gpt_gpu_download(moe->gpu, region_of(moe, s->rank).results + s->there * bytes,
                            gpt_cuda_moe_row(moe, rows, s->here), s->n * bytes, err);
}

int gpt_cuda_peers_fetch(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                         CUdeviceptr to, struct cst_err *err)
{
    return moe->exchange == NULL ? 0 : for_stretches(moe, l, bring, to, err);
}

int gpt_cuda_peers_return(const struct gpt_cuda_moe *moe, const struct gpt_cuda_moe_layer *l,
                          CUdeviceptr results, struct cst_err *err)
{
    int rc;

    if (moe->exchange == NULL) {
        return 0;
    }
    rc = for_stretches(moe, l, bring_back, results, err);
    if (rc == 0) {
        rc = meet(moe, err);
    }
    if (rc == 0 && l->n_away > 0) {
        rc = gpt_gpu_upload(
            moe->gpu, gpt_cuda_moe_row(moe, results, l->starts[moe->model->experts]),
            region_of(moe, moe->rank).results, l->n_away * row_bytes(moe->model), err);
    }
    return rc;
}
