/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/pool_share.h"

#include "daemon/daemon.h"
#include "proto/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

uint64_t cstd_pool_share_smallest(const struct cstd_job *job)
{
    uint64_t least = 0;

    for (uint32_t r = 0; r < job->world; r++) {
        uint64_t bytes = job->workers[r].pool_bytes;

        if (bytes != 0 && (least == 0 || bytes < least)) {
            least = bytes;
        }
    }
    return least;
}

/* Copy the numbers of blocks of @job's plan to *out. NULL: there is no plan for this layout. */
static const struct cstd_pools_blocks *planned_blocks(const struct cstd_job *job,
                                                      struct cstd_pools_blocks *out)
{
    const struct cst_plan_choice *choice = &job->plan.choice;

    if (!job->plan.valid || choice->n_classes != job->layout.n_classes) {
        return NULL;
    }
    memcpy(out->n, choice->n_blocks, sizeof out->n);
    return out;
}

/* Return what the budget of @gpu (NULL: the host device) has left for the ranks that asked for no
 * size. *n_open: the number of these ranks. */
static uint64_t left_for_open(const struct cstd_job *job, const struct cstd_memory_pool *pools,
                              struct cstd_gpu *gpu, uint32_t *n_open)
{
    const struct cstd_budget *budget = cstd_memory_budget(job->daemon, gpu);
    uint64_t left = cstd_budget_left(budget, job->account),
             rooms = cstd_device_reservation_bytes(job, gpu);

    left -= rooms < left ? rooms : left;
    *n_open = 0;
    for (uint32_t r = 0; r < job->world; r++) {
        uint64_t bytes;

        if (pools[r].gpu != gpu) {
            continue;
        }
        if (job->workers[r].pool_bytes == 0) {
            ++*n_open;
            continue;
        }
        bytes =
            cstd_pools_bytes(&job->layout, &pools[r].blocks, cstd_memory_grain(job->daemon, gpu));
        left -= bytes < left ? bytes : left;
    }
    return left;
}

/* Write what is in use of the budget of @gpu's pools, or of the owner's quota for them, whichever
 * leaves less. */
static void words_of_use(const struct cstd_job *job, struct cstd_gpu *gpu, char *out, size_t n)
{
    const struct cstd_budget *budget = cstd_memory_budget(job->daemon, gpu);
    char words[CSTD_BUDGET_WORDS];

    if (cstd_budget_left(budget, job->account) < cstd_budget_unused(budget)) {
        cstd_quota_words(job->account, budget->resource, out, n);
    } else {
        cstd_budget_words(budget, words, sizeof words);
        (void)snprintf(out, n, "%s: %s", budget->name, words);
    }
}

/* Only the ranks that asked for a size are subtracted from the budget, hence all shares are equal,
 * whatever their order. */
static int give_share(const struct cstd_job *job, const struct cstd_memory_pool *pools,
                      uint32_t rank, struct cstd_pools_blocks *out, struct cst_err *err)
{
    struct cstd_gpu *gpu = pools[rank].gpu;
    char use[CSTD_QUOTA_WORDS];
    struct cstd_pools_blocks planned;
    struct cst_err why = {0};
    uint32_t n_open;
    uint64_t left = left_for_open(job, pools, gpu, &n_open);
    int rc = cstd_pools_divide(&job->layout, &job->model, rank, left / n_open,
                               cstd_memory_grain(job->daemon, gpu), planned_blocks(job, &planned),
                               out, &why);

    if (rc != CST_OK) {
        words_of_use(job, gpu, use, sizeof use);
        rc = cst_err_set(err, CST_EBUDGET,
                         "%.180s; the share that is left for rank %u is too small: %.150s", use,
                         rank, why.text);
    }
    return rc;
}

int cstd_pool_share_divide(const struct cstd_job *job, struct cstd_memory_pool *pools,
                           struct cst_err *err)
{
    struct cstd_pools_blocks planned;
    int rc = CST_OK;

    for (uint32_t r = 0; r < job->world && rc == CST_OK; r++) {
        pools[r] = (struct cstd_memory_pool){.gpu = job->workers[r].gpu};
        if (job->workers[r].pool_bytes != 0) {
            rc = cstd_pools_divide(&job->layout, &job->model, r, job->workers[r].pool_bytes, 1,
                                   planned_blocks(job, &planned), &pools[r].blocks, err);
        }
    }
    for (uint32_t r = 0; r < job->world && rc == CST_OK; r++) {
        if (job->workers[r].pool_bytes == 0) {
            rc = give_share(job, pools, r, &pools[r].blocks, err);
        }
    }
    return rc;
}

int cstd_pool_share_check(const struct cstd_worker *worker, struct cst_err *err)
{
    const struct cstd_job *job = worker->job;
    const struct cst_core_pool *pool = &job->memory.pools[worker->rank];
    struct cstd_pools_blocks now, planned;
    struct cst_err why = {0};
    char block[CST_SIZE_TEXT], request[CST_SIZE_EXACT];
    int rc;

    if (worker->pool_bytes == 0) {
        return CST_OK;
    }
    rc = cstd_pools_divide(&job->layout, &job->model, worker->rank, worker->pool_bytes, 1,
                           planned_blocks(job, &planned), &now, &why);
    if (rc != CST_OK) {
        rc = cst_err_set(err, CST_EMISMATCH,
                         "pool of rank %u: it was larger when the job was committed: %.250s",
                         worker->rank, why.text);
    }
    for (uint32_t c = 0; c < job->layout.n_classes && rc == CST_OK; c++) {
        if (now.n[c] != pool->parts[c].n_blocks) {
            rc = cst_err_set(err, CST_EMISMATCH,
                             "pool of rank %u: it has had %u blocks of %s since the job was "
                             "committed; a pool of %s has %u",
                             worker->rank, pool->parts[c].n_blocks,
                             cst_size_text(job->layout.classes[c].capacity * 2, block),
                             cst_size_exact(worker->pool_bytes, request), now.n[c]);
        }
    }
    return rc;
}
