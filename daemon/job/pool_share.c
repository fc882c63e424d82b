/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/pool_share.h"

#include "daemon/base/daemon_state.h"
#include "daemon/memory/device_reservation.h"
#include "daemon/memory/edge_slots.h"
#include "daemon/job/done.h"
#include "daemon/job/migrate.h"
#include "daemon/job/reshape.h"
#include "daemon/budget/host_memory.h"
#include "daemon/memory/memory_pools.h"
#include "daemon/session/session.h"
#include "proto/reason.h"
#include "proto/size.h"
#include "daemon/budget/arena.h"
#include "daemon/budget/quota.h"
#include "daemon/memory/memory.h"
#include "daemon/memory/tiers/tier.h"

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

/* -- sizes ------------------------------------------------------------------------------------ */

/* Return what the budget of @tier's pools has left for the ranks that asked for no
 * size, without device reservations and slots of edges. *n_open: the number of these ranks. */
static uint64_t left_for_open(const struct cstd_job *job, const struct cstd_tier *tier,
                              uint32_t *n_open)
{
    const struct cstd_budget *budget = cstd_tier_budget(tier);
    uint64_t left = cstd_budget_left(budget, job->account),
             reserved = cstd_device_reservation_bytes(job, tier);

    reserved += cstd_edge_slots_bytes(job, tier);
    left -= reserved < left ? reserved : left;
    *n_open = 0;
    for (uint32_t r = 0; r < job->world; r++) {
        const struct cstd_worker *worker = &job->workers[r];

        if (worker->tier == tier && worker->pool_bytes == 0) {
            ++*n_open;
        } else if (worker->tier == tier) {
            left -= worker->pool.bytes < left ? worker->pool.bytes : left;
        }
    }
    return left;
}

/* Write what is in use of the budget of @tier's pools, or of the owner's quota for them, whichever
 * leaves less, and what the slots of edges will take there. */
static void words_of_use(const struct cstd_job *job, const struct cstd_tier *tier, char *out,
                         size_t n)
{
    const struct cstd_budget *budget = cstd_tier_budget(tier);
    uint64_t slots = cstd_edge_slots_bytes(job, tier);
    char words[CSTD_BUDGET_WORDS], exact[CST_SIZE_EXACT];

    if (cstd_budget_left(budget, job->account) < cstd_budget_unused(budget)) {
        cstd_quota_words(job->account, budget->resource, out, n);
    } else {
        cstd_budget_words(budget, words, sizeof words);
        (void)snprintf(out, n, "%s: %s", budget->name, words);
    }
    if (slots > 0) {
        size_t end = strlen(out);

        (void)snprintf(out + end, n - end, ", and slots of edges take %s",
                       cst_size_exact(slots, exact));
    }
}

/* Bytes of the words between both parts of the error of give_share, at most. */
#define SHARE_WORDS 64

/* Only the ranks that asked for a size are subtracted from the budget, hence all shares are equal,
 * whatever their order. */
static int give_share(const struct cstd_job *job, const struct cstd_worker *worker, uint64_t grain,
                      struct cstd_pools_blocks *out, struct cst_err *err)
{
    char use[CSTD_BUDGET_WORDS + 128];
    struct cstd_pools_blocks planned;
    struct cst_err why = {0};
    uint32_t n_open;
    uint64_t left = left_for_open(job, worker->tier, &n_open);
    int rc = cstd_pools_divide(&job->layout, &job->model, worker->rank, left / n_open, grain,
                               planned_blocks(job, &planned), out, &why);

    if (rc != CST_OK) {
        /* What the caller can do is in the second part, so the first part is cut if need be. */
        size_t most = sizeof err->text - SHARE_WORDS, end = strlen(why.text);

        most -= end < most ? end : most;
        words_of_use(job, worker->tier, use, sizeof use);
        rc = cst_err_set(err, CST_EBUDGET,
                         "%.*s; the share that is left for rank %u is too small: %s", (int)most,
                         use, worker->rank, why.text);
        (void)cst_err_give_reason(err, CST_REASON_POOL_MEMORY, rc);
    }
    return rc;
}

/* Divide the pool of @worker, which asked for a size, between the size classes. The size counts the
 * bytes of blocks, as plans, `--pool` and the Committed reply do. Hence the grain is 1: with the
 * granularity of an accelerator, a pool of exactly the planned blocks could not hold them. The
 * bytes by which slabs are rounded up are charged in addition. */
static int divide_requested(const struct cstd_worker *worker, struct cstd_pools_blocks *out,
                            struct cst_err *err)
{
    const struct cstd_job *job = worker->job;
    struct cstd_pools_blocks planned;

    return cstd_pools_divide(&job->layout, &job->model, worker->rank, worker->pool_bytes, 1,
                             planned_blocks(job, &planned), out, err);
}

