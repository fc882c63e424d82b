/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/migrate.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/state_copy.h"
#include "offload/layout/rows.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engines.h"
#include "daemon/ledger/ledger.h"
#include "daemon/memory/memory.h"
#include "daemon/memory/tiers/tier.h"

#include <inttypes.h>
#include <stdlib.h>

int cstd_migrate_check_whole(const struct cstd_job *job, struct cst_err *err)
{
    if (job->successor == NULL || !cstd_migrate_is_torn(job->successor)) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EBUSY,
                       "the states of job '%s' are being moved: open it with 'reshape' and %u "
                       "ranks, and it goes on",
                       job->name, job->successor->world);
}

/* -- open and close --------------------------------------------------------------------------- */

static int make_plan(struct cstd_migrate *migrate, const struct cstd_job *job, struct cst_err *err)
{
    const struct cstd_job *old = job->predecessor;
    int rc = cst_reshard_open(&migrate->reshard, &old->model, &job->model, err);

    if (rc == CST_OK) {
        rc = cst_migration_open(&migrate->plan, &migrate->reshard, &old->layout, &job->layout, err);
    }
    migrate->more_bytes = migrate->plan.extra_bytes + CSTD_STATE_COPY_STAGING;
    return rc;
}

static bool uses_accelerators(const struct cstd_job *job)
{
    bool any = !cst_set_none(&job->memory.gpu_engines);

    for (uint32_t r = 0; r < job->world; r++) {
        any = any || job->workers[r].tier->kind->apart || job->workers[r].update_tier->kind->apart;
    }
    return any;
}

int cstd_migrate_open(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_migrate *migrate;
    int rc;

    if (uses_accelerators(job) || uses_accelerators(job->predecessor)) {
        return cst_err_set(
            err, CST_EUNSUPPORTED,
            "states on accelerators and drives are not moved in portions: give memory for "
            "both jobs, or save the job, remove it, and load it into the other one");
    }
    migrate = calloc(1, sizeof *migrate);
    if (migrate == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to plan a move of states");
    }
    rc = make_plan(migrate, job, err);
    if (rc != CST_OK) {
        cst_reshard_close(&migrate->reshard);
        free(migrate);
        return rc;
    }
    job->migrate = migrate;
    return CST_OK;
}

void cstd_migrate_close(struct cstd_job *job)
{
    struct cstd_migrate *migrate = job->migrate;

    if (migrate == NULL) {
        return;
    }
    cstd_migrate_stop(job);
    cstd_budget_give(job->daemon->host, job->account, migrate->charged);
    cst_migration_close(&migrate->plan);
    cst_reshard_close(&migrate->reshard);
    free(migrate);
    job->migrate = NULL;
}

int cstd_migrate_charge(struct cstd_job *job, bool force, struct cst_err *err)
{
    struct cstd_migrate *migrate = job->migrate;
    int rc = CST_OK;

    if (force) {
        cstd_budget_force(job->daemon->host, job->account, migrate->more_bytes);
    } else {
        rc = cstd_budget_take(job->daemon->host, job->account, migrate->more_bytes, job->name, err);
    }
    migrate->charged = rc == CST_OK ? migrate->more_bytes : 0;
    return rc;
}

/* -- pages ------------------------------------------------------------------------------------ */

/* A list of pages. */
struct list {
    struct cstd_pages *v;
    uint32_t n;
};

static void add(struct list *list, const struct cstd_pages *pages)
{
    struct cstd_pages *last = list->n > 0 ? &list->v[list->n - 1] : NULL;

    if (last != NULL && last->segment == pages->segment && last->remove == pages->remove &&
        last->offset + last->bytes == pages->offset) {
        last->bytes += pages->bytes;
    } else {
        list->v[list->n++] = *pages;
    }
}

static void add_chunk(struct list *list, const struct cstd_job *job, uint32_t c, bool remove)
{
    for (uint32_t r = 0; r < CST_ROWS_COUNT; r++) {
        struct cst_layout_row place;
        uint64_t bytes = cst_rows_in_host(&job->layout, &job->layout.chunks[c], r, &place);

        if (bytes > 0) {
            add(list, &(struct cstd_pages){.segment = job->memory.segments[place.segment],
                                           .offset = place.offset,
                                           .bytes = bytes,
                                           .remove = remove});
        }
    }
}

