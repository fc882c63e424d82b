/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/ledger.h"

#include "cistern/cistern.h"
#include "daemon/daemon.h"
#include "daemon/job/describe.h"
#include "daemon/job/migrate.h"
#include "daemon/ledger/kept_job.h"
#include "daemon/ledger/lent_slabs.h"
#include "daemon/memory/device_reservation.h"
#include "daemon/memory/rank_devices.h"
#include "daemon/report/log.h"
#include "proto/plan_message.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* -- the layout ------------------------------------------------------------------------------- */

uint64_t cstd_ledger_hash(const struct cstd_job *job)
{
    const struct cst_layout *layout = &job->layout;
    XXH64_hash_t hash = layout->n_chunks;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        for (uint32_t r = 0; r <= CST_ROW_COUNT; r++) {
            const struct cst_layout_row *row =
                r < CST_ROW_COUNT ? &chunk->rows[r] : &chunk->other_weight;
            uint64_t place[] = {row->segment, row->offset, chunk->n_elems};

            hash = XXH3_64bits_withSeed(place, sizeof place, hash);
        }
    }
    for (uint32_t i = 0; i < job->model.n_tensors; i++) {
        const struct cst_layout_tensor *tensor = &job->model.tensors[i];
        uint64_t place[] = {tensor->chunk, tensor->offset, tensor->first_tile};

        hash = XXH3_64bits_withSeed(place, sizeof place, hash);
    }
    return hash;
}

uint64_t cstd_ledger_hash_uuid(const char *uuid)
{
    return uuid != NULL ? XXH3_64bits(uuid, strlen(uuid)) : 0;
}

/* -- writing ---------------------------------------------------------------------------------- */

/* The parts of the message that are not in the job. */
struct parts {
    Ledger__Segment *segments, **segment_list;
    Ledger__Rank *ranks, **rank_list;
    Ledger__Device devices[CSTD_ARENA_MAX_ENGINES], *device_list[CSTD_ARENA_MAX_ENGINES];
    uint8_t *description, *plan;
};

static void free_parts(struct parts *parts)
{
    free(parts->segments);
    free(parts->segment_list);
    free(parts->ranks);
    free(parts->rank_list);
    free(parts->description);
    free(parts->plan);
}

/* Number of arenas, device reservations, and the job table. */
static uint32_t count_segments(const struct cstd_job *job)
{
    return job->memory.n_arenas + 1 + job->memory.n_reservations;
}

/* Segment @i of those that are kept: the slabs of pools, which are not, lie between the job table
 * and the device reservations. */
static const struct cstd_segment *segment_of(const struct cstd_job *job, uint32_t i)
{
    const struct cstd_memory *memory = &job->memory;

    return memory
        ->segments[i <= memory->n_arenas ? i : memory->n_segments - count_segments(job) + i];
}

static int fill_segments(const struct cstd_job *job, struct parts *parts, Ledger__Job *out,
                         struct cst_err *err)
{
    uint32_t n = count_segments(job);

    for (uint32_t i = 0; i < n; i++) {
        const struct cstd_segment *segment = segment_of(job, i);
        struct stat st;

        if (fstat(segment->fd, &st) != 0) {
            return cst_err_set(err, CST_EINTERNAL, "segment %u cannot be read", segment->id);
        }
        ledger__segment__init(&parts->segments[i]);
        parts->segments[i].id = segment->id;
        parts->segments[i].bytes = segment->bytes;
        parts->segments[i].inode = st.st_ino;
        parts->segment_list[i] = &parts->segments[i];
    }
    out->n_segments = n;
    out->segments = parts->segment_list;
    return CST_OK;
}