/* Size the pool of @worker, if it is time: first the pools of a given size, then the shares. */
static int size_pool(struct cstd_worker *worker, bool shares, struct cst_err *err)
{
    const struct cstd_job *job = worker->job;
    struct cstd_memory_pool *pool = &worker->pool;
    uint64_t grain = cstd_tier_grain(worker->tier);
    int rc;

    if (shares != (worker->pool_bytes == 0)) {
        return CST_OK;
    }
    *pool = (struct cstd_memory_pool){.tier = worker->tier};
    rc = shares ? give_share(job, worker, grain, &pool->blocks, err)
                : divide_requested(worker, &pool->blocks, err);
    if (rc == CST_OK) {
        pool->bytes = cstd_pools_bytes(&job->layout, &pool->blocks, grain);
    }
    return rc;
}

/* -- budgets ---------------------------------------------------------------------------------- */

/* Device reservations of a job. */
struct reservations {
    struct cstd_device_reservation v[CST_CORE_MAX_UPDATE_DEVICES];
    uint32_t n;
};

/* Bytes of the device reservations in @tier, of the states that stay there and of the slots of
 * edges.
 */
static uint64_t reservation_bytes(const struct cstd_job *job,
                                  const struct reservations *reservations,
                                  const struct cstd_tier *tier)
{
    uint64_t bytes = cstd_edge_slots_bytes(job, tier);

    for (uint32_t i = 0; i < reservations->n; i++) {
        bytes += cstd_tier_buffers(reservations->v[i].tier) == tier ? reservations->v[i].bytes : 0;
    }
    for (uint32_t i = 0; tier->kind->one_budget && i < job->layout.n_segments; i++) {
        bytes += job->layout.segments[i].tier == tier->number ? job->layout.segments[i].bytes : 0;
    }
    return bytes;
}

/* Bytes of all pools in @tier. */
static uint64_t pools_on(const struct cstd_job *job, const struct cstd_tier *tier)
{
    uint64_t bytes = 0;

    for (uint32_t r = 0; r < job->world; r++) {
        bytes += job->workers[r].tier == tier ? job->workers[r].pool.bytes : 0;
    }
    return bytes;
}

/* True if a rank below @rank has its pool on the same device. */
static bool is_shared(const struct cstd_job *job, uint32_t rank)
{
    for (uint32_t r = 0; r < rank; r++) {
        if (job->workers[r].tier == job->workers[rank].tier) {
            return true;
        }
    }
    return false;
}

/* Check @bytes against the limit of the control group. The kernel would not refuse memory beyond
 * the limit, but kill an engine. */
static int check_machine(const struct cstd_daemon *daemon, uint64_t bytes, const char *name,
                         struct cst_err *err)
{
    uint64_t used = daemon->host->used + daemon->pool->used;
    struct cstd_host_memory_limit limit;
    char wants[CST_SIZE_EXACT], in_use[CST_SIZE_EXACT], allowed[CST_SIZE_EXACT];

    if (!cstd_host_memory_limit("", &limit) ||
        (used <= limit.bytes && bytes <= limit.bytes - used)) {
        return CST_OK;
    }
    return cst_err_set(err, CST_ENOMEM,
                       "job '%s' wants %s of memory and %s are in use: the daemon's control group "
                       "allows %s (%.100s)",
                       name, cst_size_exact(bytes, wants), cst_size_exact(used, in_use),
                       cst_size_exact(limit.bytes, allowed), limit.file);
}

/* True if one of the workers uses the manager socket. Refusals may then name jobs of other
 * users. */
static bool asks_as_manager(const struct cstd_job *job)
{
    bool any = false;

    for (uint32_t r = 0; r < job->world; r++) {
        any = any || (job->workers[r].session != NULL && job->workers[r].session->manager);
    }
    return any;
}

/* Host memory is short, as @err says: name the user's jobs that are done. Removing them frees host
 * memory only; they have no pools. */
static void suggest(const struct cstd_job *job, struct cst_err *err)
{
    if (job->account != NULL) {
        cstd_done_suggest(job->daemon, job->account->uid, asks_as_manager(job), err);
    }
}

/* Bytes of host memory that @job takes in addition to the arenas that exist already. */
static uint64_t host_bytes(const struct cstd_job *job)
{
    uint64_t bytes = cstd_memory_host_bytes(&job->layout) + cstd_edge_slots_host_bytes(job) +
                     cstd_reshape_staging_bytes(job) + cstd_upkeep_bytes(job);

    if (job->inherits) {
        return bytes - job->layout.arena_bytes;
    }
    return job->migrate != NULL ? bytes - job->layout.arena_bytes + job->migrate->more_bytes
                                : bytes;
}

