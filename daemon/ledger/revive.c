/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/revive.h"

#include "daemon/daemon.h"
#include "daemon/ledger/revive_devices.h"
#include "daemon/ledger/revive_engines.h"
#include "daemon/ledger/lent_slabs.h"
#include "daemon/job/base_job.h"
#include "daemon/job/commit.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/declare.h"
#include "daemon/job/given.h"
#include "daemon/job/job_core.h"
#include "daemon/job/migrate.h"
#include "daemon/job/worker.h"
#include "daemon/memory/rank_devices.h"
#include "daemon/report/log.h"
#include "proto/cistern.pb-c.h"
#include "proto/size.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The names of ledgers begin with this. */
#define LEDGER "kept-ledger-"

/* A job in the store, while it is revived. */
struct kept_job {
    Ledger__Job *ledger;
    Cistern__JobDescription *description;
    struct cstd_ledger_file file;
    struct cstd_memory_kept *segments;
    bool settled; /* The job goes on, or was named, together with the one that it replaces. */
};

/* True if the job's ledger ends in the middle of a move of states to it. After the last stage a job
 * is initialised. */
static bool is_moving(const struct kept_job *kept)
{
    const struct cstd_ledger_record *record = &kept->file.last;

    return record->n_moved > 0 && !record->core.initialised;
}

/* -- the parts of a job ----------------------------------------------------------------------- */

static void close_kept(struct kept_job *kept)
{
    for (uint32_t i = 0; kept->segments != NULL && i < kept->ledger->n_segments; i++) {
        if (kept->segments[i].fd >= 0) {
            (void)close(kept->segments[i].fd);
        }
    }
    free(kept->segments);
    if (kept->ledger != NULL) {
        ledger__job__free_unpacked(kept->ledger, NULL);
    }
    if (kept->description != NULL) {
        cistern__job_description__free_unpacked(kept->description, NULL);
    }
    cstd_ledger_file_close(&kept->file);
}

static int read_ledger(struct kept_job *kept, int fd, struct cst_err *err)
{
    int rc = cstd_ledger_file_open(&kept->file, fd, &kept->ledger, err);

    if (rc == CST_OK) {
        kept->description = cistern__job_description__unpack(NULL, kept->ledger->description.len,
                                                             kept->ledger->description.data);
    }
    if (rc == CST_OK && kept->description == NULL) {
        rc = cst_err_set(err, CST_ELOST, "its description cannot be read");
    }
    return rc;
}

/* Take segment @i of the job from the store. @layout: its layout. */
static int take_segment(struct cstd_daemon *daemon, const struct kept_job *kept, uint32_t i,
                        const struct cst_layout *layout)
{
    uint64_t serial = kept->ledger->serial;
    bool is_arena = i < layout->n_segments;
    char name[CSTD_KEEPER_NAME_BYTES];

    (void)snprintf(name, sizeof name, "kept-job-%" PRIu64, serial);
    if (i > layout->n_segments ||
        (is_arena && layout->segments[i].node >= daemon->engines.n_nodes)) {
        (void)cstd_ledger_name_of_device(serial, i, name);
    }
    return cstd_keeper_take(&daemon->keeper, name, kept->ledger->segments[i]->inode);
}

/* Find the memory of the job in the store. Segments of the base job have no descriptor of their
 * own; @layout tells which these are. */
static int find_segments(struct cstd_daemon *daemon, struct kept_job *kept,
                         const struct cst_layout *layout, struct cst_err *err)
{
    const Ledger__Job *ledger = kept->ledger;
    uint32_t n = layout->n_segments + 1 + cstd_revive_count_rooms(ledger);

    if (ledger->n_segments != n) {
        return cst_err_set(err, CST_ELOST, "its ledger has %zu segments, but its layout %" PRIu32,
                           ledger->n_segments, n);
    }
    kept->segments = calloc(n, sizeof *kept->segments);
    if (kept->segments == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of segments");
    }
    for (uint32_t i = 0; i < n; i++) {
        kept->segments[i] = (struct cstd_memory_kept){.id = ledger->segments[i]->id, .fd = -1};
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i < layout->n_segments && layout->segments[i].is_base) {
            continue;
        }
        kept->segments[i].fd = take_segment(daemon, kept, i, layout);
        if (kept->segments[i].fd < 0) {
            return cst_err_set(
                err, CST_ELOST,
                "segment %" PRIu32 " of %" PRIu32 " is not in the service manager's store", i, n);
        }
    }
    return CST_OK;
}