static void fill_ranks(const struct cstd_job *job, struct parts *parts, Ledger__Job *out)
{
    for (uint32_t r = 0; r < job->world; r++) {
        struct cstd_worker *worker = &job->workers[r];
        Ledger__Rank *rank = &parts->ranks[r];

        ledger__rank__init(rank);
        rank->pool_asked = worker->pool_bytes;
        rank->pool_bytes = worker->pool.bytes;
        rank->n_n_blocks = CST_LAYOUT_MAX_CLASSES;
        rank->n_blocks = worker->pool.blocks.n;
        rank->device = worker->gpu != NULL ? worker->gpu->uuid : NULL;
        rank->accelerator = worker->accelerator != NULL ? worker->accelerator->uuid : NULL;
        /* What the plan chose is fixed now, as if it was asked for. */
        rank->reservation_asked =
            worker->lends ? CST_DEVICE_UPDATE_LENT : worker->device_update_asked;
        rank->states_asked = worker->states_asked;
        rank->reservation_bytes = worker->device_update_bytes;
        rank->states_bytes = worker->device_states;
        rank->has_near_node = worker->near_node > 0;
        rank->near_node = worker->near_node;
        parts->rank_list[r] = rank;
    }
    out->n_ranks = job->world;
    out->ranks = parts->rank_list;
}

static void add_device(struct cstd_job *job, struct parts *parts, Ledger__Job *out, unsigned engine,
                       uint64_t reservation_bytes, uint64_t states_bytes)
{
    Ledger__Device *device = &parts->devices[out->n_devices];

    ledger__device__init(device);
    device->uuid = job->daemon->engines.v[engine].device;
    device->grain = job->daemon->engines.v[engine].granularity;
    device->reservation_bytes = reservation_bytes;
    device->states_bytes = states_bytes;
    parts->device_list[out->n_devices++] = device;
}

/* Name the accelerators: first those with device reservations, in their order, then those that have
 * only pools. */
static int fill_devices(struct cstd_job *job, struct parts *parts, Ledger__Job *out,
                        struct cst_err *err)
{
    const struct cstd_memory *memory = &job->memory;
    struct cst_layout_config config = {0};
    uint32_t rest = memory->gpu_engines;
    int rc = cstd_device_reservation_devices(job, &config, err);

    if (rc != CST_OK) {
        return rc;
    }
    out->devices = parts->device_list;
    for (uint32_t i = 0; i < memory->n_reservations; i++) {
        uint64_t states = 0;

        for (uint32_t d = 0; d < config.n_devices; d++) {
            states += config.devices[d].engine == memory->reservations[i].engine
                          ? config.devices[d].bytes
                          : 0;
        }
        add_device(job, parts, out, memory->reservations[i].engine, memory->reservations[i].bytes,
                   states);
        rest &= ~(UINT32_C(1) << memory->reservations[i].engine);
    }
    for (; rest != 0; rest &= rest - 1) {
        add_device(job, parts, out, (unsigned)__builtin_ctz(rest), 0, 0);
    }
    return CST_OK;
}

static int fill_plan(const struct cstd_job *job, struct parts *parts, Ledger__Job *out,
                     struct cst_err *err)
{
    struct cst_saved_plan plan = job->given;
    Cistern__JobPlan message;

    if (!cstd_job_has_given_plan(job)) {
        return CST_OK;
    }
    cst_plan_message_fill(&message, &plan);
    out->plan.len = cistern__job_plan__get_packed_size(&message);
    parts->plan = malloc(out->plan.len);
    if (parts->plan == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a plan");
    }
    out->has_plan = true;
    out->plan.data = parts->plan;
    (void)cistern__job_plan__pack(&message, parts->plan);
    return CST_OK;
}

static int fill_description(struct cstd_job *job, struct parts *parts, Ledger__Job *out,
                            struct cst_err *err)
{
    uint64_t n;
    int fd, rc = cstd_describe(job, &fd, &n, err);

    if (rc != CST_OK) {
        return rc;
    }
    parts->description = malloc(n);
    if (parts->description == NULL || pread(fd, parts->description, n, 0) != (ssize_t)n) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a description");
    }
    out->description.len = n;
    out->description.data = parts->description;
    return CST_OK;
}

/* Fill @out, which refers to @job and @parts. The caller frees @parts in any case. */
static int fill(struct cstd_job *job, struct parts *parts, uint64_t *class_elems, Ledger__Job *out,
                struct cst_err *err)
{
    uint32_t n = count_segments(job);
    int rc;

