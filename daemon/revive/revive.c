/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/revive/revive.h"

#include "daemon/base/daemon_state.h"
#include "daemon/ledger/kept_job.h"
#include "daemon/revive/prove.h"
#include "daemon/ledger/revive_engines.h"
#include "daemon/revive/revive_job.h"
#include "daemon/revive/revive_unit.h"
#include "daemon/base/log.h"
#include "daemon/engine/engines.h"
#include "daemon/engine/gpus.h"
#include "daemon/job/job.h"
#include "daemon/job/searches.h"
#include "daemon/job/jobs.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static void settle_all(struct cstd_revival *revival);

/* -- the list --------------------------------------------------------------------------------- */

/* In the order of serial numbers, so that a base job comes before its users. */
static int compare(const void *a, const void *b)
{
    const struct cstd_kept_job *x = a, *y = b;

    return (x->ledger->serial > y->ledger->serial) - (x->ledger->serial < y->ledger->serial);
}

/* Read the ledgers in the store. CST_ENOMEM, or the error of the last one that cannot be read. */
static int read_all(struct cstd_revival *revival, struct cst_err *err)
{
    struct cstd_keeper *keeper = &revival->daemon->keeper;
    int rc = CST_OK;

    revival->jobs = calloc(keeper->n_kept + 1, sizeof *revival->jobs);
    revival->users = calloc(keeper->n_kept + 1, sizeof *revival->users);
    if (revival->jobs == NULL || revival->users == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of jobs");
    }
    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        struct cstd_kept *kept = &keeper->kept[i];
        struct cstd_kept_job *job = &revival->jobs[revival->n];

        if (kept->fd < 0 || kept->name.kind != CSTD_KEPT_LEDGER) {
            continue;
        }
        *job = (struct cstd_kept_job){.file.fd = -1};
        if (cstd_kept_job_open(job, kept->fd, err) == CST_OK) {
            revival->n++;
        } else {
            char name[CSTD_KEPT_NAME_BYTES];

            rc = err->status;
            revival->keeps_lost = true;
            cstd_revive_unit_tell(cstd_kept_name_write(&kept->name, true, name), err);
            cstd_kept_job_close(job);
        }
        kept->fd = -1;
    }
    qsort(revival->jobs, revival->n, sizeof *revival->jobs, compare);
    return rc;
}

static bool is_ledger_of(const struct cstd_kept_name *name, uint64_t serial)
{
    return name->kind == CSTD_KEPT_LEDGER && name->serial == serial;
}

/* True if a ledger of job @serial was inherited, readable or not. */
static bool has_ledger(const struct cstd_revival *revival, uint64_t serial)
{
    const struct cstd_keeper *keeper = &revival->daemon->keeper;

    for (uint32_t i = 0; i < revival->n; i++) {
        if (revival->jobs[i].ledger->serial == serial) {
            return true;
        }
    }
    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        if (is_ledger_of(&keeper->kept[i].name, serial)) {
            return true;
        }
    }
    return false;
}

/* The earlier daemon died while it stored or removed a job, and its memory has no ledger: remove it
 * from the store, too. New jobs get numbers that no inherited job has. */
static void remove_orphans(struct cstd_revival *revival)
{
    struct cstd_keeper *keeper = &revival->daemon->keeper;
    struct cstd_jobs *jobs = revival->daemon->jobs;

    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        const struct cstd_kept_name *name = &keeper->kept[i].name;

        jobs->serial = name->serial > jobs->serial ? name->serial : jobs->serial;
        if (name->serial != 0 && keeper->kept[i].is_alone && !has_ledger(revival, name->serial)) {
            cstd_keeper_forget(keeper, name);
        }
    }
}

/* Each job finds the one that was to replace it. */
static void link_heirs(struct cstd_revival *revival)
{
    for (uint32_t i = 0; i < revival->n; i++) {
        for (uint32_t k = i + 1; k < revival->n && revival->jobs[i].heir == NULL; k++) {
            const Ledger__Job *later = revival->jobs[k].ledger;

            if (later->has_replaces && later->replaces == revival->jobs[i].ledger->serial) {
                revival->jobs[i].heir = &revival->jobs[k];
                revival->jobs[k].is_heir = true;
            }
        }
    }
}

/* True if jobs[@i] must wait until a job with its name that was made after it is removed. */
static bool has_rival(const struct cstd_revival *revival, uint32_t i)
{
    const struct cstd_kept_job *job = &revival->jobs[i];

    for (uint32_t k = i + 1; k < revival->n; k++) {
        const struct cstd_kept_job *later = &revival->jobs[k];

        if (later != job->heir && later->ledger->uid == job->ledger->uid &&
            strcmp(later->name, job->name) == 0) {
            return true;
        }
    }
    return false;
}

