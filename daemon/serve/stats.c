/* SPDX-License-Identifier: Apache-2.0 */
/* Serves Stat: what the daemon knows of itself and its engines. */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#include "daemon/base/daemon_state.h"
#include "daemon/serve/serve.h"
#include "daemon/serve/job_info.h"
#include "daemon/memory/set_aside.h"
#include "proto/cgroup.h"
#include "proto/cistern.pb-c.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/drives.h"
#include "daemon/engine/engines.h"
#include "daemon/engine/gpus.h"
#include "daemon/engine/net_engine.h"
#include "daemon/job/job.h"
#include "daemon/job/jobs.h"
#include "daemon/job/planner.h"
#include "daemon/links/links.h"
#include "daemon/memory/memory.h"
#include "daemon/serve/server.h"
#include "daemon/session/session.h"
#include "daemon/settings/settings.h"
#include "daemon/memory/tiers/tier.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static double seconds_since(uint64_t then)
{
    return (double)(uv_hrtime() - then) * 1e-9;
}

/* -- the daemon ----------------------------------------------------------------------------- */

/* Since Linux 6.2 the size of the directory is the number of open files. On older kernels the
 * directory must be read, which takes a microsecond for every few files and delays other
 * requests. */
static uint32_t count_fds(void)
{
    struct stat fds;
    DIR *dir;
    const struct dirent *entry;
    uint32_t n = 0;

    if (stat("/proc/self/fd", &fds) == 0 && fds.st_size > 0) {
        return (uint32_t)fds.st_size;
    }
    dir = opendir("/proc/self/fd");

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        n += entry->d_name[0] != '.';
    }
    if (dir != NULL) {
        n--; /* The directory itself is open, too. */
        (void)closedir(dir);
    }
    return n;
}