/* Open files that @job takes. */
static uint64_t count_files(const struct cstd_job *job)
{
    uint64_t n = cstd_upkeep_files(job) + job->layout.n_segments + 1 +
                 2 * (uint64_t)cstd_memory_n_edge_segments(&job->model);

    for (uint32_t r = 0; r < job->world; r++) {
        for (uint32_t c = 0; c < job->layout.n_classes; c++) {
            n += 2 * (uint64_t)cstd_pools_slabs(&job->layout, c, job->workers[r].pool.blocks.n[c]);
        }
    }
    return n;
}

/* Append what @more says to @err, another shortage of the same request, which keeps its reason, or
 * set it. */
static void add_shortage(struct cst_err *err, const struct cst_err *more)
{
    size_t used = strlen(err->text);

    if (err->status == CST_OK) {
        *err = *more;
    } else if (more->status != CST_OK && used + strlen(more->text) + 3 <= sizeof err->text) {
        (void)snprintf(err->text + used, sizeof err->text - used, "; %s", more->text);
    }
}

/* Check the sums first. Otherwise thousands of memfds would be created before a budget is
 * exceeded. */
static int check_budgets(const struct cstd_job *job, struct cst_err *err)
{
    struct reservations reservations = {.n = cstd_device_reservation_list(job, reservations.v)};
    uint64_t host = host_bytes(job);
    struct cst_err all = {0}, one = {0};
    bool host_short;

    (void)cstd_budget_check(job->daemon->host, job->account, host, job->name, &all);
    host_short = all.status != CST_OK;
    for (uint32_t r = 0; r < job->world; r++) {
        const struct cstd_tier *tier = job->workers[r].tier;

        if (!is_shared(job, r) &&
            cstd_budget_check(cstd_tier_budget(tier), job->account,
                              reservation_bytes(job, &reservations, tier) + pools_on(job, tier),
                              job->name, &one) != CST_OK) {
            add_shortage(&all, &one);
        }
    }
    /* Accelerators without pools. For an accelerator with pools the sum above was at least as
     * large. */
    for (uint32_t i = 0; i < reservations.n && all.status == CST_OK; i++) {
        (void)cstd_budget_check(reservations.v[i].tier->budget, job->account,
                                reservation_bytes(job, &reservations, reservations.v[i].tier),
                                job->name, &all);
    }
    if (cstd_quota_check(job->account, CSTD_QUOTA_FILES, count_files(job), job->name, &one) !=
        CST_OK) {
        add_shortage(&all, &one);
    }
    if (all.status == CST_OK) {
        host_short = check_machine(job->daemon, host + pools_on(job, cstd_tiers_host(job->daemon)),
                                   job->name, &all) != CST_OK;
    }
    if (host_short) {
        suggest(job, &all);
    }
    if (all.status != CST_OK) {
        *err = all;
    }
    return all.status;
}

int cstd_pool_share_divide(struct cstd_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < 2 * job->world && rc == CST_OK; i++) {
        rc = size_pool(&job->workers[i % job->world], i >= job->world, err);
    }
    return rc == CST_OK ? check_budgets(job, err) : rc;
}

/* -- workers that come back ------------------------------------------------------------------- */

/* True if a pool of @bytes can have the blocks that @pool has, and not one more that @rank can
 * use. */
static bool is_size_of(const struct cst_layout *layout, uint32_t rank,
                       const struct cstd_memory_pool *pool, uint64_t bytes)
{
    uint64_t has = cstd_pools_bytes(layout, &pool->blocks, 1);

    if (bytes < has) {
        return false;
    }
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        if (pool->blocks.n[c] < layout->needs[rank].max_blocks[c] &&
            layout->classes[c].capacity * 2 <= bytes - has) {
            return false;
        }
    }
    return true;
}

int cstd_pool_share_check(const struct cstd_worker *worker, struct cst_err *err)
{
    const struct cstd_job *job = worker->job;
    char asked[CST_SIZE_EXACT], pool[CST_SIZE_EXACT];

    if (worker->pool_asked == 0 || worker->pool_asked == worker->pool_bytes ||
        is_size_of(&job->layout, worker->rank, &worker->pool, worker->pool_asked)) {
        return CST_OK;
    }
    return cst_err_give_reason(
        err, CST_REASON_POOL,
        cst_err_set(err, CST_EMISMATCH,
                    "rank %" PRIu32
                    " asks for a pool of %s, but since the job was committed it has had one "
                    "of %s: ask for that, or for no size (when the job has no worker, 'reshape' "
                    "changes it)",
                    worker->rank, cst_size_exact(worker->pool_asked, asked),
                    cst_size_exact(cstd_pools_bytes(&job->layout, &worker->pool.blocks, 1), pool)));
}