/* A job that cannot go on here may go on in a later daemon, together with the jobs that are made
 * here: reserve the ids of its segments. */
static void reserve_ids(struct cstd_daemon *daemon, const Ledger__Job *ledger)
{
    for (size_t i = 0; i < ledger->n_segments; i++) {
        cstd_engines_reserve_id(daemon->engines, ledger->segments[i]->id);
    }
    if (ledger->span != NULL) {
        cstd_engines_reserve_id(daemon->engines, ledger->span->window);
    }
}

/* Charge the memory on accelerators, unless they are not known yet. */
static void charge_devices(struct cstd_revival *revival)
{
    for (uint32_t i = 0; i < revival->n; i++) {
        struct cstd_kept_job *kept = &revival->jobs[i];

        if (kept->stage == CSTD_KEPT_WAITS && kept->n_charges == 0) {
            cstd_kept_job_charge_devices(revival->daemon, kept);
        }
    }
}

/* -- the thread ------------------------------------------------------------------------------- */

static void build(struct cstd_kept_job *kept)
{
    struct cst_err err = {0};

    if (kept != NULL && kept->stage == CSTD_KEPT_BUILDING &&
        cstd_revive_job_build(kept, &err) != CST_OK) {
        kept->err = err;
    }
}

static void on_thread(uv_work_t *work)
{
    struct cstd_revival *revival = work->data;

    (void)setpriority(PRIO_PROCESS, 0, CSTD_SEARCHES_NICE); /* Affects only this thread. */
    build(revival->built);
    build(revival->built->heir);
}

static void go_ahead(struct cstd_revival *revival);

static void on_thread_done(uv_work_t *work, int status)
{
    struct cstd_revival *revival = work->data;
    struct cstd_kept_job *kept = revival->built;

    (void)status; /* libuv's cancellation is not used. */
    revival->built = NULL;
    if (revival->daemon->draining) {
        return;
    }
    kept->stage = kept->stage == CSTD_KEPT_BUILDING ? CSTD_KEPT_BUILT : kept->stage;
    if (kept->heir != NULL && kept->heir->stage == CSTD_KEPT_BUILDING) {
        kept->heir->stage = CSTD_KEPT_BUILT;
    }
    cstd_revive_unit_open(revival, kept);
    go_ahead(revival);
}

static void prepare(struct cstd_revival *revival, struct cstd_kept_job *kept)
{
    struct cst_err err = {0};

    if (kept->stage != CSTD_KEPT_WAITS || kept->job == NULL || kept->err.status != CST_OK) {
        return;
    }
    if (cstd_revive_job_prepare(revival->daemon, kept, &err) == CST_OK) {
        kept->stage = CSTD_KEPT_BUILDING;
    } else {
        kept->err = err;
    }
}

static uint64_t cost_of(const struct cstd_kept_job *kept)
{
    return kept->file.bytes + (kept->heir != NULL ? kept->heir->file.bytes : 0);
}

/* The user of @kept. There are not more users than jobs, for which users has room. */
static struct cstd_revive_user *user_of(struct cstd_revival *revival,
                                        const struct cstd_kept_job *kept)
{
    for (uint32_t i = 0; i < revival->n_users; i++) {
        if (revival->users[i].uid == kept->ledger->uid) {
            return &revival->users[i];
        }
    }
    revival->users[revival->n_users] = (struct cstd_revive_user){.uid = kept->ledger->uid};
    return &revival->users[revival->n_users++];
}

static void begin_unit(struct cstd_revival *revival, struct cstd_kept_job *kept)
{
    struct cst_err err = {0};

    user_of(revival, kept)->bytes += cost_of(kept);
    if (revival->why.status != CST_OK || cstd_revive_unit_check(kept, &err) != CST_OK) {
        cstd_revive_unit_lose(revival, kept, revival->why.status != CST_OK ? &revival->why : &err);
        return;
    }
    prepare(revival, kept);
    if (kept->heir != NULL) {
        prepare(revival, kept->heir);
    }
    kept = cstd_revive_unit_sift(revival, kept);
    if (kept == NULL) {
        return;
    }
    revival->built = kept;
    revival->work.data = revival;
    if (uv_queue_work(&revival->daemon->loop, &revival->work, on_thread, on_thread_done) != 0) {
        revival->built = NULL;
        (void)cst_err_set(&err, CST_ENOMEM, "no memory for a thread's work");
        cstd_revive_unit_lose(revival, kept, &err);
    }
}

/* -- the order -------------------------------------------------------------------------------- */

