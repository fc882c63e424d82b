/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/ledger_make.h"

#include "cistern/cistern.h"
#include "daemon/base/daemon_state.h"
#include "daemon/ledger/describe.h"
#include "daemon/ledger/ledger.h"
#include "daemon/memory/device_reservation.h"
#include "daemon/memory/rank_devices.h"
#include "proto/durable.h"
#include "proto/plan_message.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/drives.h"
#include "daemon/engine/engines.h"
#include "daemon/job/job.h"
#include "daemon/ledger/kept_span.h"
#include "daemon/budget/quota.h"
#include "daemon/memory/tiers/tier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* -- the layout ------------------------------------------------------------------------------- */

uint64_t cstd_ledger_hash(const struct cstd_job *job)
{
    const struct cst_layout *layout = &job->layout;
    /* The rows in the files of a durable job begin behind its records. */
    XXH64_hash_t hash =
        layout->n_chunks + (layout->states.durable ? cst_durable_reserve(layout->n_chunks) : 0);

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        for (uint32_t r = 0; r <= CST_ROW_COUNT; r++) {
            const struct cst_layout_row *row = cst_layout_row(chunk, (int)r);
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

/* -- the message ------------------------------------------------------------------------------ */

/* The parts of the message that are not in the job, or may change before it is packed. */
struct parts {
    Ledger__Segment *segments, **segment_list;
    Ledger__Rank *ranks, **rank_list;
    Ledger__Device devices[CSTD_ARENA_MAX_ENGINES], *device_list[CSTD_ARENA_MAX_ENGINES];
    struct cstd_kept_span span;
    uint64_t class_elems[CST_LAYOUT_MAX_CLASSES];
    uint32_t *gids;
    uint8_t *plan;
};

static void free_parts(struct parts *parts)
{
    free(parts->segments);
    free(parts->segment_list);
    free(parts->ranks);
    free(parts->rank_list);
    free(parts->gids);
    free(parts->plan);
}

uint32_t cstd_ledger_n_segments(const struct cstd_job *job)
{
    return job->memory.n_arenas + 1 + job->memory.n_reservations;
}

/* The slabs of pools, which are not kept, lie between the job table and the device reservations. */
const struct cstd_segment *cstd_ledger_segment(const struct cstd_job *job, uint32_t i)
{
    const struct cstd_memory *memory = &job->memory;

    return memory
        ->segments[i <= memory->n_arenas ? i
                                         : memory->n_segments - cstd_ledger_n_segments(job) + i];
}

uint32_t cstd_ledger_holder(const struct cstd_daemon *daemon, const struct cst_layout *layout,
                            uint32_t i)
{
    const struct cstd_tier *tier =
        i < layout->n_segments ? cstd_tiers_of_number(daemon, layout->segments[i].tier) : NULL;
    uint32_t first = 0;

    if (tier == NULL || tier->uuid == NULL || !cstd_drive_is(tier->uuid)) {
        return i;
    }
    while (layout->segments[first].tier != tier->number) {
        first++;
    }
    return first;
}

static int fill_segments(const struct cstd_job *job, struct parts *parts, Ledger__Job *out,
                         struct cst_err *err)
{
    uint32_t n = cstd_ledger_n_segments(job);

    for (uint32_t i = 0; i < n; i++) {
        const struct cstd_segment *segment = cstd_ledger_segment(job, i);
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
        rank->device = (char *)(uintptr_t)worker->tier->uuid;
        rank->accelerator = (char *)(uintptr_t)worker->update_tier->uuid;
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
    device->uuid = job->daemon->engines->v[engine].device;
    device->grain = job->daemon->engines->v[engine].granularity;
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
    struct cst_set rest = memory->gpu_engines;
    int rc = cstd_device_reservation_devices(job, &config, err);

    if (rc != CST_OK) {
        return rc;
    }
    out->devices = parts->device_list;
    for (uint32_t i = 0; i < memory->n_reservations; i++) {
        const uint32_t home = cst_core_reservation_home(&memory->reservations[i]);
        uint64_t states = 0;

        for (uint32_t d = 0; d < config.n_devices; d++) {
            states += config.devices[d].engine == home ? config.devices[d].bytes : 0;
        }
        add_device(job, parts, out, home, memory->reservations[i].bytes, states);
        cst_set_drop(&rest, home);
    }
    CST_SET_EACH (engine, &rest) {
        add_device(job, parts, out, engine, 0, 0);
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

/* Fill @out, which refers to @job and @parts, apart from what pack() adds. The caller frees @parts
 * in any case. */
static int fill(struct cstd_job *job, struct parts *parts, Ledger__Job *out, struct cst_err *err)
{
    uint32_t n = cstd_ledger_n_segments(job);
    size_t n_gids = job->account->n_gids;
    int rc;

    parts->segments = calloc(n, sizeof *parts->segments);
    parts->segment_list = calloc(n, sizeof(void *));
    parts->ranks = calloc(job->world, sizeof *parts->ranks);
    parts->rank_list = calloc(job->world, sizeof(void *));
    parts->gids = calloc(n_gids + 1, sizeof *parts->gids);
    if (parts->segments == NULL || parts->segment_list == NULL || parts->ranks == NULL ||
        parts->rank_list == NULL || parts->gids == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a ledger");
    }
    rc = fill_segments(job, parts, out, err);
    rc = rc == CST_OK ? fill_devices(job, parts, out, err) : rc;
    rc = rc == CST_OK ? fill_plan(job, parts, out, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    fill_ranks(job, parts, out);
    for (uint32_t i = 0; i < job->layout.n_classes; i++) {
        parts->class_elems[i] = job->layout.classes[i].capacity;
    }
    for (size_t i = 0; i < n_gids; i++) {
        parts->gids[i] = job->account->gids[i];
    }
    out->serial = job->serial;
    out->uid = job->uid;
    out->n_gids = n_gids;
    out->gids = parts->gids;
    cst_job_options_fill(&out->base, &job->spec, &job->spec_texts, CST_JOB_ALL);
    out->n_nodes = job->daemon->engines->n_nodes;
    out->n_class_elems = job->layout.n_classes;
    out->class_elems = parts->class_elems;
    out->prefetch_depth = job->plan.valid ? job->plan.choice.prefetch_depth : 0;
    out->step_s = job->plan.valid ? job->plan.step_s : 0;
    out->plan_words = (char *)(uintptr_t)(job->plan.valid ? job->plan.words : "");
    out->update_why = job->plan.update_why;
    out->states_why = job->plan.states_why;
    out->has_landings = 1;
    out->landings = (uint32_t)job->layout.lands;
    out->span = cstd_kept_span_fill(job, &parts->span) ? &parts->span.span : NULL;
    out->has_replaces = job->predecessor != NULL;
    out->replaces = job->predecessor != NULL ? job->predecessor->serial : 0;
    return CST_OK;
}

/* -- the file --------------------------------------------------------------------------------- */

/* The making of a ledger. */
struct cstd_ledger_work {
    uv_work_t work;
    struct cstd_job *job;
    Ledger__Job message; /* Refers to the job and to parts. */
    struct parts parts;
    struct cstd_progress progress;
    cstd_ledger_make_cb done;
    struct cstd_ledger_file file; /* The result, and why there is none. */
    struct cst_err err;
};

/* Add to the message what is long or takes long, and write it to a file. Any thread, while the job
 * has its model and its layout. */
static void pack(struct cstd_ledger_work *work)
{
    struct cstd_description description = {0};
    void *map = MAP_FAILED;

    if (cstd_describe_make(work->job, &work->progress, &description, &work->err) != CST_OK) {
        return;
    }
    map = mmap(NULL, description.bytes, PROT_READ, MAP_PRIVATE, description.fd, 0);
    if (map == MAP_FAILED) {
        (void)cst_err_errno(&work->err, CST_ENOMEM, errno, "mapping a description");
    } else {
        work->message.description.len = description.bytes;
        work->message.description.data = map;
        work->message.layout_hash = cstd_ledger_hash(work->job);
        (void)cstd_ledger_file_make(&work->file, &work->message, &work->err);
        (void)munmap(map, description.bytes);
    }
    (void)close(description.fd);
}

static void close_work(struct cstd_ledger_work *work)
{
    free_parts(&work->parts);
    cstd_describe_progress_close(&work->progress);
}

static int open_work(struct cstd_job *job, struct cstd_ledger_work *work, struct cst_err *err)
{
    *work = (struct cstd_ledger_work){
        .job = job, .message = LEDGER__JOB__INIT, .file = {.fd = -1}, .work.data = work};
    if (cstd_describe_progress(job, &work->progress, err) != CST_OK) {
        return err->status;
    }
    return fill(job, &work->parts, &work->message, err);
}

int cstd_ledger_make(struct cstd_job *job, struct cstd_ledger_file *out, struct cst_err *err)
{
    struct cstd_ledger_work work;
    int rc = open_work(job, &work, err);

    if (rc == CST_OK) {
        pack(&work);
        *out = work.file;
        *err = work.err;
        rc = err->status;
    }
    close_work(&work);
    return rc;
}

static void on_thread(uv_work_t *uv)
{
    pack(uv->data);
}

static void on_thread_done(uv_work_t *uv, int status)
{
    struct cstd_ledger_work *work = uv->data;

    (void)status; /* libuv's cancellation is not used. */
    work->done(work->job, &work->file, &work->err);
    close_work(work);
    free(work);
}

int cstd_ledger_make_start(struct cstd_job *job, cstd_ledger_make_cb done,
                           struct cstd_ledger_work **out, struct cst_err *err)
{
    struct cstd_ledger_work *work = malloc(sizeof *work);
    int rc = work != NULL ? open_work(job, work, err)
                          : cst_err_set(err, CST_ENOMEM, "no memory for a ledger");

    if (rc == CST_OK) {
        work->done = done;
        if (uv_queue_work(&job->daemon->loop, &work->work, on_thread, on_thread_done) == 0) {
            *out = work;
            return CST_OK;
        }
        rc = cst_err_set(err, CST_ENOMEM, "no memory for a ledger");
    }
    if (work != NULL) {
        close_work(work);
        free(work);
    }
    return rc;
}
