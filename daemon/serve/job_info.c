/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of jobs for people and programs: serves JobList and JobInfo. */
#include "daemon/serve/job_info.h"

#include "daemon/job/base_job.h"
#include "daemon/job/commit.h"
#include "daemon/job/commit_wait.h"
#include "daemon/job/done.h"
#include "daemon/base/daemon_state.h"
#include "daemon/memory/edge_slots.h"
#include "daemon/memory/rank_devices.h"
#include "daemon/memory/set_aside.h"
#include "daemon/serve/job_nodes.h"
#include "daemon/serve/job_use.h"
#include "daemon/serve/serve.h"
#include "daemon/serve/state_files.h"
#include "proto/job_states.h"
#include "proto/optimizers.h"
#include "proto/size.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/job/planner.h"
#include "daemon/memory/memory.h"
#include "daemon/session/session.h"
#include "daemon/memory/tiers/tier.h"

#include <inttypes.h>
#include <stdio.h>

/* So many jobs, or ranks of a job, fit into a frame with the longest texts that they can have. */
enum { JOB_PAGE = 22, RANK_PAGE = 96, NAMED_USERS = 16 };

static double seconds_since(uint64_t then)
{
    return (double)(uv_hrtime() - then) * 1e-9;
}

/* -- jobs ----------------------------------------------------------------------------------- */

static void add_books(Cistern__Books *out, const struct cst_books *books, uint64_t block_bytes)
{
    out->capacity += books->capacity * block_bytes;
    out->free += books->free * block_bytes;
    out->cached += books->cached * block_bytes;
    out->leased += books->leased * block_bytes;
    out->moving += books->moving * block_bytes;
    out->pending += books->pending * block_bytes;
    out->quarantined += books->quarantined * block_bytes;
}

static void add_rank_books(const struct cstd_job *job, const struct cst_rank_stats *stats,
                           Cistern__Books *out)
{
    for (uint32_t c = 0; c < job->layout.n_classes; c++) {
        add_books(out, &stats->class_books[c], job->layout.classes[c].capacity * 2);
    }
}

void cstd_job_info_add_books(const struct cstd_job *job, uint32_t rank, Cistern__Books *out)
{
    struct cst_rank_stats stats;

    if (!job->memory.parked) {
        cst_core_rank_stats(job->core, rank, &stats);
        add_rank_books(job, &stats, out);
    }
}

/* A RankInfo message and the storage of its parts. */
struct rank_info {
    Cistern__RankInfo message;
    Cistern__Books books;
    struct cstd_pool_info pool;
};

static const char *worker_state(const struct cstd_worker *worker)
{
    if (worker->session != NULL) {
        return "attached";
    }
    /* The worker has hung up, or its process has ended without leaving. */
    if (worker->present || (worker->pid != 0 && !worker->left)) {
        return "dead";
    }
    return worker->left ? "left" : "absent";
}

static void fill_rank(const struct cstd_job *job, uint32_t rank, struct rank_info *info)
{
    const struct cstd_worker *worker = &job->workers[rank];
    Cistern__RankInfo *out = &info->message;
    struct cst_rank_stats stats;

    cistern__rank_info__init(out);
    out->rank = rank;
    out->state = (char *)(uintptr_t)worker_state(worker);
    out->has_pid = worker->present;
    out->pid = worker->pid;
    out->device = (char *)(uintptr_t)cstd_rank_devices_name(worker);
    if (job->core == NULL) {
        return;
    }
    cst_core_rank_stats(job->core, rank, &stats);
    cistern__books__init(&info->books);
    cstd_job_info_add_books(job, rank, &info->books);
    out->pool = &info->books;
    cstd_pool_info(job, rank, &info->pool);
    out->n_classes = job->layout.n_classes;
    out->classes = info->pool.pointers;
    out->has_micro_batch = job->spec.updates.micro_batches > 1;
    out->micro_batch = stats.micro;
    out->has_hits = out->has_misses = out->has_prefetches = out->has_evictions =
        out->has_surprises = 1;
    out->has_bytes_up = out->has_bytes_down = out->has_waits = 1;
    out->hits = stats.hits;
    out->misses = stats.misses;
    out->has_late = out->has_weight_wait_seconds = 1;
    out->late = stats.late;
    out->weight_wait_seconds = (double)stats.weight_wait_ns * 1e-9;
    out->prefetches = stats.prefetches;
    out->evictions = stats.evictions;
    out->surprises = stats.surprises;
    out->bytes_up = stats.bytes_up;
    out->bytes_down = stats.bytes_down;
    out->has_bytes_peer = stats.bytes_peer > 0;
    out->bytes_peer = stats.bytes_peer;
    out->waits = stats.waits;
}

