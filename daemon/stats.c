/* What the daemon knows, for people and programs: Stat, JobList, JobInfo, Explain. */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#include "daemon/daemon.h"
#include "daemon/dispatch.h"
#include "proto/cistern.pb-c.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { JOB_PAGE = 64, EXPLAIN_LINES = 64 };

static double seconds_since(uint64_t then)
{
    return (double)(uv_hrtime() - then) * 1e-9;
}

/* -- jobs ----------------------------------------------------------------------------------- */

static void fill_books(Cistern__Books *out, const struct cst_books *books, uint64_t block_bytes)
{
    cistern__books__init(out);
    out->capacity = books->capacity * block_bytes;
    out->free = books->free * block_bytes;
    out->cached = books->cached * block_bytes;
    out->leased = books->leased * block_bytes;
    out->moving = books->moving * block_bytes;
    out->pending = books->pending * block_bytes;
    out->quarantined = books->quarantined * block_bytes;
}

static const char *worker_state(const struct cst_worker *worker)
{
    if (worker->session != NULL) {
        return "attached";
    }
    if (worker->present || (worker->pid != 0 && !worker->left)) {
        return "dead";
    }
    return worker->left ? "left" : "absent";
}

static void fill_rank(const struct cst_job *job, uint32_t rank, Cistern__RankInfo *out,
                      Cistern__Books *books)
{
    const struct cst_worker *worker = &job->workers[rank];
    struct cst_rank_stats stats;

    cistern__rank_info__init(out);
    out->rank = rank;
    out->state = (char *)(uintptr_t)worker_state(worker);
    out->has_pid = worker->present;
    out->pid = worker->pid;
    out->device = (char *)(uintptr_t)cst_worker_device(worker);
    if (job->core == NULL) {
        return;
    }
    cst_core_rank_stats(job->core, rank, &stats);
    fill_books(books, &stats.books, job->layout.capacity * 2);
    out->pool = books;
    out->has_hits = out->has_misses = out->has_prefetches = out->has_evictions =
        out->has_surprises = 1;
    out->has_bytes_up = out->has_bytes_down = out->has_waits = 1;
    out->hits = stats.hits;
    out->misses = stats.misses;
    out->prefetches = stats.prefetches;
    out->evictions = stats.evictions;
    out->surprises = stats.surprises;
    out->bytes_up = stats.bytes_up;
    out->bytes_down = stats.bytes_down;
    out->waits = stats.waits;
}

static void fill_core(const struct cst_job *job, Cistern__JobInfo *out)
{
    struct cst_core_stats stats;

    cst_core_stats(job->core, &stats);
    out->step = stats.step;
    out->n_skipped = stats.n_skipped;
    out->n_chunks = job->layout.n_chunks;
    out->chunk_elems = job->layout.capacity;
    out->has_chunks_clean = out->has_chunks_updating = out->has_chunks_reducing = 1;
    out->chunks_clean = stats.chunks_clean;
    out->chunks_updating = stats.chunks_updating;
    out->chunks_reducing = stats.chunks_reducing;
    out->has_last_loss = out->has_last_grad_norm = stats.step > 0;
    out->last_loss = stats.last_loss;
    out->last_grad_norm = stats.last_grad_norm;
    out->has_step_seconds = stats.last_step_ns > 0;
    out->step_seconds = (double)stats.last_step_ns * 1e-9;
    out->has_attempt = 1;
    out->attempt = stats.attempt;
}

/* Where all its ranks are, or that they differ. */
static const char *job_device(const struct cst_job *job)
{
    for (uint32_t r = 1; r < job->world; r++) {
        if (job->workers[r].gpu != job->workers[0].gpu) {
            return "several devices";
        }
    }
    return cst_worker_device(&job->workers[0]);
}

/* NULL: all ranks are on the host. */
static const char *copies(const struct cst_job *job)
{
    for (uint32_t r = 0; r < job->world; r++) {
        if (job->workers[r].gpu != NULL) {
            return cst_memory_worker_copies(job->daemon, job->workers[r].gpu) ? "worker" : "engine";
        }
    }
    return NULL;
}

static void fill_drift(const struct cst_drift *drift, Cistern__JobInfo *out)
{
    if (drift->predicted_s > 0) {
        out->has_expected_step_seconds = 1;
        out->expected_step_seconds = drift->predicted_s;
        out->expected_by = (char *)(uintptr_t)(drift->learned ? "first steps" : "plan");
        out->has_drifted = drift->off;
        out->drifted = drift->off;
    }
}