static struct cstd_job_options options_of(const Cistern__JobDescription *from)
{
    return (struct cstd_job_options){
        .optimizer = (enum cst_optimizer)from->optimizer,
        .masters = (enum cst_masters)from->masters,
        .moments = (enum cst_moments)from->moments,
        .rounding = (enum cst_rounding)from->rounding,
        .seed = from->seed,
        .overlap = (enum cst_overlap)from->overlap,
        .delay_from = from->delay_from,
        .grad_over_weight = from->grad_over_weight,
    };
}

static int read_given(const Ledger__Job *ledger, struct cst_saved_plan *out, struct cst_err *err)
{
    Cistern__JobPlan *message;
    int rc;

    if (!ledger->has_plan) {
        return CST_OK;
    }
    message = cistern__job_plan__unpack(NULL, ledger->plan.len, ledger->plan.data);
    if (message == NULL) {
        return cst_err_set(err, CST_ELOST, "its plan cannot be read");
    }
    rc = cstd_given_read(message, out, err);
    cistern__job_plan__free_unpacked(message, NULL);
    return rc;
}

/* Make the job without model and memory. */
static int make_job(struct cstd_daemon *daemon, const struct kept_job *kept, struct cstd_job **out,
                    struct cst_err *err)
{
    const Ledger__Job *ledger = kept->ledger;
    const Cistern__JobDescription *description = kept->description;
    struct cstd_job_request request = {
        .name = description->name,
        .world = description->world,
        .chunk_elems = ledger->chunk_elems,
        .micro_batches = description->micro_batches,
        .recompute = ledger->recompute,
        .options = options_of(description),
        .timeout_ms = ledger->timeout_ms,
        .model_config = description->model_config,
        .adapter_config = description->adapter_config,
    };
    struct cstd_quota_account *account;
    struct cstd_job *base = NULL;
    int rc = read_given(ledger, &request.plan, err);

