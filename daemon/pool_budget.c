/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/pool_budget.h"

#include "daemon/daemon.h"
#include "daemon/done.h"
#include "daemon/host_memory.h"
#include "proto/size.h"

uint64_t cstd_pool_budget_charge(const struct cstd_daemon *daemon, const struct cst_layout *layout,
                                 const struct cstd_memory_pool *pool)
{
    return cstd_pools_bytes(layout, &pool->blocks, cstd_memory_grain(daemon, pool->gpu));
}

/* Bytes of the device reservations on @gpu and of the states that stay there. */
static uint64_t room_bytes(const struct cstd_memory_request *request, const struct cstd_gpu *gpu)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < request->n_rooms; i++) {
        bytes += request->rooms[i].gpu == gpu ? request->rooms[i].bytes : 0;
    }
    for (uint32_t i = 0; gpu != NULL && i < request->layout->n_segments; i++) {
        bytes += request->layout->segments[i].node == gpu->engine
                     ? request->layout->segments[i].bytes
                     : 0;
    }
    return bytes;
}

/* Bytes that all ranks with the budget of @rank's pool need from this budget, including device
 * reservations and states. Returns 0 if a lower rank has the budget too, because the sum was
 * checked for that rank. */
static uint64_t sum_pools(const struct cstd_daemon *daemon,
                          const struct cstd_memory_request *request, uint32_t rank)
{
    const struct cstd_memory_pool *pools = request->pools;
    uint64_t bytes = room_bytes(request, pools[rank].gpu);

    for (uint32_t r = 0; r < request->world; r++) {
        if (pools[r].gpu != pools[rank].gpu) {
            continue;
        }
        if (r < rank) {
            return 0;
        }
        bytes += cstd_pool_budget_charge(daemon, request->layout, &pools[r]);
    }
    return bytes;
}

static int check(struct cstd_budget *budget, struct cstd_quota_account *account, uint64_t bytes,
                 const char *name, struct cst_err *err)
{
    int rc = cstd_budget_take(budget, account, bytes, name, err);

    if (rc == CST_OK) {
        cstd_budget_give(budget, account, bytes);
    }
    return rc;
}

/* Check @bytes against the limit of the control group. The kernel would not refuse memory beyond
 * the limit, but kill an engine. */
static int check_machine(const struct cstd_daemon *daemon, uint64_t bytes, const char *name,
                         struct cst_err *err)
{
    uint64_t used = daemon->host.used + daemon->pool.used;
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

/* Bytes of host memory that @request needs, including pools. */
static uint64_t host_bytes(const struct cstd_daemon *daemon,
                           const struct cstd_memory_request *request, uint64_t arena_bytes)
{
    uint64_t bytes = arena_bytes;

    for (uint32_t r = 0; r < request->world; r++) {
        bytes += request->pools[r].gpu == NULL
                     ? cstd_pool_budget_charge(daemon, request->layout, &request->pools[r])
                     : 0;
    }
    return bytes;
}

int cstd_pool_budget_check(struct cstd_daemon *daemon, const struct cstd_memory_request *request,
                           uint64_t arena_bytes, const char *name, struct cst_err *err)
{
    struct cstd_quota_account *account = request->account;
    int rc = check(&daemon->host, account, arena_bytes, name, err);
    bool host = rc != CST_OK; /* Host memory is what is short. */

    for (uint32_t r = 0; r < request->world && rc == CST_OK; r++) {
        rc = check(cstd_memory_budget(daemon, request->pools[r].gpu), account,
                   sum_pools(daemon, request, r), name, err);
    }
    /* Accelerators without pools. For an accelerator with pools the sum above was at least as
     * large. */
    for (uint32_t i = 0; i < request->n_rooms && rc == CST_OK; i++) {
        rc = check(&request->rooms[i].gpu->pool, account,
                   room_bytes(request, request->rooms[i].gpu), name, err);
    }
    if (rc == CST_OK) {
        rc = check_machine(daemon, host_bytes(daemon, request, arena_bytes), name, err);
        host = rc != CST_OK;
    }
    /* Removing jobs that are done frees host memory only; they have no pools. */
    if (host && account != NULL) {
        cstd_done_suggest(daemon, account->uid, request->manager, err);
    }
    return rc;
}
