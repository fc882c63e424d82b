/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/revive/revive_unit.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/commit.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/migrate.h"
#include "daemon/job/standby.h"
#include "daemon/ledger/kept_job.h"
#include "daemon/revive/revive.h"
#include "daemon/ledger/revive_engines.h"
#include "daemon/revive/revive_job.h"
#include "daemon/base/log.h"
#include "proto/size.h"
#include "daemon/job/job.h"
#include "daemon/job/span.h"
#include "daemon/ledger/ledger.h"
#include "daemon/memory/memory.h"

#include <inttypes.h>

void cstd_revive_unit_tell(const char *name, const struct cst_err *why)
{
    cstd_log(CSTD_LOG_ERROR,
             "job '%s' of the earlier daemon cannot go on: %s; its memory stays in the service "
             "manager's store until the service is stopped",
             name, why->text);
}

/* -- the end of a job's revival --------------------------------------------------------------- */

static void settle(struct cstd_revival *revival, struct cstd_kept_job *kept)
{
    uint64_t serial = kept->ledger->serial;

    kept->stage = CSTD_KEPT_SETTLED;
    kept->job = NULL; /* It may be removed before the others are settled. */
    cstd_revive_job_drop_draft(kept);
    cstd_kept_job_discharge(revival->daemon, kept);
    revival->n_settled++;
    revival->daemon->status_changed = true;
    cstd_held_serve(&revival->held, serial, revival->daemon);
}

/* This daemon cannot go on with @kept because of @why. */
static void lose(struct cstd_revival *revival, struct cstd_kept_job *kept,
                 const struct cst_err *why)
{
    struct cst_err words = *why; /* It can be that of the job. */

    cstd_revive_unit_tell(kept->name, &words);
    kept->err = words;
    if (revival->why.status == CST_OK) {
        cstd_kept_job_undo_lost(kept);
    }
    if (kept->job != NULL) {
        cstd_job_remove(kept->job, 0, &words);
    }
    kept->job = NULL;
    revival->n_lost++;
    revival->keeps_lost = true;
    settle(revival, kept);
}

static void finish(struct cstd_job *job, struct cstd_kept_job *kept)
{
    const struct cstd_ledger_record record = kept->file.last;
    struct cst_event event = {
        .kind = CST_EV_REVIVE, .record = &record.core, .table = job->memory.table};
    char arenas[CST_SIZE_TEXT];

    cstd_revive_job_own(job, kept);
    job->phase = CSTD_COMMIT_DONE;
    job->state = CSTD_JOB_READY;
    job->revived_ms = uv_now(&job->daemon->loop);
    cstd_standbys_look(job->daemon);
    cstd_job_feed(job, &event);
    if (record.pause != 0) {
        cstd_pause_begin(job, record.pause == 2, NULL, record.paused_since_s);
    }
    cstd_span_open(job);
    cstd_job_check_idle(job);
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "goes on after step %" PRIu64 ", its states (%s) were kept",
                   record.core.counters.step, cst_size_text(job->memory.arena_bytes, arenas));
}

/* @job has replaced @older, which is removed. */
static void end_older(struct cstd_job *older, const struct cstd_job *job)
{
    struct cst_err reshaped;

    cstd_memory_disown(&older->memory, &job->memory);
    (void)cst_err_set(&reshaped, CST_ECANCELLED, "job '%s' was reshaped", older->name);
    cstd_job_remove(older, 0, &reshaped);
}

/* -- a move of states ------------------------------------------------------------------------- */

/* Plan the move from @older to @job again, which has come as far as @kept says. */
static int take_move(struct cstd_job *job, struct cstd_job *older, const struct cstd_kept_job *kept,
                     struct cst_err *err)
{
    const struct cstd_ledger_record *record = &kept->file.last;
    int rc;

    job->predecessor = older;
    older->successor = job;
    rc = cstd_migrate_open(job, err);
    if (rc != CST_OK) {
        return rc;
    }
    job->migrate->n_moved = record->n_moved;
    if (job->migrate->plan.n_portions != record->n_portions ||
        record->n_moved > record->n_portions) {
        return cst_err_set(
            err, CST_EVERSION,
            "%" PRIu32 " of %" PRIu32
            " portions of its states have moved, and this daemon would move %" PRIu32,
            record->n_moved, record->n_portions, job->migrate->plan.n_portions);
    }
    cstd_memory_make_sparse(&older->memory);
    return cstd_migrate_charge(job, true, err);
}