    if (rc == CST_OK && description->base_job != NULL) {
        rc = cstd_base_job_find(daemon, ledger->uid, description->name, description->base_job,
                                &base, err);
    }
    if (rc == CST_OK) {
        rc = cstd_quota_open(&daemon->quota, ledger->uid, ledger->gids, ledger->n_gids, &account,
                             err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    cstd_quota_force(account, CSTD_QUOTA_JOBS, 1);
    daemon->jobs.serial = ledger->serial - 1;
    rc = cstd_job_create(daemon, account, &request, base, ledger->ttl_s, out, err);
    if (rc != CST_OK) {
        cstd_quota_give(account, CSTD_QUOTA_JOBS, 1);
    }
    cstd_quota_unref(account); /* The job has a reference of its own. */
    return rc;
}

static int declare_model(struct cstd_job *job, const Cistern__JobDescription *description,
                         struct cst_err *err)
{
    struct cstd_worker *worker = &job->workers[0];
    Cistern__Declare declare = CISTERN__DECLARE__INIT;
    int rc;

    declare.n_groups = description->n_groups;
    declare.groups = description->groups;
    declare.n_edges = description->n_edges;
    declare.edges = description->edges;
    declare.n_tensors = description->n_tensors;
    declare.tensors = description->tensors;
    declare.n_operators = description->n_operators;
    declare.operators = description->operators;
    rc = cstd_declare(worker, &declare, err);
    /* No worker has declared anything. */
    worker->n_groups = worker->n_edges = worker->n_tensors = worker->n_operators = 0;
    return rc;
}

static void take_plan(struct cstd_job *job, const Ledger__Job *ledger)
{
    struct cst_plan_choice *choice = &job->plan.choice;

    job->plan.valid = true;
    job->plan.step_s = ledger->step_s;
    (void)snprintf(job->plan.words, sizeof job->plan.words, "%s", ledger->plan_words);
    choice->prefetch_depth = ledger->prefetch_depth;
    choice->eviction = (enum cst_core_eviction)ledger->eviction;
    choice->n_classes = (uint32_t)ledger->n_class_elems;
}

/* The landings that the layout had. Earlier daemons did not write them down. */
static enum cst_layout_landings find_landings(const struct cstd_job *job, const Ledger__Job *ledger)
{
    return ledger->has_landings && ledger->landings <= CST_LANDINGS_SHARED
               ? (enum cst_layout_landings)ledger->landings
               : cstd_rank_devices_landings(job);
}

/* Build the layout again, with the sizes of chunks that it had. */
static int build_layout(struct cstd_job *job, const Ledger__Job *ledger, struct cst_err *err)
{
    struct cst_layout_config config = {.n_nodes = job->daemon->engines.n_nodes,
                                       .world = job->world,
                                       .grad_bytes = cstd_job_grad_bytes(job),
                                       .states = cstd_job_options_states(&job->options),
                                       .landings = find_landings(job, ledger),
                                       .max_classes = (uint32_t)ledger->n_class_elems};
    struct cstd_device_reservation rooms[CST_CORE_MAX_UPDATE_DEVICES];
    int rc;

    if (ledger->n_nodes != config.n_nodes) {
        return cst_err_set(err, CST_EMISMATCH,
                           "it was laid out for %" PRIu32 " NUMA nodes, and there are %" PRIu32,
                           ledger->n_nodes, config.n_nodes);
    }
    if (ledger->n_class_elems < 1 || ledger->n_class_elems > CST_LAYOUT_MAX_CLASSES) {
        return cst_err_set(err, CST_ELOST, "its ledger has %zu size classes",
                           ledger->n_class_elems);
    }
    for (uint32_t r = 0; r < job->world; r++) {
        config.near_node[r] = job->workers[r].near_node;
    }
    (void)cstd_revive_list_rooms(job->daemon, ledger, rooms, &config);
    config.chunk_elems = ledger->class_elems[0];
    for (uint32_t i = 1; i < ledger->n_class_elems; i++) {
        config.class_elems[i - 1] = ledger->class_elems[i];
    }
    if (job->base != NULL) {
        config.base_model = &job->base->model;
        config.base = &job->base->layout;
    }
    rc = cst_layout_build(&job->layout, &job->model, &config, err);
    if (rc == CST_OK) {
        job->phase = CSTD_COMMIT_LAYOUT;
    }
    if (rc == CST_OK && cstd_ledger_hash(job) != ledger->layout_hash) {
        rc = cst_err_set(err, CST_EVERSION, "this daemon would lay it out differently");
    }
    return rc;
}

static int open_memory(struct cstd_job *job, struct kept_job *kept, struct cst_err *err)
{
    struct cstd_memory_pool pools[CST_CORE_MAX_WORLD] = {0};
    struct cstd_device_reservation rooms[CST_CORE_MAX_UPDATE_DEVICES];
    struct cst_layout_config unused = {0};
    struct cstd_memory_request request = {.layout = &job->layout,
                                          .model = &job->model,
                                          .world = job->world,
                                          .account = job->account,
                                          .pools = pools,
                                          .rooms = rooms,
                                          .base = job->base != NULL ? &job->base->memory : NULL,
                                          .sparse = is_moving(kept)};
    int rc;

    for (uint32_t r = 0; r < job->world; r++) {
        const Ledger__Rank *rank = kept->ledger->ranks[r];

        if (rank->n_n_blocks != CST_LAYOUT_MAX_CLASSES) {
            return cst_err_set(err, CST_ELOST, "its ledger has a pool of %zu size classes",
                               rank->n_n_blocks);
        }
        pools[r].gpu = job->workers[r].gpu;
        pools[r].bytes = rank->pool_bytes;
        memcpy(pools[r].blocks.n, rank->n_blocks, sizeof pools[r].blocks.n);
        job->workers[r].pool = pools[r];
        job->workers[r].pool_bytes = rank->pool_asked;
    }
    request.n_rooms = cstd_revive_list_rooms(job->daemon, kept->ledger, rooms, &unused);
    rc = find_segments(job->daemon, kept, &job->layout, err);
    request.kept = kept->segments;
    if (rc == CST_OK) {
        rc = cstd_memory_open(&job->memory, &request, err);
    }
    if (rc == CST_OK) {
        job->phase = CSTD_COMMIT_MEMORY;
    }
    return rc;
}

/* Make the job with its memory and core, which still belong to the store. */
static int prepare(struct cstd_daemon *daemon, struct kept_job *kept, struct cstd_job **out,
                   struct cst_err *err)
{
    struct cstd_job *job;
    int rc = make_job(daemon, kept, &job, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = declare_model(job, kept->description, err);
    take_plan(job, kept->ledger);
    rc = rc == CST_OK ? cstd_revive_take_devices(job, kept->ledger, err) : rc;
    rc = rc == CST_OK ? build_layout(job, kept->ledger, err) : rc;
    rc = rc == CST_OK ? open_memory(job, kept, err) : rc;
    if (rc == CST_OK) {
        rc = is_moving(kept) ? cstd_job_core_open(job, err)
                             : cstd_job_core_reopen(job, &kept->file.last.core, err);
        job->phase = CSTD_COMMIT_CORE;
    }
    rc = rc == CST_OK ? cstd_lent_slabs_take(job, &kept->file.last.core, err) : rc;
    if (rc != CST_OK) {
        cstd_job_remove(job, 0, err);
        return rc;
    }
    *out = job;
    return CST_OK;
}

/* The job goes on: its memory belongs to it as if it had been made now. */
static int own(struct cstd_job *job, struct kept_job *kept, struct cst_err *err)
{
    if (cstd_ledger_continue(job, &kept->file, err) != CST_OK) {
        return err->status;
    }
    for (uint32_t i = 0; i < job->memory.n_segments; i++) {
        if (job->memory.segments[i] != NULL) { /* Most slabs of parked pools are NULL. */
            job->memory.segments[i]->kept = false;
        }
    }
    for (uint32_t r = 0; r < job->world; r++) {
        job->workers[r].left = (kept->file.last.left >> r & 1) != 0;
    }
    kept->file.fd = -1; /* The job has the file now. */
    kept->file.head = NULL;
    return CST_OK;
}

static int finish(struct cstd_job *job, struct kept_job *kept, struct cst_err *err)
{
    const struct cstd_ledger_record record = kept->file.last;
    struct cst_event event = {
        .kind = CST_EV_REVIVE, .record = &record.core, .table = job->memory.table};
    char arenas[CST_SIZE_TEXT];

    if (own(job, kept, err) != CST_OK) {
        return err->status;
    }
    job->phase = CSTD_COMMIT_DONE;
    job->state = CSTD_JOB_READY;
    cstd_job_feed(job, &event);
    cstd_job_check_idle(job);
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "goes on after step %" PRIu64 ", its states (%s) were kept",
                   record.core.counters.step, cst_size_text(job->memory.arena_bytes, arenas));
    return CST_OK;
}

/* @job has replaced @older, which is removed. */
static void end_older(struct cstd_job *older, const struct cstd_job *job)
{
    struct cst_err reshaped;

    cstd_memory_disown(&older->memory, &job->memory);
    (void)cst_err_set(&reshaped, CST_ECANCELLED, "job '%s' was reshaped", older->name);
    cstd_job_remove(older, 0, &reshaped);
}

static int revive(struct cstd_daemon *daemon, struct kept_job *kept, struct cst_err *err)
{
    /* A job of the same name was being reshaped: both have the same states, and this one is newer.
     */
    struct cstd_job *older = cstd_job_find(daemon, kept->ledger->uid, kept->description->name);
    struct cstd_job *job = NULL;
    int rc = is_moving(kept) ? cst_err_set(err, CST_ELOST,
                                           "the job whose states were being moved to it is lost")
                             : prepare(daemon, kept, &job, err);

    rc = rc == CST_OK ? finish(job, kept, err) : rc;
    if (rc != CST_OK && job != NULL) {
        cstd_job_remove(job, 0, err);
    } else if (rc == CST_OK && older != NULL) {
        end_older(older, job);
    }
    return rc;
}

/* -- a move of states ------------------------------------------------------------------------- */

/* Plan the move from @older to @job again, which has come as far as @kept says. */
static int take_move(struct cstd_job *job, struct cstd_job *older, const struct kept_job *kept,
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
    if (job->migrate->plan.n_stages != record->n_stages || record->n_moved > record->n_stages) {
        return cst_err_set(err, CST_EVERSION,
                           "%" PRIu32 " of %" PRIu32
                           " stages of its states have moved, and this daemon would move %" PRIu32,
                           record->n_moved, record->n_stages, job->migrate->plan.n_stages);
    }
    cstd_memory_make_sparse(&older->memory);
    return cstd_migrate_charge(job, true, err);
}

static int finish_move(struct cstd_job *job, struct kept_job *kept, struct cst_err *err)
{
    int rc = own(job, kept, err);

    if (rc != CST_OK) {
        return rc;
    }
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "%" PRIu32 " of %" PRIu32 " stages of its states have moved, the others follow",
                   job->migrate->n_moved, job->migrate->plan.n_stages);
    job->state = CSTD_JOB_POPULATING;
    cstd_commit_go_on(job);
    cstd_job_check_idle(job);
    return CST_OK;
}

/* Go on with @to, which was taking the states of @from stage by stage or has all of them. Neither
 * goes on alone. */
static int revive_both(struct cstd_daemon *daemon, struct kept_job *from, struct kept_job *to,
                       struct cst_err *err)
{
    bool moving = is_moving(to);
    struct cstd_job *older = NULL, *job = NULL;
    int rc = prepare(daemon, from, &older, err);