/* The job of @kept's user with the name of its base; NULL: none. */
static struct cstd_kept_job *base_of(struct cstd_revival *revival, const struct cstd_kept_job *kept)
{
    for (uint32_t i = 0; kept->base[0] != '\0' && i < revival->n; i++) {
        struct cstd_kept_job *base = &revival->jobs[i];

        if (base->job != NULL && kept->job != NULL && base->job == kept->job->base) {
            return base;
        }
    }
    return NULL;
}

/* True if @kept can begin now. */
static bool may_begin(struct cstd_revival *revival, struct cstd_kept_job *kept)
{
    const struct cstd_kept_job *base = base_of(revival, kept);
    bool looking = revival->daemon->gpus->state == CSTD_GPUS_LOOKING;

    return !kept->is_heir && (kept->stage == CSTD_KEPT_WAITS || kept->stage == CSTD_KEPT_BUILT) &&
           (base == NULL || base->stage == CSTD_KEPT_SETTLED) &&
           !(looking && (kept->ledger->n_devices > 0 ||
                         (kept->heir != NULL && kept->heir->ledger->n_devices > 0)));
}

/* True if @kept comes before @other, a job of the same user. */
static bool is_before(const struct cstd_kept_job *kept, const struct cstd_kept_job *other)
{
    return kept->waited != other->waited ? kept->waited : cost_of(kept) < cost_of(other);
}

/* The job to begin with next; NULL: none can begin now. First the best of each user is found, then
 * the user for whom least has been done, with this job. */
static struct cstd_kept_job *choose(struct cstd_revival *revival)
{
    const struct cstd_revive_user *best = NULL;

    for (uint32_t i = 0; i < revival->n_users; i++) {
        revival->users[i].next = NULL;
    }
    for (uint32_t i = 0; i < revival->n; i++) {
        struct cstd_kept_job *kept = &revival->jobs[i];
        struct cstd_revive_user *user = may_begin(revival, kept) ? user_of(revival, kept) : NULL;

        if (user != NULL && (user->next == NULL || is_before(kept, user->next))) {
            user->next = kept;
        }
    }
    for (uint32_t i = 0; i < revival->n_users; i++) {
        const struct cstd_revive_user *user = &revival->users[i];

        if (user->next != NULL && (best == NULL || user->bytes + cost_of(user->next) <
                                                       best->bytes + cost_of(best->next))) {
            best = user;
        }
    }
    return best != NULL ? best->next : NULL;
}

/* Go on until the thread has work, or nothing can begin. */
static void go_ahead(struct cstd_revival *revival)
{
    struct cstd_kept_job *kept;

    while (revival->built == NULL && !revival->daemon->draining &&
           (kept = choose(revival)) != NULL) {
        if (kept->stage == CSTD_KEPT_BUILT && revival->why.status == CST_OK) {
            cstd_revive_unit_open(revival, kept);
        } else {
            begin_unit(revival, kept);
        }
    }
    if (revival->n > 0 && revival->n_settled == revival->n) {
        settle_all(revival);
    }
}

/* Jobs were removed with their base. Nothing else tells that their units have ended. */
static void on_removed(struct cstd_deferred *later)
{
    struct cstd_revival *revival = cstd_owner_of(later, struct cstd_revival, removed);

    for (uint32_t i = 0; !revival->daemon->draining && i < revival->n; i++) {
        if (!revival->jobs[i].is_heir) {
            cstd_revive_unit_look(revival, &revival->jobs[i]);
        }
    }
}

static void on_gpus_known(struct cstd_daemon *daemon)
{
    if (daemon->revival->n == 0) {
        return;
    }
    charge_devices(daemon->revival);
    go_ahead(daemon->revival);
}

/* -- all jobs --------------------------------------------------------------------------------- */

/* Nothing of the earlier daemon is left to wait for. */
static void settle_all(struct cstd_revival *revival)
{
    struct cstd_daemon *daemon = revival->daemon;

    if (revival->jobs == NULL) {
        return;
    }
    if (revival->n > 0) {
        cstd_log(CSTD_LOG_NOTICE, "%u of %u jobs of the earlier daemon go on, after %.2f s",
                 revival->n - revival->n_lost, revival->n,
                 (double)(uv_hrtime() - revival->began_ns) * 1e-9);
    }
    for (uint32_t i = 0; i < revival->n; i++) {
        cstd_kept_job_close(&revival->jobs[i]);
    }
    free(revival->jobs);
    free(revival->users);
    revival->jobs = NULL;
    revival->users = NULL;
    revival->n = revival->n_settled = revival->n_users = 0;
    cstd_keeper_close(&daemon->keeper);
    cstd_engines_settle(daemon->engines);
    daemon->status_changed = true;
}