static void add_segment(struct list *list, const struct cstd_job *job, uint32_t s)
{
    if (s != CST_LAYOUT_NO_ROW) {
        add(list, &(struct cstd_pages){.segment = job->memory.segments[s],
                                       .bytes = job->layout.segments[s].bytes});
    }
}

/* Add the segments of @job that belong to no chunk. */
static void add_shared(struct list *list, const struct cstd_job *job)
{
    const struct cst_layout *layout = &job->layout;

    for (uint32_t i = 0;
         layout->landings != NULL && i < job->daemon->engines->n_nodes * layout->n_landings; i++) {
        uint32_t s = layout->landings[i].segment;

        add_segment(list, job, s);
    }
    for (uint32_t i = 0; layout->scratches != NULL && i < job->daemon->engines->n_nodes; i++) {
        add_segment(list, job, layout->scratches[i].segment);
    }
}

/* List what cstd_migrate_prepare does. Of the portions that have moved, only the last one can have
 * pages. */
static void list_pages(struct list *list, const struct cstd_job *job)
{
    const struct cstd_migrate *migrate = job->migrate;
    const struct cst_migration *plan = &migrate->plan;
    uint32_t n = migrate->n_moved;
    struct cst_migration_portion from = cst_migration_begin(plan, n);

    if (n > 0) {
        for (uint32_t i = cst_migration_begin(plan, n - 1).ended_end; i < from.ended_end; i++) {
            add_chunk(list, job->predecessor, plan->ended[i], true);
        }
    } else {
        add_shared(list, job);
    }
    for (uint32_t i = from.begun_end; n < plan->n_portions && i < plan->portions[n].begun_end;
         i++) {
        add_chunk(list, job, plan->begun[i], false);
    }
}

/* Returns at least the number of entries that list_pages makes. */
static size_t most_pages(const struct cstd_job *job)
{
    const struct cst_migration *plan = &job->migrate->plan;
    uint32_t n = job->migrate->n_moved;
    struct cst_migration_portion from = cst_migration_begin(plan, n);
    size_t chunks = n < plan->n_portions ? plan->portions[n].begun_end - from.begun_end : 0;

    if (n > 0) {
        chunks += from.ended_end - cst_migration_begin(plan, n - 1).ended_end;
    }
    return chunks * CST_ROWS_COUNT + (size_t)job->daemon->engines->n_nodes * job->layout.n_landings;
}

static void on_work_done(void *arg, const struct cst_err *err)
{
    struct cstd_migrate *migrate = arg;

    migrate->work = NULL;
    migrate->on_pages(migrate->arg, err);
}

int cstd_migrate_prepare(struct cstd_job *job, cstd_migrate_cb on_pages, void *arg,
                         struct cst_err *err)
{
    struct cstd_migrate *migrate = job->migrate;
    struct list list = {.v = calloc(most_pages(job), sizeof *list.v)};
    int rc = CST_OK;

    if (list.v == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of pages");
    }
    migrate->on_pages = on_pages;
    migrate->arg = arg;
    list_pages(&list, job);
    if (list.n > 0) {
        rc = cstd_page_work_start(&migrate->work, &job->daemon->loop, list.v, list.n, on_work_done,
                                  migrate, err);
        rc = rc == CST_OK ? CST_EAGAIN : rc;
    }
    free(list.v);
    return rc;
}

void cstd_migrate_stop(struct cstd_job *job)
{
    cstd_page_work_abandon(job->migrate->work);
    job->migrate->work = NULL;
}

/* -- the record ------------------------------------------------------------------------------- */

/* The first portion has moved: from now on the job is the new one. If the old one is kept, the new
 * one is kept from now on, too. */
static int begin(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_job *old = job->predecessor;

    if (old->ledger.state == CSTD_LEDGER_KEPT) {
        int rc = cstd_ledger_begin(job, err);

        if (rc != CST_OK) {
            return rc;
        }
        cstd_ledger_note(old);
    }
    cstd_memory_make_sparse(&old->memory);
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "1 of %" PRIu32 " portions has moved: from now on it has %u ranks",
                   job->migrate->plan.n_portions, job->world);
    return CST_OK;
}

int cstd_migrate_advance(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_migrate *migrate = job->migrate;
    int rc = CST_OK;

    if (++migrate->n_moved > 1) {
        cstd_ledger_note(job);
    } else {
        rc = begin(job, err);
    }
    migrate->n_moved -= rc != CST_OK;
    return rc;
}