    parts->segments = calloc(n, sizeof *parts->segments);
    parts->segment_list = calloc(n, sizeof(void *));
    parts->ranks = calloc(job->world, sizeof *parts->ranks);
    parts->rank_list = calloc(job->world, sizeof(void *));
    if (parts->segments == NULL || parts->segment_list == NULL || parts->ranks == NULL ||
        parts->rank_list == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a ledger");
    }
    rc = fill_description(job, parts, out, err);
    rc = rc == CST_OK ? fill_segments(job, parts, out, err) : rc;
    rc = rc == CST_OK ? fill_devices(job, parts, out, err) : rc;
    rc = rc == CST_OK ? fill_plan(job, parts, out, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    fill_ranks(job, parts, out);
    for (uint32_t i = 0; i < job->layout.n_classes; i++) {
        class_elems[i] = job->layout.classes[i].capacity;
    }
    out->serial = job->serial;
    out->uid = job->uid;
    out->n_gids = job->account->n_gids;
    out->gids = job->account->gids;
    out->chunk_elems = job->chunk_elems;
    out->recompute = job->recompute;
    out->timeout_ms = job->timeout_ms;
    out->ttl_s = job->ttl_s;
    out->n_nodes = job->daemon->engines.n_nodes;
    out->n_class_elems = job->layout.n_classes;
    out->class_elems = class_elems;
    out->prefetch_depth = job->plan.valid ? job->plan.choice.prefetch_depth : 0;
    out->eviction = job->plan.valid ? job->plan.choice.eviction : CST_EVICT_NEXT_USE;
    out->step_s = job->plan.valid ? job->plan.step_s : 0;
    out->plan_words = (char *)(uintptr_t)(job->plan.valid ? job->plan.words : "");
    out->update_why = job->plan.update_why;
    out->states_why = job->plan.states_why;
    out->layout_hash = cstd_ledger_hash(job);
    out->has_landings = 1;
    out->landings = (uint32_t)job->layout.lands;
    out->has_replaces = job->predecessor != NULL;
    out->replaces = job->predecessor != NULL ? job->predecessor->serial : 0;
    return CST_OK;
}

static int make_file(struct cstd_job *job, struct cstd_ledger_file *file, struct cst_err *err)
{
    Ledger__Job message = LEDGER__JOB__INIT;
    uint64_t class_elems[CST_LAYOUT_MAX_CLASSES];
    struct parts parts = {0};
    int rc = fill(job, &parts, class_elems, &message, err);

    if (rc == CST_OK) {
        rc = cstd_ledger_file_make(file, &message, err);
    }
    free_parts(&parts);
    return rc;
}

/* -- the store -------------------------------------------------------------------------------- */

static struct cstd_kept_name name_of(enum cstd_kept_kind kind, const struct cstd_job *job)
{
    return (struct cstd_kept_name){.kind = kind, .serial = job->serial};
}

static struct cstd_kept_name name_of_device(const struct cstd_job *job, uint32_t i)
{
    return (struct cstd_kept_name){.kind = CSTD_KEPT_DEVICE, .serial = job->serial, .i = i};
}

/* Store the undo slots of the nodes' engines, which finish updates that are under way, and the
 * table of traffic, by whose lock the next daemon knows that all engines have ended. */
static int store_engines(struct cstd_daemon *daemon, bool sent, struct cst_err *err)
{
    const struct cstd_engines *engines = &daemon->engines;
    struct cstd_keeper *keeper = &daemon->keeper;
    struct cstd_kept_name name = {.kind = CSTD_KEPT_TRAFFIC, .k = engines->traffic_memory->id};
    int rc;

    if (keeper->engines_stored) {
        return CST_OK;
    }
    rc = cstd_keeper_store(keeper, &name, &engines->traffic_memory->fd, 1, sent, err);
    for (unsigned i = 0; i < engines->n_nodes && rc == CST_OK; i++) {
        const struct cstd_segment *undo = engines->v[i].undo;

        name = (struct cstd_kept_name){.kind = CSTD_KEPT_UNDO, .i = i, .k = undo->id};
        rc = cstd_keeper_store(keeper, &name, &undo->fd, 1, sent, err);
    }
    keeper->engines_stored = rc == CST_OK;
    return rc;
}

/* Store the segments in host memory under one name. Drivers' handles of memory can all have the
 * same file, so each segment of an accelerator has a name of its own. */
static int store_segments(struct cstd_job *job, bool sent, struct cst_err *err)
{
    struct cstd_keeper *keeper = &job->daemon->keeper;
    const struct cstd_kept_name host = name_of(CSTD_KEPT_HOST, job);
    uint32_t n = count_segments(job), n_host = 0;
    int *fds = calloc(n, sizeof *fds);
    int rc = CST_OK;

    if (fds == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of descriptors");
    }
    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        const struct cstd_segment *segment = segment_of(job, i);

        if (segment->device) {
            const struct cstd_kept_name name = name_of_device(job, i);

            rc = cstd_keeper_store(keeper, &name, &segment->fd, 1, sent, err);
        } else {
            fds[n_host++] = segment->fd;
        }
    }
    if (rc == CST_OK) {
        rc = cstd_keeper_store(keeper, &host, fds, n_host, sent, err);
    }
    free(fds);
    return rc;
}