/* Fill in the duration of updates and their exposed time. */
static void fill_updates(const struct cst_core_stats *stats, Cistern__JobInfo *out)
{
    out->has_interleave = stats->interleave > 0;
    out->interleave = stats->interleave;
    out->has_n_updates = out->has_n_device_updates = 1;
    out->n_updates = stats->n_updates;
    out->n_device_updates = stats->n_device_updates;
    out->has_n_lent_updates = stats->n_lent_updates > 0;
    out->n_lent_updates = stats->n_lent_updates;
    out->has_reservation_failures = stats->n_reservation_failures > 0;
    out->reservation_failures = stats->n_reservation_failures;
    out->has_reservations_given_up = stats->n_reservations_given_up > 0;
    out->reservations_given_up = stats->n_reservations_given_up;
    out->has_last_update_seconds = out->has_last_exposed_seconds = stats->last_update_ns > 0;
    out->last_update_seconds = (double)stats->last_update_ns * 1e-9;
    out->last_exposed_seconds = (double)stats->last_exposed_ns * 1e-9;
    out->has_update_seconds = out->has_exposed_seconds = stats->update_ns > 0;
    out->update_seconds = (double)stats->update_ns * 1e-9;
    out->exposed_seconds = (double)stats->exposed_ns * 1e-9;
}

/* Fill in the numbers of early updates. */
static void fill_early(const struct cstd_job *job, const struct cst_core_stats *stats,
                       Cistern__JobInfo *out)
{
    out->has_chunks_ahead = out->has_grads_dropped = job->spec.updates.overlap == CST_OVERLAP_EARLY;
    out->chunks_ahead = stats->chunks_ahead;
    out->grads_dropped = stats->n_dropped;
}

static void fill_core(const struct cstd_job *job, Cistern__JobInfo *out)
{
    struct cst_core_stats stats;

    cst_core_stats(job->core, &stats);
    out->step = stats.step;
    out->n_skipped = stats.n_skipped;
    out->has_n_overflows = 1;
    out->n_overflows = stats.n_overflows;
    out->n_chunks = job->layout.n_chunks;
    out->chunk_elems = job->layout.capacity;
    out->has_chunks_clean = out->has_chunks_updating = out->has_chunks_reducing = 1;
    out->chunks_clean = stats.chunks_clean;
    out->chunks_updating = stats.chunks_updating;
    out->chunks_reducing = stats.chunks_reducing;
    out->has_last_grad_norm = stats.step > 0;
    out->has_last_loss = stats.step > 0 && stats.last_loss != 0; /* NaN is a loss, too. */
    out->last_loss = stats.last_loss;
    out->has_saving = stats.saving;
    out->saving = stats.saving;
    out->has_save_wait_seconds = stats.save_wait_ns > 0;
    out->save_wait_seconds = (double)stats.save_wait_ns * 1e-9;
    out->has_readers = out->has_versions_lost = out->has_reader_wait_seconds =
        job->readers.n > 0 || job->readers.n_lost > 0 || stats.reader_wait_ns > 0;
    out->readers = job->readers.n;
    out->versions_lost = job->readers.n_lost;
    out->reader_wait_seconds = (double)stats.reader_wait_ns * 1e-9;
    out->last_grad_norm = stats.last_grad_norm;
    out->has_step_seconds = stats.last_step_ns > 0;
    out->step_seconds = (double)stats.last_step_ns * 1e-9;
    out->has_attempt = 1;
    out->attempt = stats.attempt;
    fill_updates(&stats, out);
    fill_early(job, &stats, out);
}