static void finish_move(struct cstd_job *job, struct cstd_kept_job *kept)
{
    cstd_revive_job_own(job, kept);
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "%" PRIu32 " of %" PRIu32
                   " portions of its states have moved, the others follow",
                   job->migrate->n_moved, job->migrate->plan.n_portions);
    job->state = CSTD_JOB_POPULATING;
    cstd_commit_go_on(job);
    cstd_job_check_idle(job);
}

/* Neither of @kept and its heir goes on alone: states were being moved portion by portion, or all
 * have been moved. */
static bool needs_heir(const struct cstd_kept_job *kept)
{
    return kept->file.last.torn != 0 || (kept->heir != NULL && cstd_kept_job_is_moving(kept->heir));
}

/* -- a job and its heir ----------------------------------------------------------------------- */

/* This daemon cannot go on with one of both because of @why, and can go on with neither if one
 * needs the other. */
void cstd_revive_unit_lose(struct cstd_revival *revival, struct cstd_kept_job *kept,
                           const struct cst_err *why)
{
    struct cstd_kept_job *heir = kept->heir;

    if (heir != NULL && heir->stage != CSTD_KEPT_SETTLED) {
        lose(revival, heir, why);
    }
    if (kept->stage != CSTD_KEPT_SETTLED) {
        lose(revival, kept, why);
    }
}

/* The first error of @kept alone, or that its job was removed meanwhile, which its base job has
 * caused. */
static int check_one(const struct cstd_kept_job *kept, struct cst_err *err)
{
    if (kept->err.status != CST_OK) {
        *err = kept->err;
        return err->status;
    }
    return kept->job != NULL
               ? CST_OK
               : cst_err_set(err, CST_ELOST, "its base job '%s' is not there any more", kept->base);
}

/* Check what the records of @kept and its heir say before anything is made. */
int cstd_revive_unit_check(const struct cstd_kept_job *kept, struct cst_err *err)
{
    if (kept->file.last.torn != 0 && kept->heir == NULL) {
        return cst_err_set(err, CST_ELOST, "the job to which its states were being moved is lost");
    }
    return cstd_kept_job_is_moving(kept)
               ? cst_err_set(err, CST_ELOST, "the job whose states were being moved to it is lost")
               : CST_OK;
}

/* Make room for what the store has of both jobs, and store what they need of new engines. */
static int reserve(const struct cstd_job *older, const struct cstd_job *job, struct cst_err *err)
{
    uint32_t n = cstd_ledger_n_fds(older) + (job != NULL ? cstd_ledger_n_fds(job) : 0);
    int rc = cstd_keeper_reserve(&older->daemon->keeper, n, err);

    return rc == CST_OK ? cstd_ledger_store_engines(older->daemon, err) : rc;
}

/* The memory of all of the unit is mapped: the jobs go on. Once one of them owns its memory,
 * nothing can fail, because the memory of a job that owns it ends with the job. */