/* The ledger comes last: without it, segments in the store are of no job. */
static int store(struct cstd_job *job, const struct cstd_ledger_file *file, bool sent,
                 struct cst_err *err)
{
    const struct cstd_kept_name name = name_of(CSTD_KEPT_LEDGER, job);
    int rc = store_engines(job->daemon, sent, err);

    if (rc == CST_OK) {
        rc = store_segments(job, sent, err);
    }
    rc = rc == CST_OK ? cstd_lent_slabs_store(job, sent, err) : rc;
    if (rc == CST_OK) {
        rc = cstd_keeper_store(&job->daemon->keeper, &name, &file->fd, 1, sent, err);
    }
    return rc;
}

/* Remove from the store what store() has put there of @job. */
static void unstore(struct cstd_job *job)
{
    const struct cstd_kept_name ledger = name_of(CSTD_KEPT_LEDGER, job),
                                host = name_of(CSTD_KEPT_HOST, job);
    struct cstd_keeper *keeper = &job->daemon->keeper;

    cstd_keeper_forget(keeper, &ledger);
    cstd_keeper_forget(keeper, &host);
    for (uint32_t i = 0; i < count_segments(job); i++) {
        if (segment_of(job, i)->device) {
            const struct cstd_kept_name name = name_of_device(job, i);

            cstd_keeper_forget(keeper, &name);
        }
    }
    for (uint32_t r = 0; r < job->world; r++) {
        cstd_lent_slabs_forget(job, r);
    }
}

/* -- a job ------------------------------------------------------------------------------------ */

static int check(const struct cstd_job *job, struct cst_err *err)
{
    const struct cstd_kept_name name = name_of(CSTD_KEPT_HOST, job);
    uint32_t n =
        count_segments(job) + 1 + job->daemon->engines.n_nodes + 1 + cstd_lent_slabs_count(job);

    if (job->base != NULL && job->base->ledger.state != CSTD_LEDGER_KEPT) {
        return cst_err_set(err, CST_EUNSUPPORTED, "its base '%s' is not kept", job->base->name);
    }
    return cstd_keeper_check(&job->daemon->keeper, &name, n, err);
}

/* @job has @file now, whose memory was charged with the job's (daemon/job/upkeep.h). */
static void keep(struct cstd_job *job, const struct cstd_ledger_file *file)
{
    job->ledger = (struct cstd_ledger){.state = CSTD_LEDGER_KEPT, .file = *file};
}

/* Write to *out how far @job is, which has a core. */
static void record_of(const struct cstd_job *job, struct cstd_ledger_record *out)
{
    memset(out, 0, sizeof *out);
    cst_core_record(job->core, &out->core);
    out->n_moved = job->migrate != NULL ? job->migrate->n_moved : 0;
    out->n_portions = out->n_moved > 0 ? job->migrate->plan.n_portions : 0;
    out->torn = job->successor != NULL && cstd_migrate_is_torn(job->successor);
    for (uint32_t r = 0; r < job->world; r++) {
        const struct cstd_gpu *gpu = job->workers[r].gpu;

        out->left |= (uint64_t)job->workers[r].left << r;
        out->pools[r] = cstd_ledger_hash_uuid(gpu != NULL ? gpu->uuid : NULL);
    }
}