/* Returns the device of all ranks' pools, or "several devices". */
static const char *job_device(const struct cstd_job *job)
{
    for (uint32_t r = 1; r < job->world; r++) {
        if (job->workers[r].tier != job->workers[0].tier) {
            return "several devices";
        }
    }
    return cstd_rank_devices_name(&job->workers[0]);
}

/* Returns who copies weights into pools on accelerators; NULL: all pools are on the host. */
static const char *copies(const struct cstd_job *job)
{
    const struct cst_layout_states states = cst_layout_job_states(&job->spec);

    for (uint32_t r = 0; r < job->world; r++) {
        if (job->workers[r].tier->kind->apart) {
            return cstd_memory_worker_copies(job->workers[r].tier, &states) ? "worker" : "engine";
        }
    }
    return NULL;
}

static void fill_drift(const struct cstd_drift *drift, Cistern__JobInfo *out)
{
    if (drift->predicted_s > 0) {
        out->has_expected_step_seconds = 1;
        out->expected_step_seconds = drift->predicted_s;
        out->expected_by = (char *)(uintptr_t)(drift->learned ? "first steps" : "plan");
        out->has_drifted = drift->off;
        out->drifted = drift->off;
    }
}

/* Bytes of all rows of a trained bf16 parameter, if all are updated in the same way. */
static double expected_bytes(const struct cstd_job *job)
{
    struct cst_layout_states states = cst_layout_job_states(&job->spec);
    uint64_t bytes = 0;

    for (int row = 0; row <= CST_ROW_WEIGHT_OTHER; row++) {
        bytes += cst_layout_row_bytes(&states, job->spec.updates.micro_batches > 1 ? 4 : 2,
                                      CST_BF16, row, CST_MX8_BLOCK);
    }
    return (double)bytes / CST_MX8_BLOCK;
}

/* The mean over the trained parameters. Before there is a layout, what is expected. */
static double state_bytes(const struct cstd_job *job)
{
    const struct cst_layout *layout = &job->layout;
    const uint32_t n_chunks = cstd_job_has_layout(job) ? layout->n_chunks : 0;
    double bytes = 0, elems = 0;

    for (uint32_t c = 0; c < n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        if (!cst_layout_has_states(chunk)) {
            continue;
        }
        for (int row = 0; row <= CST_ROW_WEIGHT_OTHER; row++) {
            bytes += (double)cst_layout_chunk_row_bytes(layout, chunk, row, chunk->n_elems);
        }
        elems += (double)chunk->n_elems;
    }
    return elems > 0 ? bytes / elems : expected_bytes(job);
}

/* Fill in the bytes of device reservations and of states on accelerators, and those of states on
 * drives. Before there is a layout, the requested sizes of the states on accelerators are
 * reported. */
static void fill_accelerators(const struct cstd_job *job, Cistern__JobInfo *out)
{
    struct cstd_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];
    uint32_t n = cstd_device_reservation_list(job, reservations);

    for (uint32_t i = 0; i < n; i++) {
        out->device_update_bytes +=
            cstd_state_files_on(job, reservations[i].tier->number) ? 0 : reservations[i].bytes;
    }
    for (uint32_t r = 0; r < job->world && !cstd_job_has_layout(job); r++) {
        out->device_states += job->workers[r].device_states;
    }
    out->drive_bytes = cstd_state_files_bytes(job);
    out->has_drive_bytes = out->drive_bytes > 0;
    out->device_states +=
        cstd_job_has_layout(job) ? job->layout.device_bytes - out->drive_bytes : 0;
}