static void fill_job(const struct cst_job *job, Cistern__JobInfo *out)
{
    cistern__job_info__init(out);
    out->name = (char *)(uintptr_t)job->name;
    out->uid = job->uid;
    out->world = job->world;
    out->state = (char *)(uintptr_t)cst_job_state_name(job);
    out->n_params = job->model.n_params;
    out->arena_bytes = job->memory.n_segments > 0 ? job->memory.arena_bytes : 0;
    out->has_populated_bytes = 1;
    out->populated_bytes = job->memory.n_segments > 0 ? job->memory.populated : 0;
    out->has_age_s = out->has_idle_s = 1;
    out->age_s = seconds_since(job->created_ns);
    out->idle_s = job->idle_since_ns != 0 ? seconds_since(job->idle_since_ns) : 0;
    out->device = (char *)(uintptr_t)job_device(job);
    out->copies = (char *)(uintptr_t)copies(job);
    fill_drift(&job->drift, out);
    if (job->core != NULL) {
        fill_core(job, out);
    }
}

/* Jobs of others are a manager's business. */
static bool may_see(const struct cst_session *session, const struct cst_job *job)
{
    return session->manager || session->peer.uid == job->uid || session->peer.uid == 0;
}

void cst_serve_job_list(struct cst_session *session, uint64_t id, void *body)
{
    const Cistern__JobListGet *get = body;
    Cistern__JobListPart part = CISTERN__JOB_LIST_PART__INIT;
    Cistern__JobInfo infos[JOB_PAGE], *pointers[JOB_PAGE];
    const struct cst_job *job;
    uint32_t i = 0, n = 0;

    TAILQ_FOREACH(job, &session->daemon->jobs.living, link)
    {
        if (!may_see(session, job)) {
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
        pointers[n] = &infos[n];
        n++;
    }
    part.n_jobs = n;
    part.jobs = pointers;
    cst_session_reply(session, id, CISTERN__MSG_TYPE__MSG_JOB_LIST_PART, &part.base, NULL, 0);
}

void cst_serve_job_info(struct cst_session *session, uint64_t id, void *body)
{
    const Cistern__JobName *name = body;
    Cistern__JobInfoReply reply = CISTERN__JOB_INFO_REPLY__INIT;
    Cistern__JobInfo info;
    Cistern__RankInfo ranks[CST_CORE_MAX_WORLD], *pointers[CST_CORE_MAX_WORLD];
    Cistern__Books books[CST_CORE_MAX_WORLD];
    struct cst_job *job;
    struct cst_err err = {0};

    if (cst_serve_find_job(session, name->name, name->has_uid, name->uid, &job, &err) != CST_OK) {
        cst_session_error(session, id, &err);
        return;
    }
    fill_job(job, &info);
    for (uint32_t r = 0; r < job->world; r++) {
        fill_rank(job, r, &ranks[r], &books[r]);
        pointers[r] = &ranks[r];
    }
    info.n_ranks = job->world;
    info.ranks = pointers;
    reply.job = &info;
    cst_session_reply(session, id, CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY, &reply.base, NULL, 0);
}

/* -- the daemon ----------------------------------------------------------------------------- */

static uint32_t count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *entry;
    uint32_t n = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        n += entry->d_name[0] != '.';
    }
    if (dir != NULL) {
        n--; /* the directory itself */
        (void)closedir(dir);
    }
    return n;
}

static void fill_gpu_engine(const struct cst_engine *engine, Cistern__EngineInfo *out)
{
    const struct cst_engine_counters *now = &engine->counters, *base = &engine->base;

    out->device = (char *)(uintptr_t)engine->device;
    out->has_up_bytes = out->has_up_seconds = out->has_down_bytes = out->has_down_seconds = 1;
    out->up_bytes = base->up_bytes + now->up_bytes;
    out->up_seconds = (double)(base->up_ns + now->up_ns) * 1e-9;
    out->down_bytes = base->down_bytes + now->down_bytes;
    out->down_seconds = (double)(base->down_ns + now->down_ns) * 1e-9;
}

static void fill_rate(double rate, protobuf_c_boolean *has, double *out)
{
    *has = rate > 0;
    *out = rate;
}

static void fill_seen(const struct cst_rates_seen *seen, Cistern__EngineInfo *out)
{
    fill_rate(cst_rates_median_get(&seen->copy), &out->has_copy_rate, &out->copy_rate);
    fill_rate(cst_rates_median_get(&seen->update), &out->has_update_rate, &out->update_rate);
    fill_rate(cst_rates_median_get(&seen->reduce), &out->has_reduce_rate, &out->reduce_rate);
    fill_rate(cst_rates_median_get(&seen->up), &out->has_up_rate, &out->up_rate);
    fill_rate(cst_rates_median_get(&seen->down), &out->has_down_rate, &out->down_rate);
}