static int begin(struct cstd_job *job, const struct cstd_ledger_record *record, struct cst_err *err)
{
    struct cstd_ledger_file file = {.fd = -1};
    int rc = check(job, err);

    rc = rc == CST_OK ? make_file(job, &file, err) : rc;
    if (rc == CST_OK) {
        cstd_ledger_file_write(&file, record);
        rc = store(job, &file, false, err);
        if (rc != CST_OK) {
            unstore(job);
        }
    }
    if (rc != CST_OK) {
        cstd_ledger_file_close(&file);
        return rc;
    }
    keep(job, &file);
    return CST_OK;
}

int cstd_ledger_begin(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_ledger_record record;

    record_of(job, &record);
    return begin(job, &record, err);
}

static void refuse(struct cstd_job *job, const struct cst_err *why)
{
    job->ledger.state = CSTD_LEDGER_REFUSED;
    cstd_log_about(CSTD_LOG_NOTICE, CSTD_JOB_ABOUT(job),
                   "it will end with the daemon, also if the service is restarted: %s", why->text);
}

void cstd_ledger_note(struct cstd_job *job)
{
    struct cstd_ledger *ledger = &job->ledger;
    bool begins = ledger->state == CSTD_LEDGER_NONE && job->daemon->keeper.limit > 0;
    struct cstd_ledger_record record;
    struct cst_err err;

    if (job->core == NULL || job->state == CSTD_JOB_CLOSING ||
        !(begins || ledger->state == CSTD_LEDGER_KEPT)) {
        return;
    }
    record_of(job, &record);
    if (ledger->state == CSTD_LEDGER_KEPT) {
        cstd_ledger_file_write(&ledger->file, &record);
    } else if (record.core.initialised && begin(job, &record, &err) != CST_OK) {
        refuse(job, &err);
    }
}

void cstd_ledger_note_pools(struct cstd_job *job)
{
    struct cst_err err;

    if (job->ledger.state == CSTD_LEDGER_KEPT &&
        cstd_lent_slabs_store(job, false, &err) != CST_OK) {
        cstd_ledger_forget(job);
        refuse(job, &err);
    }
}

int cstd_ledger_continue(struct cstd_job *job, const struct cstd_ledger_file *file,
                         struct cst_err *err)
{
    int rc = store(job, file, true, err);

    if (rc == CST_OK) {
        cstd_lent_slabs_settle(job);
        keep(job, file);
    }
    return rc;
}

int cstd_ledger_keep_all(struct cstd_daemon *daemon, struct cst_err *err)
{
    struct cstd_job *job;
    int rc = CST_OK;

    TAILQ_FOREACH(job, &daemon->jobs.living, link)
    {
        struct cstd_ledger_record record = {.left = 0};

        if (job->core != NULL) {
            record_of(job, &record);
        }
        if (job->state == CSTD_JOB_REVIVING) {
            rc = cst_err_set(err, CST_EBUSY, "it is still being taken over itself: try again");
        } else if (record.core.initialised && job->ledger.state != CSTD_LEDGER_KEPT) {
            rc = begin(job, &record, err);
        }
        if (rc != CST_OK) {
            return cst_err_prefix(err, "job '%s' cannot be handed over", job->name);
        }
    }
    return CST_OK;
}

void cstd_ledger_forget(struct cstd_job *job)
{
    if (job->ledger.reviving != NULL) {
        job->ledger.reviving->job = NULL;
        job->ledger.reviving = NULL;
    }
    if (job->ledger.state != CSTD_LEDGER_KEPT) {
        return;
    }
    unstore(job);
    cstd_ledger_file_close(&job->ledger.file);
    job->ledger.state = CSTD_LEDGER_NONE;
}

bool cstd_ledger_keeps_any(const struct cstd_daemon *daemon)
{
    const struct cstd_job *job;

    TAILQ_FOREACH(job, &daemon->jobs.living, link)
    {
        if (job->ledger.state == CSTD_LEDGER_KEPT || job->state == CSTD_JOB_REVIVING) {
            return true;
        }
    }
    return false;
}