static int finish_unit(struct cstd_kept_job *kept, struct cst_err *err)
{
    struct cstd_kept_job *heir = kept->heir;
    struct cstd_job *older = kept->job, *job = heir != NULL ? heir->job : NULL;
    bool moving = heir != NULL && cstd_kept_job_is_moving(heir);
    int rc = moving ? take_move(job, older, heir, err) : CST_OK;

    rc = rc == CST_OK ? reserve(older, job, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    finish(older, kept);
    if (moving && heir->job != NULL) { /* Otherwise a command of the older one was lost. */
        finish_move(job, heir);
    } else if (heir != NULL && !moving) {
        finish(job, heir);
        end_older(older, job);
    }
    return CST_OK;
}

/* Nothing of @kept, which may be NULL, is still to be mapped. */
static bool is_mounted(const struct cstd_kept_job *kept)
{
    return kept == NULL || (kept->stage == CSTD_KEPT_MOUNTING &&
                            (kept->job == NULL || kept->job->memory.n_waiting == 0));
}

/* Drop the heir of @kept, which goes on without it. */
static void drop_heir(struct cstd_revival *revival, struct cstd_kept_job *kept,
                      const struct cst_err *why)
{
    struct cstd_kept_job *heir = kept->heir;

    kept->heir = NULL;
    heir->is_heir = false;
    if (heir->stage != CSTD_KEPT_SETTLED) {
        lose(revival, heir, why);
    }
}

/* Drop the parts of a unit that cannot go on. NULL: nothing is left of it. */
struct cstd_kept_job *cstd_revive_unit_sift(struct cstd_revival *revival,
                                            struct cstd_kept_job *kept)
{
    struct cstd_kept_job *heir = kept->heir;
    struct cst_err err = {0}, heirs = {0};
    int rc = check_one(kept, &err);

    if (heir != NULL && check_one(heir, &heirs) != CST_OK) {
        if (needs_heir(kept)) {
            cstd_revive_unit_lose(revival, kept, &heirs);
            return NULL;
        }
        drop_heir(revival, kept, &heirs);
        heir = NULL;
    }
    if (rc == CST_OK) {
        return kept;
    }
    if (heir == NULL || needs_heir(kept)) {
        cstd_revive_unit_lose(revival, kept, &err);
        return NULL;
    }
    /* The newer one has all states. */
    heir->is_heir = false;
    kept->heir = NULL;
    lose(revival, kept, &err);
    return heir;
}

static void take_error(struct cstd_kept_job *kept)
{
    if (kept != NULL && kept->job != NULL) {
        kept->err = kept->job->memory.err;
    }
}

void cstd_revive_unit_look(struct cstd_revival *revival, struct cstd_kept_job *kept)
{
    struct cst_err err = {0};

    if (!is_mounted(kept) || !is_mounted(kept->heir)) {
        return;
    }
    take_error(kept);
    take_error(kept->heir);
    kept = cstd_revive_unit_sift(revival, kept);
    if (kept != NULL && finish_unit(kept, &err) != CST_OK) {
        cstd_revive_unit_lose(revival, kept, &err);
    } else if (kept != NULL) {
        struct cstd_kept_job *heir = kept->heir;

        settle(revival, kept);
        if (heir != NULL) {
            settle(revival, heir);
        }
    }
    revival->go_ahead(revival);
}

static void on_mounted(struct cstd_memory *memory)
{
    struct cstd_job *job = cstd_owner_of(memory, struct cstd_job, memory);
    struct cstd_revival *revival = job->daemon->revival;
    struct cstd_kept_job *kept = job->ledger.reviving;

    for (uint32_t i = 0; kept != NULL && kept->is_heir && i < revival->n; i++) {
        if (revival->jobs[i].heir == kept) {
            kept = &revival->jobs[i];
            break;
        }
    }
    if (kept != NULL) { /* Otherwise the job was removed meanwhile. */
        cstd_revive_unit_look(revival, kept);
    }
}

static void open_one(struct cstd_revival *revival, struct cstd_kept_job *kept)
{
    struct cst_err err = {0};
    int rc = CST_OK;

    if (kept->job->base != NULL && kept->draft->phase != CSTD_COMMIT_LAYOUT) {
        rc = cstd_revive_job_build_on(kept, kept->job->base, &err);
    }
    if (rc == CST_OK) {
        kept->stage = CSTD_KEPT_MOUNTING;
        rc = cstd_revive_job_open(revival->daemon, kept, on_mounted, &err);
    }
    kept->err = err;
    kept->err.status = rc;
}

/* The models and layouts of a unit are built. */
void cstd_revive_unit_open(struct cstd_revival *revival, struct cstd_kept_job *kept)
{
    kept = cstd_revive_unit_sift(revival, kept);
    if (kept == NULL) {
        return;
    }
    open_one(revival, kept);
    if (kept->heir != NULL) {
        open_one(revival, kept->heir);
    }
    /* The others wait for their engines. */
    (void)cstd_revive_unit_sift(revival, kept);
}
