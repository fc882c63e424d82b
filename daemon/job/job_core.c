/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/job_core.h"

#include "daemon/base/daemon_state.h"
#include "daemon/ledger/describe.h"
#include "daemon/job/span.h"
#include "daemon/job/updates.h"
#include "daemon/memory/device_reservation.h"
#include "offload/core/revival.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engines.h"
#include "daemon/ledger/ledger.h"
#include "daemon/memory/memory.h"
#include "daemon/settings/settings.h"

#include <string.h>

static struct cst_core_policy policy_of(const struct cstd_job *job)
{
    struct cst_core_policy policy = {.gather_bytes = job->daemon->config->gpu_gather,
                                     .overlap = job->spec.updates.overlap,
                                     .delay_from = job->spec.updates.delay_from};

    if (job->plan.valid) {
        policy.prefetch_depth = job->plan.choice.prefetch_depth;
    }
    if (job->spec.planning.prefetch_depth > 0) {
        policy.prefetch_depth = job->spec.planning.prefetch_depth;
    }
    return policy;
}

/* What the configuration of a core refers to. */
struct referred {
    struct cstd_device_reservations reservations;
    struct cst_core_machines machines;
};

/* Return the configuration of the core, which refers to *@referred. */
static struct cst_core_config config_of(struct cstd_job *job, struct referred *referred)
{
    const struct cstd_memory *memory = &job->memory;
    struct cstd_device_reservations *reservations = &referred->reservations;

    *reservations = cstd_device_reservation_describe(job);
    return (struct cst_core_config){
        .model = &job->model,
        .layout = &job->layout,
        .world = job->world,
        .arena_segments = memory->ids,
        .table_segment = memory->ids[memory->n_arenas],
        .table = memory->table,
        .pools = memory->pools,
        /* The low 32 bits of a mark must not be 0 (proto/table.h). A REDUCE is marked with its
         * ticket. */
        .first_ticket = (job->serial << CSTD_JOB_TICKET_SHIFT) + 1,
        .peer_timeout_ns = (uint64_t)job->spec.limits.timeout_ms * 1000000,
        .policy = policy_of(job),
        .micro_batches = job->spec.updates.micro_batches,
        .arenas_are_new = memory->arenas_are_new,
        .seed = job->spec.states.seed,
        .rounding = job->spec.states.rounding,
        .reservations = reservations->v,
        .n_reservations = reservations->n,
        .interleave = cstd_updates_open(job),
        .block_ranks = job->spec.updates.block_ranks,
        .machines = cstd_span_machines(job, &referred->machines) ? &referred->machines : NULL,
    };
}

static void limit_traces(const struct cstd_job *job)
{
    for (uint32_t r = 0; r < job->world; r++) {
        cst_core_limit_trace(job->core, r, job->workers[r].n_trace);
    }
}

int cstd_job_core_open(struct cstd_job *job, struct cst_err *err)
{
    struct referred referred;
    struct cst_core_config config = config_of(job, &referred);
    int rc = cst_core_open(&job->core, &config, err);

    job->memory.arenas_are_new = false; /* From now on the core knows what is. */
    if (rc == CST_OK) {
        limit_traces(job);
        cstd_drift_init(&job->drift, job->plan.valid ? job->plan.step_s : 0);
        cstd_memory_size_table(&job->layout, job->memory.table);
        cst_core_write_table(&config, job->memory.table);
    }
    return rc;
}

int cstd_job_core_renew(struct cstd_job *job, struct cst_err *err)
{
    struct cst_core *old = job->core;
    int rc;

    cstd_updates_close(job);
    rc = cstd_job_core_open(job, err);
    if (rc == CST_OK) {
        cst_core_close(old);
    }
    return rc;
}

int cstd_job_core_reopen(struct cstd_job *job, const struct cst_core_record *record,
                         struct cst_err *err)
{
    struct cst_table_header *table = job->memory.table, wanted;
    struct referred referred;
    struct cst_core_config config = config_of(job, &referred);
    int rc = cst_core_open(&job->core, &config, err);

    if (rc != CST_OK) {
        return rc;
    }
    limit_traces(job);
    cstd_drift_init(&job->drift, job->plan.valid ? job->plan.step_s : 0);
    cstd_memory_size_table(&job->layout, &wanted);
    /* The fields that depend on the layout come first. */
    if (memcmp(table, &wanted, offsetof(struct cst_table_header, grad_bytes)) != 0) {
        return cst_err_set(err, CST_ELOST, "its job table is not that of its layout");
    }
    return cst_core_may_revive(job->core, record, table, err);
}

void cstd_job_core_close(struct cstd_job *job)
{
    cstd_ledger_forget(job);
    cst_core_close(job->core);
    job->core = NULL;
    for (uint32_t r = 0; r < job->world; r++) {
        job->workers[r].n_trace = 0;
    }
    cstd_charge_force(&job->traces, 0);
    cstd_updates_close(job);
    cstd_record_close(job->record);
    job->record = NULL;
    cstd_history_close(&job->history);
    cstd_describe_forget(job);
    /* Completions of the job's commands are ignored from now on. */
    cstd_engines_forget(job->daemon->engines, CSTD_JOB_TICKET_SHIFT, job->serial);
}
