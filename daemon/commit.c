/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/commit.h"

#include "daemon/barrier.h"
#include "daemon/base_job.h"
#include "daemon/daemon.h"
#include "daemon/declare.h"
#include "daemon/rank_devices.h"
#include "daemon/core_driver.h"
#include "daemon/given.h"
#include "daemon/pool_info.h"
#include "daemon/log.h"
#include "daemon/relocate.h"
#include "daemon/session.h"
#include "daemon/pool_share.h"
#include "proto/size.h"
#include "daemon/updates.h"
#include "proto/cistern.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void cstd_commit_drop_layout(struct cstd_job *job)
{
    if (job->has_layout) {
        cst_layout_close(&job->layout);
        job->has_layout = false;
    }
}

/* -- replies -------------------------------------------------------------------------------- */

/* A Committed message and the storage of its parts. */
struct committed {
    Cistern__Committed message;
    struct cstd_pool_info pool;
};

/* Fill in the pool of @rank by size class. */
static void fill_pool(const struct cstd_job *job, uint32_t rank, struct committed *out)
{
    const Cistern__PoolClass *first = &out->pool.classes[0];

    cstd_pool_info(job, rank, &out->pool);
    out->message.n_classes = job->layout.n_classes;
    out->message.classes = out->pool.pointers;
    for (uint32_t c = 0; c < job->layout.n_classes; c++) {
        out->message.pool_bytes +=
            out->pool.classes[c].n_blocks * out->pool.classes[c].chunk_elems * 2;
    }
    out->message.chunk_elems = first->chunk_elems;
    out->message.n_blocks = first->n_blocks;
    out->message.min_blocks = first->min_blocks;
    out->message.blocks_per_slab = first->blocks_per_slab;
}

static void fill_committed(const struct cstd_job *job, uint32_t rank, struct committed *out)
{
    const struct cst_core_pool *pool = &job->memory.pools[rank];
    Cistern__Committed *message = &out->message;
    struct cst_core_stats stats;

    cistern__committed__init(message);
    fill_pool(job, rank, out);
    message->n_chunks = job->layout.n_chunks;
    message->n_slabs = cstd_memory_n_slabs(&job->memory, rank);
    message->n_params = job->model.n_params;
    message->arena_bytes = job->memory.arena_bytes;
    cst_core_stats(job->core, &stats);
    message->has_step = 1;
    message->step = stats.step;
    message->has_n_arenas = pool->worker_copies;
    message->n_arenas = pool->worker_copies ? job->memory.n_arenas : 0;
}

static void answer_all(struct cstd_job *job)
{
    struct committed committed;

    for (uint32_t r = 0; r < job->world; r++) {
        struct cstd_pending *commit = job->workers[r].commit;

        job->workers[r].commit = NULL;
        if (commit != NULL) {
            fill_committed(job, r, &committed);
            cstd_session_answer(job->daemon, commit, CISTERN__MSG_TYPE__MSG_COMMITTED,
                                &committed.message.base, NULL, 0);
        }
    }
}

/* -- layout and memory ------------------------------------------------------------------------ */

static int lay_out(struct cstd_job *job, struct cst_err *err)
{
    struct cst_layout_config config = {.chunk_elems = job->chunk_elems,
                                       .pool_bytes = cstd_pool_share_smallest(job),
                                       .n_nodes = job->daemon->engines.n_nodes,
                                       .world = job->world,
                                       .grad_bytes = job->micro_batches > 1 ? 4 : 2,
                                       .states = cstd_job_options_states(&job->options),
                                       .max_classes = CST_LAYOUT_MAX_CLASSES};
    int rc = cstd_base_job_check(job, err);

    for (uint32_t r = 0; r < job->world; r++) {
        /* Gradients in host memory are summed where they are and need no landings. */
        config.landings = config.landings || job->workers[r].gpu != NULL;
    }
    if (rc == CST_OK) {
        rc = cstd_device_reservation_devices(job, &config, err);
    }
    if (job->plan.valid) {
        config.chunk_elems = job->plan.choice.layout.chunk_elems;
        memcpy(config.class_elems, job->plan.choice.layout.class_elems, sizeof config.class_elems);
    }
    if (rc == CST_OK && job->base != NULL) {
        config.base_model = &job->base->model;
        config.base = &job->base->layout;
    }
    return rc == CST_OK ? cst_layout_build(&job->layout, &job->model, &config, err) : rc;
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

static int populate(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_memory_pool pools[CST_CORE_MAX_WORLD];
    struct cstd_device_reservation rooms[CST_CORE_MAX_UPDATE_DEVICES];
    struct cstd_memory_request asked = {.layout = &job->layout,
                                        .world = job->world,
                                        .account = job->account,
                                        .pools = pools,
                                        .rooms = rooms,
                                        .n_rooms = cstd_device_reservation_list(job, rooms),
                                        .manager = asks_as_manager(job),
                                        .base = job->base != NULL ? &job->base->memory : NULL};
    int rc = lay_out(job, err);

    if (rc != CST_OK) {
        return rc;
    }
    job->has_layout = true;
    rc = cstd_given_check(job, err);
    rc = rc == CST_OK ? cstd_pool_share_divide(job, pools, err) : rc;
    if (rc == CST_OK) {
        rc = cstd_memory_open(&job->memory, &asked, err);
    }
    if (rc != CST_OK) {
        cstd_commit_drop_layout(job);
    }
    return rc;
}

/* Populate the job's memory, and repeat it with a reduced plan if necessary. A pool that is one
 * slab larger than the plan assumed, or an accelerator whose memory another job has taken
 * meanwhile, must not fail the job. */
static int populate_as_planned(struct cstd_job *job, struct cst_err *err)
{
    int rc;

    cstd_device_reservation_settle(job);
    do {
        rc = populate(job, err);
    } while (rc != CST_OK && cstd_planner_forgo(job, err));
    return rc;
}

static void start_populating(struct cstd_job *job)
{
    struct cst_err err = {0};
    char arenas[CST_SIZE_TEXT], pools[CST_SIZE_TEXT];

    if (populate_as_planned(job, &err) != CST_OK) {
        cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT(job), "%s", err.text);
        /* The job stays in DECLARING, and the ranks may commit again. */
        cstd_barrier_break(job, &err);
        return;
    }
    job->state = CSTD_JOB_POPULATING;
    cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT(job),
                   "%" PRIu64 " parameters in %u chunks of %" PRIu64 ", arenas %s, pools %s",
                   job->model.n_params, job->layout.n_chunks, job->layout.capacity,
                   cst_size_text(job->memory.arena_bytes, arenas),
                   cst_size_text(job->memory.pool_bytes, pools));
}