static void fill_engine(const struct cst_engine *engine, Cistern__EngineInfo *out)
{
    const struct cst_engine_counters *now = &engine->counters, *base = &engine->base;

    cistern__engine_info__init(out);
    out->node = engine->os_node;
    out->kind = (char *)(uintptr_t)(cst_engine_is_gpu(engine) ? "cuda" : "host");
    out->state = (char *)(uintptr_t)cst_engine_state_name(engine->state);
    if (engine->state == CST_ENGINE_STARTING && engine->n_restarts > 0) {
        out->state = (char *)(uintptr_t) "restarting";
    }
    out->has_pid = engine->process != NULL;
    out->pid = engine->process != NULL ? cst_process_pid(engine->process) : 0;
    out->has_threads = out->has_copy_threads = engine->isa[0] != '\0';
    out->threads = engine->threads;
    out->copy_threads = engine->copy_threads;
    out->isa = engine->isa[0] != '\0' ? (char *)(uintptr_t)engine->isa : NULL;
    out->has_restarts = out->has_commands = out->has_in_flight = 1;
    out->restarts = engine->n_restarts;
    out->commands = engine->n_completed;
    out->in_flight = engine->commands.n;
    out->has_copy_bytes = out->has_copy_seconds = out->has_update_elems = out->has_update_seconds =
        1;
    out->has_reduce_elems = out->has_reduce_seconds = out->has_locked = 1;
    out->copy_bytes = base->copy_bytes + now->copy_bytes;
    out->copy_seconds = (double)(base->copy_ns + now->copy_ns) * 1e-9;
    out->update_elems = base->update_elems + now->update_elems;
    out->update_seconds = (double)(base->update_ns + now->update_ns) * 1e-9;
    out->reduce_elems = base->reduce_elems + now->reduce_elems;
    out->reduce_seconds = (double)(base->reduce_ns + now->reduce_ns) * 1e-9;
    out->locked = engine->locked;
    fill_seen(&engine->seen, out);
    if (cst_engine_is_gpu(engine)) {
        fill_gpu_engine(engine, out);
    }
}

static void add_books(Cistern__Books *sum, const Cistern__Books *books)
{
    sum->capacity += books->capacity;
    sum->free += books->free;
    sum->cached += books->cached;
    sum->leased += books->leased;
    sum->moving += books->moving;
    sum->pending += books->pending;
    sum->quarantined += books->quarantined;
}

static void sum_books(const struct cst_daemon *daemon, Cistern__Books *out)
{
    const struct cst_job *job;

    cistern__books__init(out);
    TAILQ_FOREACH(job, &daemon->jobs.living, link)
    {
        for (uint32_t r = 0; job->core != NULL && r < job->world; r++) {
            struct cst_rank_stats stats;
            Cistern__Books books;

            cst_core_rank_stats(job->core, r, &stats);
            fill_books(&books, &stats.books, job->layout.capacity * 2);
            add_books(out, &books);
        }
    }
}

static size_t fill_gpus(const struct cst_gpus *gpus, Cistern__GpuInfo *out,
                        Cistern__GpuInfo **pointers)
{
    for (unsigned i = 0; i < gpus->list.n; i++) {
        const struct cst_gpu *gpu = &gpus->list.v[i];

        cistern__gpu_info__init(&out[i]);
        out[i].index = gpu->index;
        out[i].uuid = (char *)(uintptr_t)gpu->uuid;
        out[i].name = (char *)(uintptr_t)gpu->name;
        out[i].memory_bytes = gpu->memory_bytes;
        out[i].pool_budget = gpu->pool.limit;
        out[i].pool_used = gpu->pool.used;
        out[i].has_driver = gpus->list.driver != 0;
        out[i].driver = gpus->list.driver;
        pointers[i] = &out[i];
    }
    return gpus->list.n;
}

