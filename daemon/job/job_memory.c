/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/job_memory.h"

#include "daemon/job/durable.h"
#include "daemon/job/migrate.h"
#include "daemon/job/reshape.h"
#include "daemon/job/span.h"
#include "daemon/memory/device_reservation.h"
#include "daemon/base/log.h"
#include "proto/size.h"

#include <inttypes.h>

int cstd_job_memory_open(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_memory_pool pools[CST_CORE_MAX_WORLD];
    struct cstd_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];
    const struct cstd_memory_request request = {
        .layout = &job->layout,
        .model = &job->model,
        .world = job->world,
        .account = job->account,
        .files = &job->files,
        .pools = pools,
        .reservations = reservations,
        .n_reservations = cstd_device_reservation_list(job, reservations),
        .base = job->base != NULL ? &job->base->memory : NULL,
        .inherited = cstd_reshape_arenas(job),
        .sparse = job->migrate != NULL,
        .serves = cstd_span_serves(job),
        .description_bytes = cstd_upkeep_durable_description(job)};
    char arenas[CST_SIZE_TEXT], slabs[CST_SIZE_TEXT];
    int rc;

    for (uint32_t r = 0; r < job->world; r++) {
        pools[r] = job->workers[r].pool;
    }
    if (cstd_durable_check(job, err) != CST_OK) {
        return err->status;
    }
    rc = job->migrate != NULL ? cstd_migrate_charge(job, false, err) : CST_OK;
    rc = rc == CST_OK ? cstd_upkeep_open(job, false, err) : rc;
    rc = rc == CST_OK ? cstd_memory_open(&job->memory, &request, err) : rc;
    if (rc != CST_OK) {
        cstd_upkeep_close(job);
        cstd_migrate_close(job);
        return rc;
    }
    cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT(job),
                   "%" PRIu64 " parameters in %u chunks of %" PRIu64 ", arenas %s, pools %s",
                   job->model.n_params, job->layout.n_chunks, job->layout.capacity,
                   cst_size_text(job->memory.arena_bytes, arenas),
                   cst_size_text(job->memory.pool_bytes, slabs));
    return CST_OK;
}

void cstd_job_memory_close(struct cstd_job *job)
{
    cstd_migrate_close(job);
    cstd_upkeep_close(job);
    cstd_memory_close(&job->memory);
}