    rc = rc == CST_OK ? prepare(daemon, to, &job, err) : rc;
    rc = rc == CST_OK && moving ? take_move(job, older, to, err) : rc;
    rc = rc == CST_OK ? finish(older, from, err) : rc;
    rc = rc == CST_OK ? (moving ? finish_move(job, to, err) : finish(job, to, err)) : rc;
    if (rc != CST_OK && job != NULL) {
        cstd_job_remove(job, 0, err);
    }
    if (rc != CST_OK && older != NULL) {
        cstd_job_remove(older, 0, err);
    } else if (rc == CST_OK && !moving) {
        end_older(older, job);
    }
    return rc;
}

/* -- all jobs --------------------------------------------------------------------------------- */

/* Inherited ledgers in the order of serial numbers, so that a base job comes before its users. */
static int compare(const void *a, const void *b)
{
    const struct kept_job *x = a, *y = b;

    return (x->ledger->serial > y->ledger->serial) - (x->ledger->serial < y->ledger->serial);
}

/* True if jobs[@i] must wait until a job with its name that was made after it is removed. */
static bool has_rival(const struct kept_job *jobs, uint32_t n, uint32_t i)
{
    for (uint32_t k = i + 1; k < n; k++) {
        const Ledger__Job *later = jobs[k].ledger;

        if (later->uid == jobs[i].ledger->uid && later->replaces != jobs[i].ledger->serial &&
            strcmp(jobs[k].description->name, jobs[i].description->name) == 0) {
            return true;
        }
    }
    return false;
}

static void tell(const char *name, const struct cst_err *why)
{
    cstd_log(CSTD_LOG_ERROR,
             "job '%s' of the earlier daemon cannot go on: %s; its memory stays in the service "
             "manager's store until the service is stopped",
             name, why->text);
}

static bool is_ledger(const struct cstd_kept *kept)
{
    return kept->fd >= 0 && strncmp(kept->name, LEDGER, sizeof LEDGER - 1) == 0;
}

static uint32_t read_all(struct cstd_keeper *keeper, struct kept_job *jobs)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        struct cstd_kept *kept = &keeper->kept[i];
        struct cst_err err = {0};