void cst_serve_stat(struct cst_session *session, uint64_t id, void *body)
{
    struct cst_daemon *daemon = session->daemon;
    Cistern__StatReply reply = CISTERN__STAT_REPLY__INIT;
    Cistern__EngineInfo engines[CST_ARENA_MAX_ENGINES], *pointers[CST_ARENA_MAX_ENGINES];
    Cistern__GpuInfo gpus[CST_GPU_MAX], *gpu_pointers[CST_GPU_MAX];
    Cistern__Books books;
    char host[256] = "";

    (void)body;
    (void)gethostname(host, sizeof host - 1);
    for (unsigned i = 0; i < daemon->engines.n; i++) {
        fill_engine(&daemon->engines.v[i], &engines[i]);
        pointers[i] = &engines[i];
    }
    sum_books(daemon, &books);
    reply.version = (char *)(uintptr_t)PACKAGE_VERSION;
    reply.uptime_s = seconds_since(daemon->started_ns);
    reply.epoch = daemon->epoch;
    reply.host = host;
    reply.memory_bytes = daemon->config->memory_bytes;
    reply.host_budget = daemon->host.limit;
    reply.host_used = daemon->host.used;
    reply.pool_budget = daemon->pool.limit;
    reply.pool_used = daemon->pool.used;
    reply.n_engines = daemon->engines.n;
    reply.engines = pointers;
    reply.n_jobs = daemon->jobs.n;
    reply.n_sessions = daemon->server.n_sessions;
    reply.n_requests = daemon->n_requests;
    reply.n_fds = count_fds();
    reply.pool = &books;
    reply.n_gpus = fill_gpus(&daemon->gpus, gpus, gpu_pointers);
    reply.gpus = gpu_pointers;
    if (daemon->gpus.state == CST_GPUS_LOOKING) {
        reply.gpu = (char *)(uintptr_t) "looking";
    } else if (daemon->gpus.why[0] != '\0') {
        reply.gpu = daemon->gpus.why;
    }
    reply.socket = daemon->server.user.path;
    cst_session_reply(session, id, CISTERN__MSG_TYPE__MSG_STAT_REPLY, &reply.base, NULL, 0);
}

/* -- explain -------------------------------------------------------------------------------- */

/* The core knows engines by number: which is which GPU's. */
static unsigned explain_devices(const struct cst_job *job, char lines[][192], unsigned max)
{
    unsigned n = 0;

    for (uint32_t r = 0; r < job->world && n < max; r++) {
        const struct cst_gpu *gpu = job->workers[r].gpu;

        if (gpu != NULL) {
            (void)snprintf(lines[n++], 192, "rank %u: its pool is on cuda:%u, %s, %s, engine %u", r,
                           gpu->index, gpu->uuid, gpu->name, gpu->engine);
        }
    }
    return n;
}

static void explain(struct cst_session *session, uint64_t id, const struct cst_job *job,
                    uint32_t tensor)
{
    const struct cst_layout_tensor *t = &job->model.tensors[tensor];
    Cistern__ExplainReply reply = CISTERN__EXPLAIN_REPLY__INIT;
    char lines[EXPLAIN_LINES][192], *pointers[EXPLAIN_LINES];
    unsigned n = 1;

    (void)snprintf(lines[0], sizeof lines[0],
                   "tensor '%s': %" PRIu64 " elements at element %" PRIu64
                   " of chunk %u of %u, used by %u operators",
                   t->name, t->n_elems, t->offset, t->chunk, job->layout.n_chunks, t->n_uses);
    n += cst_core_explain(job->core, t->chunk, lines + n, EXPLAIN_LINES - n);
    n += explain_devices(job, lines + n, EXPLAIN_LINES - n);
    for (unsigned i = 0; i < n; i++) {
        pointers[i] = lines[i];
    }
    reply.n_lines = n;
    reply.lines = pointers;
    reply.chunk = t->chunk;
    reply.offset = t->offset;
    reply.n_elems = t->n_elems;
    cst_session_reply(session, id, CISTERN__MSG_TYPE__MSG_EXPLAIN_REPLY, &reply.base, NULL, 0);
}

void cst_serve_explain(struct cst_session *session, uint64_t id, void *body)
{
    const Cistern__Explain *message = body;
    struct cst_job *job;
    struct cst_err err = {0};
    uint32_t tensor;

    if (cst_serve_find_job(session, message->job, message->has_uid, message->uid, &job, &err) !=
        CST_OK) {
        cst_session_error(session, id, &err);
        return;
    }
    tensor = cst_model_find(&job->model, message->tensor);
    if (tensor == UINT32_MAX) {
        cst_serve_error(session, id, CST_ENOTFOUND, "job '%s' has no tensor '%.63s'", job->name,
                        message->tensor);
    } else if (job->core == NULL) {
        cst_serve_error(session, id, CST_EINVAL, "job '%s' is not committed yet", job->name);
    } else {
        explain(session, id, job, tensor);
    }
}