/* -- start of the core ------------------------------------------------------------------------ */

static struct cst_core_policy policy_of(const struct cstd_job *job)
{
    struct cst_core_policy policy = {.gather_bytes = job->daemon->config->gpu_gather,
                                     .overlap = job->options.overlap,
                                     .delay_from = job->options.delay_from};

    if (job->plan.valid) {
        policy.prefetch_depth = job->plan.choice.prefetch_depth;
        policy.eviction = job->plan.choice.eviction;
    }
    return policy;
}

static int open_core(struct cstd_job *job, struct cst_err *err)
{
    const struct cstd_memory *memory = &job->memory;
    struct cst_core_config config = {
        .model = &job->model,
        .layout = &job->layout,
        .world = job->world,
        .arena_segments = memory->ids,
        .table_segment = memory->ids[memory->n_arenas],
        .pools = memory->pools,
        /* The low 32 bits of a mark must not be 0 (proto/table.h). A REDUCE is marked with its
         * ticket. */
        .first_ticket = (job->serial << CSTD_JOB_TICKET_SHIFT) + 1,
        .peer_timeout_ns = (uint64_t)job->timeout_ms * 1000000,
        .policy = policy_of(job),
        .micro_batches = job->micro_batches,
        .seed = job->options.seed,
        .rounding = job->options.rounding,
        .rooms = memory->rooms,
        .n_rooms = memory->n_rooms,
        .interleave = cstd_updates_open(job),
    };
    int rc = cst_core_open(&job->core, &config, err);

    if (rc == CST_OK) {
        cstd_drift_init(&job->drift, job->plan.valid ? job->plan.step_s : 0);
        cstd_memory_size_table(&job->layout, memory->table);
        cst_core_write_table(&config, memory->table);
    }
    return rc;
}

/* Tell the core about the workers that attached before the core existed. */
static void attach_present(struct cstd_job *job)
{
    for (uint32_t r = 0; r < job->world; r++) {
        struct cst_event event = {.kind = CST_EV_ATTACH, .rank = r};

        if (job->workers[r].session != NULL) {
            cstd_job_feed(job, &event);
        }
    }
}

void cstd_commit_populated(struct cstd_memory *memory)
{
    struct cstd_job *job = cstd_owner_of(memory, struct cstd_job, memory);
    struct cst_err err = memory->err;
    char bytes[CST_SIZE_TEXT];

    if (job->state == CSTD_JOB_READY) { /* The job was committed before; pools were made again. */
        cstd_relocate_end(job, &err);
        return;
    }
    /* The job is being removed. */
    if (job->state != CSTD_JOB_POPULATING) {
        return;
    }
    if (err.status == 0) {
        (void)open_core(job, &err);
    }
    if (err.status != 0) {
        cstd_log_about(CSTD_LOG_ERROR, CSTD_JOB_ABOUT(job), "%s", err.text);
        job->failure = err;
        cstd_memory_close(memory);
        return;
    }
    cstd_log_about(CSTD_LOG_INFO, CSTD_JOB_ABOUT(job), "%s populated in %.2f s%s",
                   cst_size_text(memory->populated, bytes),
                   (double)(uv_hrtime() - memory->started_ns) * 1e-9,
                   cstd_memory_is_locked(memory) ? ", locked" : "");
    if (job->daemon->config->lock == CSTD_LOCK_TRY && !cstd_memory_is_locked(memory)) {
        cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT(job),
                       "its states are not locked in memory (raise LimitMEMLOCK)");
    }
    job->state = CSTD_JOB_READY;
    attach_present(job);
    answer_all(job);
    job->daemon->status_changed = true;
}