/* Fill in the options of the job. */
static void fill_options(const struct cstd_job *job, Cistern__JobInfo *out)
{
    cst_job_options_fill(&out->base, &job->spec, &job->spec_texts, CST_JOB_SAME);
    if (job->spec.states.moments == CST_MOMENTS_FP32) {
        out->rounding = NULL;
    }
    out->has_micro_batches = job->spec.updates.micro_batches > 1;
    out->has_delay_from = job->spec.updates.overlap == CST_OVERLAP_DELAYED;
    out->has_state_bytes_per_param = 1;
    out->state_bytes_per_param = state_bytes(job);
    fill_accelerators(job, out);
    out->has_device_update_bytes = out->device_update_bytes > 0;
    out->has_device_states = out->device_states > 0;
}

/* Return the state of @job as users see it. */
static enum cst_job_state state_of(const struct cstd_job *job)
{
    static const enum cst_job_state phases[] = {
        [CST_PHASE_READY] = CST_JOB_IS_READY,   [CST_PHASE_RUNNING] = CST_JOB_IS_TRAINING,
        [CST_PHASE_IDLE] = CST_JOB_IS_IDLE,     [CST_PHASE_INTERRUPTED] = CST_JOB_IS_INTERRUPTED,
        [CST_PHASE_FAILED] = CST_JOB_IS_FAILED,
    };
    struct cst_core_stats stats;

    if (job->state == CSTD_JOB_DECLARING || job->state == CSTD_JOB_POPULATING) {
        return cstd_commit_shown(job);
    }
    if (job->state == CSTD_JOB_REVIVING) {
        return CST_JOB_IS_REVIVING;
    }
    if (job->successor != NULL) {
        return CST_JOB_IS_RESHAPING;
    }
    if (job->core == NULL) {
        return CST_JOB_IS_CLOSING;
    }
    cst_core_stats(job->core, &stats);
    if (cstd_job_is_paused(job) && stats.phase != CST_PHASE_FAILED) {
        return CST_JOB_IS_PAUSED;
    }
    return cstd_done_is(job) ? CST_JOB_IS_DONE : phases[stats.phase];
}

static void fill_pause(const struct cstd_job *job, Cistern__JobInfo *out)
{
    out->has_paused_s = cstd_job_is_paused(job);
    out->paused_s = out->has_paused_s ? seconds_since(job->pause.paused_ns) : 0;
    out->has_pausing = out->pausing = job->pause.wanted && !out->has_paused_s;
    out->has_released_bytes = job->memory.pool_pages.state == CSTD_POOL_PAGES_GIVEN;
    out->released_bytes = out->has_released_bytes ? job->memory.pool_pages.bytes : 0;
}

static void fill_job(const struct cstd_job *job, Cistern__JobInfo *out)
{
    cistern__job_info__init(out);
    out->name = (char *)(uintptr_t)job->name;
    out->uid = job->uid;
    out->world = job->world;
    out->state = (char *)(uintptr_t)cst_job_state_names[state_of(job)];
    out->n_params = job->model.n_params;
    /* Without segments the numbers are left from an earlier commit. */
    out->arena_bytes = job->memory.n_segments > 0 ? job->memory.arena_bytes : 0;
    out->has_populated_bytes = 1;
    out->populated_bytes = job->memory.n_segments > 0 ? job->memory.populated : 0;
    out->has_age_s = out->has_idle_s = 1;
    out->age_s = seconds_since(job->created_ns);
    out->idle_s = job->idle_since_ns != 0 ? seconds_since(job->idle_since_ns) : 0;
    out->device = (char *)(uintptr_t)job_device(job);
    out->copies = (char *)(uintptr_t)copies(job);
    out->base_job = job->base != NULL ? job->base->name : NULL;
    out->has_base_bytes = job->base != NULL;
    out->base_bytes = job->memory.n_segments > 0 ? job->memory.base_bytes : 0;
    fill_pause(job, out);
    out->has_saved_step = job->was_saved;
    out->saved_step = job->saved_step;
    fill_options(job, out);
    fill_drift(&job->drift, out);
    out->has_durable = out->durable = job->spec.states.durable;
    out->has_recorded_step = cstd_state_files_recorded(job, &out->recorded_step);
    if (job->plan.valid) {
        out->plan = (char *)(uintptr_t)job->plan.words;
        out->has_plan_prefetch = job->plan.choice.prefetch_depth != CST_CORE_NO_PREFETCH;
        out->plan_prefetch = job->plan.choice.prefetch_depth;
        out->plan_bottleneck = (char *)(uintptr_t)job->plan.choice.binds;
    }
    out->step = job->state == CSTD_JOB_REVIVING ? job->ledger.step : 0;
    if (job->core != NULL && job->state != CSTD_JOB_REVIVING) {
        fill_core(job, out);
    }
}