        if (!is_ledger(kept)) {
            continue;
        }
        jobs[n] = (struct kept_job){.file.fd = -1};
        if (read_ledger(&jobs[n], kept->fd, &err) == CST_OK) {
            n++;
        } else {
            tell(kept->name, &err);
            close_kept(&jobs[n]);
        }
        kept->fd = -1;
    }
    return n;
}

int cstd_revive_check(const struct cstd_keeper *keeper, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < keeper->n_kept && rc == CST_OK; i++) {
        struct kept_job job = {.file.fd = -1};
        int fd = -1;

        if (!is_ledger(&keeper->kept[i])) {
            continue;
        }
        fd = fcntl(keeper->kept[i].fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            return cst_err_errno(err, CST_ENOMEM, errno, "%s", keeper->kept[i].name);
        }
        rc = read_ledger(&job, fd, err);
        close_kept(&job);
        if (rc != CST_OK) {
            (void)cst_err_prefix(err, "%s cannot be taken over", keeper->kept[i].name);
            rc = err->status = CST_EBUSY;
        }
    }
    return rc;
}

/* The serial number in the name of a job's descriptor; 0: it is of no job. */
static uint64_t serial_of(const struct cstd_kept *kept)
{
    uint64_t serial;

    return sscanf(kept->name, "kept-job-%" SCNu64, &serial) == 1 ||
                   sscanf(kept->name, "kept-device-%" SCNu64, &serial) == 1 ||
                   sscanf(kept->name, "kept-slab-%" SCNu64, &serial) == 1 ||
                   sscanf(kept->name, "kept-ledger-%" SCNu64, &serial) == 1
               ? serial
               : 0;
}

/* True if a ledger of job @serial was inherited, readable or not. */
static bool has_ledger(const struct cstd_keeper *keeper, uint64_t serial)
{
    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        if (strncmp(keeper->kept[i].name, LEDGER, sizeof LEDGER - 1) == 0 &&
            serial_of(&keeper->kept[i]) == serial) {
            return true;
        }
    }
    return false;
}

