/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/lent_slabs.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/worker.h"
#include "daemon/base/log.h"
#include "daemon/job/job.h"
#include "daemon/memory/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static struct cstd_kept_name name_of(const struct cstd_job *job, uint32_t rank, uint32_t slab)
{
    return (struct cstd_kept_name){
        .kind = CSTD_KEPT_SLAB, .serial = job->serial, .i = rank, .k = slab};
}

uint32_t cstd_lent_slabs_count(const struct cstd_job *job)
{
    uint32_t n = 0, first;

    for (uint32_t r = 0; r < job->world; r++) {
        n += cst_core_lent_slabs(job->core, r, &first);
    }
    return n;
}

/* -- the store -------------------------------------------------------------------------------- */

/* Store slab @i of @rank's pool, unless it is there. A slab that is still being made is stored when
 * it exists (cstd_ledger_note_pools). */
static int store(struct cstd_job *job, uint32_t rank, uint32_t i, bool sent, struct cst_err *err)
{
    struct cstd_keeper *keeper = &job->daemon->keeper;
    const struct cstd_segment *slab = cstd_memory_slab(&job->memory, rank, i);
    const struct cstd_kept_name name = name_of(job, rank, i);

    if (slab == NULL || slab->fd < 0 || cstd_keeper_has(keeper, &name)) {
        return CST_OK;
    }
    if (!sent && cstd_keeper_check(keeper, &name, 1, err) != CST_OK) {
        return cst_err_prefix(err, "its pools lend memory in %" PRIu32 " slabs",
                              cstd_lent_slabs_count(job));
    }
    return cstd_keeper_store(keeper, &name, &slab->fd, 1, sent, err);
}

int cstd_lent_slabs_store(struct cstd_job *job, bool sent, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t r = 0; r < job->world; r++) {
        uint32_t first = 0, n = cst_core_lent_slabs(job->core, r, &first);

        for (uint32_t i = first; i < first + n && rc == CST_OK; i++) {
            rc = store(job, r, i, sent, err);
        }
    }
    return rc;
}

/* The core may have moved the pool already, so all of its slabs are looked for. */
void cstd_lent_slabs_forget(struct cstd_job *job, uint32_t rank)
{
    struct cstd_keeper *keeper = &job->daemon->keeper;

    for (uint32_t i = 0; i < cstd_memory_n_slabs(&job->memory, rank); i++) {
        const struct cstd_kept_name name = name_of(job, rank, i);

        if (cstd_keeper_has(keeper, &name)) {
            cstd_keeper_forget(keeper, &name);
        }
    }
}

/* -- going on --------------------------------------------------------------------------------- */

/* The ranks whose pools have results. */
static struct cst_set find_lenders(const struct cst_core_record *record)
{
    struct cst_set ranks = {{0}};

    for (uint32_t i = 0; i < CST_CORE_MAX_COPYING; i++) {
        const struct cst_core_copying *copying = &record->copying[i];

        if (copying->chunk != 0 && copying->lender - 1 < CST_SET_MAX) {
            cst_set_add(&ranks, copying->lender - 1);
        }
    }
    return ranks;
}

int cstd_lent_slabs_take(struct cstd_job *job, const struct cst_core_record *record,
                         struct cst_err *err)
{
    const struct cst_set ranks = find_lenders(record);

    for (uint32_t r = 0; r < job->world; r++) {
        uint32_t first = 0,
                 n = cst_set_has(&ranks, r) ? cst_core_lent_slabs(job->core, r, &first) : 0;

        for (uint32_t i = first; i < first + n; i++) {
            const struct cstd_kept_name name = name_of(job, r, i);
            int fd = cstd_keeper_take(&job->daemon->keeper, &name, 0);

            if (fd < 0) {
                return cst_err_set(err, CST_ELOST,
                                   "results of updates were in the pool of rank %" PRIu32
                                   ", and its slab %" PRIu32
                                   " is not in the service manager's store",
                                   r, i);
            }
            if (cstd_memory_adopt_slab(&job->memory, &job->layout, r, i, job->workers[r].tier, fd,
                                       err) != CST_OK) {
                return err->status;
            }
        }
    }
    if (!cst_set_none(&ranks)) {
        cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT(job),
                       "results of updates are copied from its pools");
    }
    return CST_OK;
}

void cstd_lent_slabs_settle(struct cstd_job *job)
{
    struct cstd_keeper *keeper = &job->daemon->keeper;

    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        const struct cstd_kept *kept = &keeper->kept[i];

        if (kept->fd >= 0 && kept->name.kind == CSTD_KEPT_SLAB &&
            kept->name.serial == job->serial) {
            cstd_keeper_forget(keeper, &kept->name);
        }
    }
}