bool cstd_serve_may_see(const struct cstd_session *session, const struct cstd_job *job)
{
    return job->predecessor == NULL &&
           (session->manager || session->peer.uid == job->uid || session->peer.uid == 0);
}

void cstd_serve_job_list(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__JobListGet *get = body;
    Cistern__JobListPart part = CISTERN__JOB_LIST_PART__INIT;
    Cistern__JobInfo infos[JOB_PAGE], *pointers[JOB_PAGE];
    struct cstd_job_use uses[JOB_PAGE];
    struct cstd_job_nodes_brief nodes[JOB_PAGE];
    const struct cstd_job *job;
    uint32_t i = 0, n = 0;

    TAILQ_FOREACH(job, &session->daemon->jobs->living, link)
    {
        if (!cstd_serve_may_see(session, job)) {
            continue;
        }
        if (i++ < get->first) {
            continue;
        }
        if (n == JOB_PAGE) {
            part.more = 1;
            break;
        }
        fill_job(job, &infos[n]);
        cstd_job_use_fill(job, &uses[n], &infos[n]);
        cstd_job_nodes_fill_brief(job, &nodes[n], &infos[n]);
        pointers[n] = &infos[n];
        n++;
    }
    part.n_jobs = n;
    part.jobs = pointers;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_JOB_LIST_PART, &part.base, NULL, 0);
}

/* The parts that JobInfo has and JobList does not, for one job. */
struct details {
    Cistern__ClassInfo classes[CST_LAYOUT_MAX_CLASSES], *class_pointers[CST_LAYOUT_MAX_CLASSES];
    Cistern__PatternInfo patterns[CST_PATTERN_COUNT], *pattern_pointers[CST_PATTERN_COUNT];
    char *users[NAMED_USERS];
    struct cstd_state_files files;
};

static void fill_classes(const struct cstd_job *job, struct details *details, Cistern__JobInfo *out)
{
    out->n_classes = cstd_job_has_layout(job) ? job->layout.n_classes : 0;
    out->classes = details->class_pointers;
    for (uint32_t c = 0; c < out->n_classes; c++) {
        cistern__class_info__init(&details->classes[c]);
        details->classes[c].chunk_elems = job->layout.classes[c].capacity;
        details->classes[c].n_chunks = job->layout.classes[c].n_chunks;
        details->class_pointers[c] = &details->classes[c];
    }
}

static void fill_patterns(const struct cstd_job *job, struct details *details,
                          Cistern__JobInfo *out)
{
    for (uint32_t k = 0; k < CST_PATTERN_COUNT; k++) {
        cistern__pattern_info__init(&details->patterns[k]);
        details->patterns[k].name = (char *)(uintptr_t)cst_pattern(k)->name;
    }
    for (uint32_t i = 0; i < job->model.n_tensors; i++) {
        Cistern__PatternInfo *pattern = &details->patterns[job->model.tensors[i].pattern];

        pattern->n_tensors++;
        pattern->n_params += job->model.tensors[i].n_elems;
    }
    out->patterns = details->pattern_pointers;
    for (uint32_t k = 0; k < CST_PATTERN_COUNT; k++) {
        if (details->patterns[k].n_tensors > 0) {
            out->patterns[out->n_patterns++] = &details->patterns[k];
        }
    }
}