/* The earlier daemon died while it stored or removed a job, and its memory has no ledger: remove it
 * from the store, too. New jobs get numbers that no inherited job has. */
static void settle(struct cstd_daemon *daemon)
{
    struct cstd_keeper *keeper = &daemon->keeper;

    for (uint32_t i = 0; i < keeper->n_kept; i++) {
        uint64_t serial = serial_of(&keeper->kept[i]);

        if (serial > daemon->jobs.serial) {
            daemon->jobs.serial = serial;
        }
        if (serial != 0 && !has_ledger(keeper, serial)) {
            cstd_keeper_forget(keeper, keeper->kept[i].name);
        }
    }
}

/* A job that cannot go on here may go on in a later daemon, together with the jobs that are made
 * here: reserve the ids of its segments. */
static void reserve_ids(struct cstd_daemon *daemon, const Ledger__Job *ledger)
{
    for (size_t i = 0; i < ledger->n_segments; i++) {
        cstd_engines_reserve_id(&daemon->engines, ledger->segments[i]->id);
    }
}

/* The jobs of this daemon will use the undo slots, in which tiles of @kept may be. */
static void note_undo_lost(struct kept_job *kept)
{
    struct cstd_ledger_record record = kept->file.last;

    if (kept->file.head != NULL) {
        record.core.undo_lost = 1;
        cstd_ledger_file_write(&kept->file, &record);
    }
}

/* The job to which the states of jobs[@i] were being moved; NULL: there is none. */
static struct kept_job *heir_of(struct kept_job *jobs, uint32_t n, uint32_t i)
{
    for (uint32_t k = i + 1; k < n; k++) {
        if (jobs[k].ledger->has_replaces && jobs[k].ledger->replaces == jobs[i].ledger->serial &&
            (is_moving(&jobs[k]) || jobs[i].file.last.torn)) {
            return &jobs[k];
        }
    }
    return NULL;
}

static int revive_one(struct cstd_daemon *daemon, struct kept_job *jobs, uint32_t n, uint32_t i,
                      struct cst_err *err)
{
    struct kept_job *heir = heir_of(jobs, n, i);
    int rc;

    if (has_rival(jobs, n, i)) {
        return cst_err_set(err, CST_EEXIST, "a later job has its name");
    }
    if (heir == NULL) {
        return jobs[i].file.last.torn
                   ? cst_err_set(err, CST_ELOST,
                                 "the job to which its states were being moved is lost")
                   : revive(daemon, &jobs[i], err);
    }
    heir->settled = true;
    rc = revive_both(daemon, &jobs[i], heir, err);
    if (rc != CST_OK) {
        note_undo_lost(heir);
    }
    return rc;
}

/* Go on with jobs[@i] of @n, or name it. @why: why no job can go on; CST_OK: any may. */
static void revive_or_tell(struct cstd_daemon *daemon, struct kept_job *jobs, uint32_t n,
                           uint32_t i, const struct cst_err *why)
{
    struct cst_err err = *why;
    int rc = err.status;

    if (rc == CST_OK) {
        rc = revive_one(daemon, jobs, n, i, &err);
        if (rc != CST_OK) {
            note_undo_lost(&jobs[i]);
        }
    }
    if (rc != CST_OK) {
        tell(jobs[i].description->name, &err);
    }
}

void cstd_revive_jobs(struct cstd_daemon *daemon)
{
    struct kept_job *jobs = calloc(daemon->keeper.n_kept + 1, sizeof *jobs);
    struct cst_err err = {0};
    uint32_t n = jobs != NULL ? read_all(&daemon->keeper, jobs) : 0;
    bool safe = cstd_revive_adopt_engines(daemon, &err) == CST_OK;

    for (uint32_t i = 0; i < n; i++) {
        reserve_ids(daemon, jobs[i].ledger);
        cstd_revive_await_devices(daemon, jobs[i].ledger);
    }
    if (!safe) {
        /* The undo slots in the store belong to the jobs in it. There is one set of slots. */
        daemon->keeper.limit = 0;
        cstd_log(CSTD_LOG_ERROR,
                 "jobs of this daemon will end with it, also if the service is restarted: %s",
                 err.text);
    }
    qsort(jobs, n, sizeof *jobs, compare);
    for (uint32_t i = 0; i < n; i++) {
        if (!jobs[i].settled) {
            revive_or_tell(daemon, jobs, n, i, &err);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        close_kept(&jobs[i]);
    }
    free(jobs);
    settle(daemon);
    cstd_keeper_close(&daemon->keeper);
}