void cstd_commit_settled(struct cstd_job *job)
{
    struct cst_core_stats stats;

    if (job->commits_held) {
        cst_core_stats(job->core, &stats);
        if (!stats.closing && !cstd_relocate_is_under_way(job)) {
            job->commits_held = false;
            answer_all(job);
        }
    }
}

void cstd_commit_undone(struct cstd_job *job)
{
    cstd_commit_drop_layout(job);
    job->state = CSTD_JOB_DECLARING;
    cstd_barrier_break(job, &job->failure);
    cstd_job_check_idle(job);
}

/* -- barrier of all ranks ------------------------------------------------------------------- */

/* The search for a plan has ended. Ranks may have left during the search. */
static void on_planned(struct cstd_job *job)
{
    if (job->state == CSTD_JOB_DECLARING && cstd_barrier_is_complete(job)) {
        start_populating(job);
    }
}

static void go_on(struct cstd_job *job)
{
    struct cst_err err = {0};
    int rc = cstd_rank_devices_await(job, &err);
    bool given = rc == CST_OK && cstd_job_has_given_plan(job);

    /* A given plan replaces the search. */
    rc = given ? cstd_given_take(job, &err) : rc;
    if (given && rc == CST_OK) {
        start_populating(job);
    } else if (rc == CST_OK && !cstd_planner_start(job, on_planned)) {
        start_populating(job);
    } else if (rc != CST_OK && rc != CST_EAGAIN) { /* EAGAIN: cstd_commit_resume continues. */
        cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT(job), "%s", err.text);
        cstd_barrier_break(job, &err);
    }
}

void cstd_commit_resume(void *arg)
{
    struct cstd_daemon *daemon = arg;
    struct cstd_job *job;

    TAILQ_FOREACH(job, &daemon->jobs.living, link)
    {
        if (job->state == CSTD_JOB_DECLARING && cstd_barrier_is_complete(job)) {
            go_on(job);
        }
    }
}

static void join_barrier(struct cstd_job *job)
{
    if (cstd_barrier_is_complete(job)) {
        cstd_barrier_stop(job);
        for (uint32_t r = 0; r < job->world; r++) {
            cstd_rank_devices_need(&job->workers[r]);
        }
        go_on(job);
    } else {
        cstd_barrier_wait(job);
    }
}

/* Refuse a worker that cannot copy weights itself although the configuration requires this. */
static int check_copies(const struct cstd_worker *worker, bool copies, struct cst_err *err)
{
    const struct cst_layout_states states = cstd_job_options_states(&worker->job->options);

    if (copies || !cstd_memory_worker_copies(worker->job->daemon, worker->gpu, &states)) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EUNSUPPORTED,
                       "the worker of rank %u cannot copy weights to %s, which this daemon "
                       "requires ('copies = worker' in [gpu])",
                       worker->rank, cstd_rank_devices_name(worker));
}

void cstd_commit(struct cstd_session *session, uint64_t id, uint32_t n_tensors,
                 uint32_t n_operators, bool copies)
{
    struct cstd_job *job = session->job;
    struct cstd_worker *worker = &job->workers[session->rank];
    struct cstd_pending *request;
    struct cst_err err = {0};
    int rc = cstd_declare_check(worker, n_tensors, n_operators, &err);

    if (rc == CST_OK && worker->commit != NULL) {
        rc = cst_err_set(&err, CST_EINVAL, "rank %u is committing already", worker->rank);
    }
    if (rc == CST_OK) {
        rc = check_copies(worker, copies, &err);
    }
    /* The rank's pool could not be made again on another device. The worker must open the job
     * anew. */
    if (rc == CST_OK && job->state == CSTD_JOB_READY && worker->relocate_err.status != CST_OK) {
        err = worker->relocate_err;
        rc = err.status;
    }
    if (rc == CST_OK && job->state == CSTD_JOB_READY) {
        /* Pools of a committed job keep their sizes; a worker that comes back must ask for the pool
         * that exists. */
        rc = cstd_pool_share_check(worker, &err);
    }
    if (rc == CST_OK) {
        rc = cstd_session_defer(session, job, id, CISTERN__MSG_TYPE__MSG_COMMIT, 1, &request, &err);
    }
    if (rc != CST_OK) {
        /* The reply comes first, because cstd_declare_disagree tells the other ranks and drops the
         * model. */
        cstd_session_error(session, id, &err);
        if (rc == CST_EMISMATCH) {
            cstd_declare_disagree(job, worker, &err);
        }
        return;
    }
    request->waits_commit = true;
    worker->commit = request;
    if (job->state == CSTD_JOB_READY) {
        job->commits_held = true;
        cstd_commit_settled(job);
    } else if (job->state == CSTD_JOB_DECLARING) {
        join_barrier(job);
    }
}