static void fill_edges(const struct cstd_job *job, Cistern__JobInfo *out)
{
    out->has_n_edges = out->has_edge_bytes = job->model.n_edges > 0;
    out->n_edges = job->model.n_edges;
    if (!job->memory.parked) {
        out->edge_bytes = cstd_edge_slots_host_bytes(job);
        out->edge_device_bytes = cstd_edge_slots_device_bytes(job);
        out->has_edge_device_bytes = out->edge_device_bytes > 0;
    }
}

static void fill_drives(const struct cstd_job *job, Cistern__JobInfo *out)
{
    const struct cst_buffers_drives buffers = cstd_device_reservation_drives(job);

    out->has_n_stay_in_host = out->has_stay_bytes = buffers.n_stay > 0;
    out->n_stay_in_host = buffers.n_stay;
    out->stay_bytes = buffers.stay_bytes;
}

static void fill_users(const struct cstd_job *job, struct details *details, Cistern__JobInfo *out)
{
    struct cstd_job *user = NULL;

    out->users = details->users;
    while (out->n_users < NAMED_USERS && (user = cstd_base_job_user(job, user)) != NULL) {
        out->users[out->n_users++] = user->name;
    }
}

/* Returns what the job, or the one that is to take its place, waits for; NULL: for nothing.
 */
static char *waits_for(const struct cstd_job *job, char *text, size_t size)
{
    job = job->successor != NULL ? job->successor : job;
    if (job->core != NULL) {
        cst_core_waits(job->core, text, size);
    } else {
        cstd_commit_missing(job, text, size);
    }
    return text[0] != '\0' ? text : NULL;
}

void cstd_serve_job_info(struct cstd_session *session, uint64_t id, void *body)
{
    const Cistern__JobName *name = body;
    Cistern__JobInfoReply reply = CISTERN__JOB_INFO_REPLY__INIT;
    Cistern__JobInfo info;
    struct rank_info ranks[RANK_PAGE];
    Cistern__RankInfo *pointers[RANK_PAGE];
    struct details details;
    struct cstd_job_use use;
    struct cstd_job_nodes nodes;
    struct cstd_job *job;
    struct cst_err err = {0};
    char waits[256];
    uint32_t page = RANK_PAGE;

    if (cstd_serve_find_job(session, name->name, name->has_uid, name->uid, &job, &err) != CST_OK) {
        cstd_session_error(session, id, &err);
        return;
    }
    fill_job(job, &info);
    cstd_job_use_fill(job, &use, &info);
    fill_classes(job, &details, &info);
    fill_patterns(job, &details, &info);
    fill_users(job, &details, &info);
    fill_drives(job, &info);
    cstd_state_files_describe(job, &details.files);
    info.n_files = details.files.n;
    info.files = details.files.pointers;
    info.has_n_groups = job->model.n_groups > 1;
    info.n_groups = job->model.n_groups - 1;
    fill_edges(job, &info);
    if (name->first_rank == 0) {
        cstd_job_nodes_fill(job, &nodes, &info);
        page = info.n_nodes > 0 ? RANK_PAGE / 2 : RANK_PAGE; /* The nodes need room, too. */
    }
    for (uint32_t r = name->first_rank; r < job->world && info.n_ranks < page; r++) {
        fill_rank(job, r, &ranks[info.n_ranks]);
        pointers[info.n_ranks] = &ranks[info.n_ranks].message;
        info.n_ranks++;
    }
    info.ranks = pointers;
    info.waits_for = waits_for(job, waits, sizeof waits);
    reply.job = &info;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY, &reply.base, NULL, 0);
}