static int list(struct cstd_daemon *daemon, struct cst_err *err)
{
    struct cstd_revival *revival = daemon->revival;
    int rc;

    *revival = (struct cstd_revival){
        .daemon = daemon, .go_ahead = go_ahead, .removed.fn = on_removed, .began_ns = uv_hrtime()};
    TAILQ_INIT(&revival->held);
    rc = read_all(revival, err);
    for (uint32_t i = 0; i < revival->n; i++) {
        reserve_ids(daemon, revival->jobs[i].ledger);
    }
    link_heirs(revival);
    for (uint32_t i = 0; i < revival->n; i++) {
        struct cstd_kept_job *kept = &revival->jobs[i];
        struct cst_err one = {0};

        if (has_rival(revival, i)) {
            (void)cst_err_set(&one, CST_EEXIST, "a later job has its name");
        } else {
            (void)cstd_revive_job_create(daemon, kept, &one);
        }
        kept->err = one;
        if (one.status != CST_OK && rc == CST_OK) {
            *err = one;
            rc = cst_err_prefix(err, "job '%s'", kept->name);
        }
    }
    remove_orphans(revival);
    charge_devices(revival);
    return rc;
}

/* Take over what all jobs need of the earlier daemon's engines. Without it no job goes on. */
static void adopt_engines(struct cstd_revival *revival)
{
    struct cstd_daemon *daemon = revival->daemon;

    if (cstd_revive_adopt_engines(daemon, &revival->why) != CST_OK) {
        /* The undo slots in the store belong to the jobs in it. There is one set of slots. */
        daemon->keeper.limit = 0;
        cstd_log(CSTD_LOG_ERROR,
                 "jobs of this daemon will end with it, also if the service is restarted: %s",
                 revival->why.text);
    }
    daemon->engines->settled = revival->n == 0;
}

void cstd_revive_list(struct cstd_daemon *daemon)
{
    struct cstd_revival *revival = daemon->revival;
    struct cst_err err = {0};

    (void)list(daemon, &err);
    daemon->gpus->on_known = on_gpus_known; /* A proof waits for the accelerators itself. */
    adopt_engines(revival);
}

void cstd_revive_begin(struct cstd_daemon *daemon)
{
    struct cstd_revival *revival = daemon->revival;

    if (revival->n == 0) {
        settle_all(revival);
    }
    /* Jobs that cannot go on come first: others may wait for their names. */
    for (uint32_t i = 0; i < revival->n; i++) {
        struct cstd_kept_job *kept = &revival->jobs[i];

        if (kept->stage != CSTD_KEPT_SETTLED && !kept->is_heir && kept->job == NULL) {
            (void)cstd_revive_unit_sift(revival, kept);
        }
    }
    go_ahead(revival);
}

int cstd_revive_prove(struct cstd_daemon *daemon, struct cst_err *err)
{
    struct cstd_revival *revival = daemon->revival;
    int rc = list(daemon, err);

    cstd_gpus_await(daemon->gpus);
    charge_devices(revival);
    for (uint32_t i = 0; i < revival->n && rc == CST_OK; i++) {
        struct cstd_kept_job *kept = &revival->jobs[i], *base = base_of(revival, kept);

        rc = cstd_prove_job(daemon, kept, base, err);
        kept->stage = CSTD_KEPT_BUILT;
    }
    rc = rc == CST_OK ? cstd_prove_budgets(daemon, revival->jobs, revival->n, err) : rc;
    rc = rc == CST_OK ? cstd_prove_programs(daemon, err) : rc;
    if (rc != CST_OK) {
        rc = err->status = CST_EBUSY;
    }
    return rc;
}

void cstd_revive_proven(struct cstd_daemon *daemon)
{
    struct cstd_revival *revival = daemon->revival;

    revival->began_ns = uv_hrtime();
    for (uint32_t i = 0; i < revival->n; i++) {
        (void)cstd_ledger_file_renew(&revival->jobs[i].file, &revival->jobs[i].err);
    }
    adopt_engines(revival);
}

bool cstd_revive_is_under_way(const struct cstd_daemon *daemon)
{
    return daemon->revival->n > 0;
}

int cstd_revive_hold(struct cstd_job *job, struct cstd_session *session, uint64_t id, uint16_t type,
                     const ProtobufCMessage *message, cstd_held_fn serve, struct cst_err *err)
{
    struct cstd_revival *revival = job->daemon->revival;
    struct cstd_kept_job *kept = job->ledger.reviving, *base = base_of(revival, kept);

    kept->waited = true;
    if (base != NULL) {
        base->waited = true;
    }
    return cstd_hold(&revival->held, job->serial, session, id, type, message, serve, err);
}

void cstd_revive_stop(struct cstd_daemon *daemon)
{
    if (daemon->revival->daemon != NULL) {
        cstd_held_drop(&daemon->revival->held);
    }
}