static void fill_gpu_engine(const struct cstd_engine *engine, Cistern__EngineInfo *out)
{
    const struct cstd_engine_counters *now = &engine->counters, *base = &engine->base;

    out->device = (char *)(uintptr_t)(engine->net != NULL ? engine->net->label : engine->device);
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

static void fill_seen(const struct cstd_rates_seen *seen, Cistern__EngineInfo *out)
{
    fill_rate(cstd_rates_median_get(&seen->copy), &out->has_copy_rate, &out->copy_rate);
    fill_rate(cstd_rates_median_get(&seen->update), &out->has_update_rate, &out->update_rate);
    fill_rate(cstd_rates_median_get(&seen->reduce), &out->has_reduce_rate, &out->reduce_rate);
    fill_rate(cstd_rates_median_get(&seen->products), &out->has_product_rate, &out->product_rate);
    fill_rate(cstd_rates_median_get(&seen->up), &out->has_up_rate, &out->up_rate);
    fill_rate(cstd_rates_median_get(&seen->down), &out->has_down_rate, &out->down_rate);
    fill_rate(cstd_rates_median_get(&seen->update_bytes), &out->has_update_bandwidth,
              &out->update_bandwidth);
    fill_rate(cstd_rates_median_get(&seen->reduce_bytes), &out->has_reduce_bandwidth,
              &out->reduce_bandwidth);
}

/* Costs of updates per parameter, in memory traffic and time. */
static void fill_costs(const struct cstd_engine *engine, Cistern__EngineInfo *out)
{
    const struct cstd_engine_counters *now = &engine->counters, *base = &engine->base;

    out->has_update_bytes = out->has_reduce_bytes = out->has_held_seconds = 1;
    out->update_bytes = base->update_bytes + now->update_bytes;
    out->reduce_bytes = base->reduce_bytes + now->reduce_bytes;
    out->held_seconds = (double)(base->held_ns + now->held_ns) * 1e-9;
    if (out->update_elems > 0) {
        double params = (double)out->update_elems;

        fill_rate((double)out->update_bytes / params, &out->has_update_bytes_per_param,
                  &out->update_bytes_per_param);
        fill_rate(out->update_seconds * 1e9 / params, &out->has_update_ns_per_param,
                  &out->update_ns_per_param);
    }
}

static void fill_engine(const struct cstd_engine *engine, Cistern__EngineInfo *out)
{
    const struct cstd_engine_counters *now = &engine->counters, *base = &engine->base;

    cistern__engine_info__init(out);
    out->node = engine->os_node;
    out->kind = (char *)(uintptr_t)cstd_engine_kind(engine);
    out->state = (char *)(uintptr_t)cstd_engine_state_name(engine->state);
    if (engine->state == CSTD_ENGINE_STARTING && engine->n_restarts > 0) {
        out->state = (char *)(uintptr_t) "restarting";
    }
    out->has_pid = engine->process != NULL;
    out->pid = engine->process != NULL ? cstd_process_pid(engine->process) : 0;
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
    fill_costs(engine, out);
    fill_seen(&engine->seen, out);
    if (cstd_engine_is_gpu(engine)) {
        fill_gpu_engine(engine, out);
        out->has_staged = 1;
        out->staged = engine->staged;
    }
}

static void sum_books(const struct cstd_daemon *daemon, Cistern__Books *out)
{
    const struct cstd_job *job;

    cistern__books__init(out);
    TAILQ_FOREACH(job, &daemon->jobs->living, link)
    {
        for (uint32_t r = 0; job->core != NULL && r < job->world; r++) {
            cstd_job_info_add_books(job, r, out);
        }
    }
}

/* Fill in what is set aside on @gpu. */
static void fill_card(const struct cstd_daemon *daemon, const struct cstd_gpu *gpu,
                      Cistern__GpuInfo *out)
{
    struct cst_card card;

    cstd_set_aside_count(daemon, gpu, &card);
    out->has_n_contexts = out->has_context_bytes = out->has_workspace_bytes = true;
    out->has_activation_bytes = out->has_n_undeclared = out->has_assumed_bytes = true;
    out->n_contexts = card.n_contexts;
    out->context_bytes = card.context_bytes;
    out->workspace_bytes = card.workspace_bytes;
    out->activation_bytes = card.activation_bytes;
    out->n_undeclared = card.n_undeclared;
    out->assumed_bytes = card.assumed_bytes;
}

/* UUIDs of GPUs that a GPU cannot access. */
struct unreachable {
    char *v[CSTD_GPU_MAX];
};

static void fill_unreachable(const struct cstd_gpu_list *list, const struct cstd_gpu *gpu,
                             struct unreachable *uuids, Cistern__GpuInfo *out)
{
    for (unsigned i = 0; i < list->n; i++) {
        if (cst_set_has(&gpu->unreachable, i)) {
            uuids->v[out->n_unreachable++] = (char *)(uintptr_t)list->v[i].uuid;
        }
    }
    out->unreachable = uuids->v;
}

/* Return the number of the daemon's processes on @gpu: its engine, and the workers. */
static uint32_t count_processes(const struct cstd_daemon *daemon, const struct cstd_gpu *gpu)
{
    const struct cstd_job *job;
    uint32_t n = daemon->engines->v[gpu->engine].process != NULL;

    TAILQ_FOREACH(job, &daemon->jobs->living, link)
    {
        for (uint32_t r = 0; r < job->world; r++) {
            n += job->workers[r].tier->gpu == gpu && job->workers[r].present;
        }
    }
    return n;
}

/* Returns the number of GPUs. */
static size_t fill_gpus(struct cstd_daemon *daemon, struct cstd_gpu_list *list,
                        Cistern__GpuInfo *out, struct unreachable *uuids,
                        Cistern__GpuInfo **pointers)
{
    for (unsigned i = 0; i < list->n; i++) {
        struct cstd_gpu *gpu = &list->v[i];

        cistern__gpu_info__init(&out[i]);
        out[i].index = gpu->index;
        out[i].uuid = (char *)(uintptr_t)gpu->uuid;
        out[i].name = (char *)(uintptr_t)gpu->name;
        out[i].memory_bytes = gpu->memory_bytes;
        out[i].pool_budget = cstd_budget_size(cstd_tier_budget(cstd_tiers_of_gpu(daemon, gpu)));
        out[i].pool_used = gpu->pool.used;
        out[i].has_driver = list->driver != 0;
        out[i].driver = list->driver;
        fill_unreachable(list, gpu, &uuids[i], &out[i]);
        if (!gpu->paced) {
            out[i].has_n_processes = out[i].has_mps = true;
            out[i].n_processes = count_processes(daemon, gpu);
            out[i].mps = gpu->mps;
        }
        if (gpu->pool_auto) {
            fill_card(daemon, gpu, &out[i]);
        }
        pointers[i] = &out[i];
    }
    return list->n;
}

static size_t fill_drives(const struct cstd_daemon *daemon, Cistern__DriveInfo *out,
                          Cistern__DriveInfo **pointers)
{
    const struct cstd_drives *drives = daemon->drives;

    for (unsigned i = 0; i < drives->n; i++) {
        const struct cstd_engine *engine = &daemon->engines->v[drives->v[i].engine];

        cistern__drive_info__init(&out[i]);
        out[i].uuid = (char *)(uintptr_t)drives->v[i].uuid;
        out[i].name = (char *)(uintptr_t)drives->v[i].name;
        out[i].used = drives->v[i].files.used;
        out[i].read_bytes = engine->base.down_bytes + engine->counters.down_bytes;
        out[i].written_bytes = engine->base.up_bytes + engine->counters.up_bytes;
        out[i].has_read_seconds = out[i].has_write_seconds = out[i].has_in_flight = 1;
        out[i].read_seconds = (double)(engine->base.down_ns + engine->counters.down_ns) * 1e-9;
        out[i].write_seconds = (double)(engine->base.up_ns + engine->counters.up_ns) * 1e-9;
        out[i].in_flight = engine->commands.n;
        pointers[i] = &out[i];
    }
    return drives->n;
}

/* Count the other nodes and the links to them. */
static void fill_nodes(const struct cstd_daemon *daemon, Cistern__StatReply *out)
{
    const struct cstd_machine *machine;

    if (daemon->links == NULL) {
        return;
    }
    out->has_n_nodes = out->has_n_nodes_up = 1;
    TAILQ_FOREACH(machine, cstd_links_machines(daemon->links), link)
    {
        out->n_nodes++;
        out->n_nodes_up += machine->up != NULL;
    }
}

void cstd_serve_stat(struct cstd_session *session, uint64_t id, void *body)
{
    struct cstd_daemon *daemon = session->daemon;
    Cistern__StatReply reply = CISTERN__STAT_REPLY__INIT;
    Cistern__EngineInfo engines[CSTD_ARENA_MAX_ENGINES], *pointers[CSTD_ARENA_MAX_ENGINES];
    Cistern__GpuInfo gpus[2 * CSTD_GPU_MAX], *gpu_pointers[2 * CSTD_GPU_MAX];
    struct unreachable uuids[2 * CSTD_GPU_MAX];
    Cistern__DriveInfo drives[CSTD_DRIVES_MAX], *drive_pointers[CSTD_DRIVES_MAX];
    Cistern__Books books;
    char host[256] = "", cgroup[CST_CGROUP_BYTES];

    (void)body;
    (void)gethostname(host, sizeof host - 1);
    for (unsigned i = 0; i < daemon->engines->n; i++) {
        fill_engine(&daemon->engines->v[i], &engines[i]);
        pointers[i] = &engines[i];
    }
    sum_books(daemon, &books);
    reply.version = (char *)(uintptr_t)PACKAGE_VERSION;
    reply.uptime_s = seconds_since(daemon->started_ns);
    reply.epoch = daemon->epoch;
    reply.host = host;
    reply.memory_bytes = daemon->config->memory_bytes;
    reply.host_budget = daemon->host->limit;
    reply.host_used = daemon->host->used;
    reply.pool_budget = daemon->pool->limit;
    reply.pool_used = daemon->pool->used;
    reply.n_engines = daemon->engines->n;
    reply.engines = pointers;
    reply.n_jobs = daemon->jobs->n;
    reply.n_sessions = daemon->server->n_sessions;
    reply.n_requests = daemon->n_requests;
    reply.n_fds = count_fds();
    reply.pool = &books;
    reply.n_gpus = fill_gpus(daemon, &daemon->gpus->list, gpus, uuids, gpu_pointers);
    reply.n_gpus += fill_gpus(daemon, &daemon->gpus->paced, gpus + reply.n_gpus,
                              uuids + reply.n_gpus, gpu_pointers + reply.n_gpus);
    reply.gpus = gpu_pointers;
    reply.n_drives = fill_drives(daemon, drives, drive_pointers);
    reply.drives = drive_pointers;
    if (daemon->gpus->state == CSTD_GPUS_LOOKING) {
        reply.gpu = (char *)(uintptr_t) "looking";
    } else if (daemon->gpus->why[0] != '\0') {
        reply.gpu = daemon->gpus->why;
    }
    reply.socket = daemon->server->user.path;
    fill_nodes(daemon, &reply);
    reply.rates = daemon->planner->from;
    reply.cgroup = cst_cgroup_of("", 0, cgroup) ? cgroup : NULL;
    cstd_session_reply(session, id, CISTERN__MSG_TYPE__MSG_STAT_REPLY, &reply.base, NULL, 0);
}
