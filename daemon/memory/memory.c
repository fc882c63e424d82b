/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/memory_pools.h"

#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "proto/size.h"
#include "daemon/engine/engines.h"
#include "daemon/memory/files.h"
#include "proto/durable.h"
#include "daemon/memory/tiers/tier.h"
#include "daemon/job/job.h"
#include "daemon/settings/settings.h"
#include "daemon/budget/quota.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void on_ready_later(struct cstd_deferred *later)
{
    struct cstd_memory *memory = cstd_owner_of(later, struct cstd_memory, ready);

    /* If segments were added meanwhile, the last of them queues this again. */
    if (memory->n_waiting == 0) {
        memory->on_ready(memory);
    }
}

static void on_gone_later(struct cstd_deferred *later)
{
    struct cstd_memory *memory = cstd_owner_of(later, struct cstd_memory, gone);

    if (memory->n_open == 0) {
        memory->on_gone(memory);
    } else if (memory->on_less != NULL) {
        memory->on_less(memory);
    }
}

void cstd_memory_init(struct cstd_memory *memory, struct cstd_daemon *daemon, const char *name)
{
    *memory = (struct cstd_memory){
        .daemon = daemon, .name = name, .ready.fn = on_ready_later, .gone.fn = on_gone_later};
    TAILQ_INIT(&memory->refusals);
}

/* -- progress of the engines ---------------------------------------------------------------- */

/* True if all arenas are locked. */
static bool is_locked(const struct cstd_memory *memory)
{
    bool locked = memory->n_arenas > 0;

    for (uint32_t i = 0; i < memory->n_arenas; i++) {
        locked = locked && memory->segments[i]->locked;
    }
    return locked;
}

void cstd_memory_tell_populated(const struct cstd_memory *memory,
                                const struct cstd_log_about *about)
{
    bool locked = is_locked(memory);
    char bytes[CST_SIZE_TEXT];

    cstd_log_about(CSTD_LOG_INFO, about, "%s populated in %.2f s%s",
                   cst_size_text(memory->populated, bytes),
                   (double)(uv_hrtime() - memory->started_ns) * 1e-9, locked ? ", locked" : "");
    if (memory->daemon->config->lock == CSTD_LOCK_TRY && !locked) {
        cstd_log_about(CSTD_LOG_WARNING, about,
                       "its states are not locked in memory (raise LimitMEMLOCK)");
    }
}

static void free_lists(struct cstd_memory *memory)
{
    free(memory->segments);
    free(memory->ids);
    free(memory->pools);
    free(memory->tiers);
    memory->tiers = NULL;
    memory->segments = NULL;
    memory->ids = NULL;
    memory->pools = NULL;
    memory->n_segments = memory->n_arenas = memory->world = 0;
}

/* -- open ----------------------------------------------------------------------------------- */

/* True for an arena in host memory that is not the base job's. */
static bool is_own(const struct cstd_memory *memory, const struct cstd_segment *segment)
{
    return !segment->device && segment->populate >= 0 &&
           (uint32_t)segment->populate < memory->daemon->engines->n_nodes;
}

void cstd_memory_make_sparse(struct cstd_memory *memory)
{
    for (uint32_t i = 0; i < memory->n_arenas; i++) {
        struct cstd_segment *segment = memory->segments[i];

        if (is_own(memory, segment)) {
            segment->sparse = true;
            /* The death of an engine that maps the segment does not empty it. */
            segment->population = NULL;
        }
    }
}

void cstd_memory_fill(struct cstd_memory *memory, struct cstd_memory *from)
{
    for (uint32_t i = 0; i < from->n_arenas; i++) {
        struct cstd_segment *segment = from->segments[i];

        if (segment->sparse && segment->budget != NULL) {
            cstd_budget_give(segment->budget, segment->account, segment->charged);
            segment->charged = 0;
        }
    }
    for (uint32_t i = 0; i < memory->n_arenas; i++) {
        struct cstd_segment *segment = memory->segments[i];

        if (segment->sparse) {
            segment->sparse = false;
            segment->budget = memory->daemon->host;
            segment->charged = segment->bytes;
            cstd_budget_force(segment->budget, segment->account, segment->charged);
        }
    }
}

static int add_arenas(struct cstd_memory *memory, const struct cstd_memory_request *request,
                      struct cst_err *err)
{
    const struct cst_layout *layout = request->layout;
    int rc = CST_OK;

    for (uint32_t i = 0; i < layout->n_segments && rc == CST_OK; i++) {
        const struct cst_layout_segment *s = &layout->segments[i];
        const struct cstd_tier *tier = cstd_tiers_of_number(memory->daemon, s->tier);
        const struct cstd_tier_piece piece = {
            .use = CSTD_TIER_STATES, .bytes = s->bytes, .node = s->node, .sparse = request->sparse};

        if (s->is_base) {
            rc = cstd_memory_add_shared(memory, request->base->segments[s->base_segment], s->node,
                                        err);
        } else if (request->inherited != NULL && !tier->kind->apart) {
            rc = cstd_memory_add_heir(memory, request->inherited->segments[i], err);
        } else {
            rc = tier->kind->create(memory, tier, &piece, err);
        }
    }
    memory->n_arenas = memory->n_segments;
    if (rc == CST_OK && request->sparse) {
        cstd_memory_make_sparse(memory);
    }
    return rc;
}

static int add_table(struct cstd_memory *memory, const struct cst_layout *layout,
                     struct cst_err *err)
{
    struct cst_table_header header;
    struct cstd_segment *segment;
    int rc;

    cstd_memory_size_table(layout, &header);
    rc = cstd_memory_add_segment(memory, header.total_bytes, memory->daemon->host,
                                 cstd_memory_all_nodes(memory), 0, err);
    if (rc != CST_OK) {
        return rc;
    }
    segment = memory->segments[memory->n_segments - 1];
    cstd_segment_keep_private(segment);
    memory->table =
        mmap(NULL, header.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd, 0);
    if (memory->table == MAP_FAILED) {
        memory->table = NULL;
        return cst_err_errno(err, CST_ENOMEM, errno, "mmap of the job table");
    }
    memory->table_bytes = header.total_bytes;
    return CST_OK;
}

static int add_reservations(struct cstd_memory *memory, const struct cstd_memory_request *request,
                            struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < request->n_reservations && rc == CST_OK; i++) {
        const struct cstd_device_reservation *reservation = &request->reservations[i];
        const struct cstd_tier_piece piece = {.use = CSTD_TIER_RESERVATION,
                                              .bytes = reservation->bytes};

        const struct cstd_tier *in = cstd_tier_buffers(reservation->tier);

        rc = in->kind->create(memory, in, &piece, err);
        if (rc == CST_OK) {
            memory->reservations[memory->n_reservations++] =
                (struct cst_core_device_reservation){.engine = in->number,
                                                     .home = reservation->tier->number,
                                                     .segment = memory->ids[memory->n_segments - 1],
                                                     .bytes = reservation->bytes};
        }
    }
    return rc;
}

static int make_lists(struct cstd_memory *memory, const struct cstd_memory_request *request,
                      struct cst_err *err)
{
    uint32_t n = request->layout->n_segments + 1 + request->n_reservations +
                 cstd_memory_n_edge_segments(request->model);

    for (uint32_t r = 0; r < request->world; r++) {
        for (uint32_t c = 0; c < request->layout->n_classes; c++) {
            n += cstd_pools_slabs(request->layout, c, request->pools[r].blocks.n[c]);
        }
    }
    memory->segments = calloc(n, sizeof(struct cstd_segment *));
    memory->ids = calloc(n, sizeof *memory->ids);
    memory->pools = calloc(request->world, sizeof *memory->pools);
    memory->tiers = calloc(request->world, sizeof(const struct cstd_tier *));
    memory->world = request->world;
    if (memory->segments == NULL || memory->ids == NULL || memory->pools == NULL ||
        memory->tiers == NULL) {
        free_lists(memory);
        return cst_err_set(err, CST_ENOMEM, "no memory for %u segments", n);
    }
    for (uint32_t r = 0; r < request->world; r++) {
        memory->tiers[r] = request->pools[r].tier;
    }
    return CST_OK;
}

/* Compute the sizes of the memory to be created, and the engines that use it. */
static void count_request(struct cstd_memory *memory, const struct cstd_memory_request *request)
{
    memory->arena_bytes = cstd_memory_host_bytes(request->layout);
    memory->base_bytes = memory->populated = memory->logged = 0;
    memory->model = request->model;
    memory->files = request->files;
    for (uint32_t i = 0; request->files != NULL && i < request->files->n; i++) {
        request->files->v[i].taken =
            request->layout->states.durable ? cst_durable_reserve(request->layout->n_chunks) : 0;
    }
    memory->pool_bytes = request->layout->device_bytes;
    memory->err = (struct cst_err){0};
    memory->population = (struct cstd_population){0};
    memory->kept = request->kept;
    memory->parked = request->kept != NULL;
    memory->arenas_are_new = request->kept == NULL && request->inherited == NULL;
    memory->gpu_engines = memory->pool_engines = (struct cst_set){{0}};
    memory->n_reservations = 0;
    for (uint32_t r = 0; r < request->world; r++) {
        const struct cstd_memory_pool *pool = &request->pools[r];

        memory->pool_bytes += memory->parked ? 0 : pool->bytes;
        memory->pool_engines = cst_set_union(memory->pool_engines, cstd_tier_engines(pool->tier));
    }
    memory->pool_bytes += memory->parked ? 0 : cstd_memory_edge_bytes(memory);
    memory->gpu_engines = memory->pool_engines;
    memory->gpu_engines = cst_set_union(memory->gpu_engines, request->serves);
    memory->served = request->serves;
    for (uint32_t i = 0; i < request->n_reservations; i++) {
        memory->pool_bytes += request->reservations[i].bytes;
        memory->gpu_engines =
            cst_set_union(memory->gpu_engines, cstd_tier_engines(request->reservations[i].tier));
    }
}

/* Create all segments. After a failure the caller releases those that were created. */
static int add_all(struct cstd_memory *memory, const struct cstd_memory_request *request,
                   struct cst_err *err)
{
    int rc = add_arenas(memory, request, err);

    if (rc == CST_OK) {
        rc = add_table(memory, request->layout, err);
    }
    for (uint32_t r = 0; r < request->world && rc == CST_OK; r++) {
        rc = cstd_memory_add_pool(memory, request->layout, r, &request->pools[r], err);
    }
    rc = rc == CST_OK ? cstd_memory_add_edges(memory, err) : rc;
    rc = rc == CST_OK ? add_reservations(memory, request, err) : rc;
    return rc == CST_OK && request->layout->states.durable ? cstd_records_open(memory, request, err)
                                                           : rc;
}

static void unmap_table(struct cstd_memory *memory)
{
    if (memory->table != NULL) {
        (void)munmap(memory->table, memory->table_bytes);
        memory->table = NULL;
    }
}

int cstd_memory_open(struct cstd_memory *memory, const struct cstd_memory_request *request,
                     struct cst_err *err)
{
    int rc;

    memory->account = request->account;
    rc = make_lists(memory, request, err);
    if (rc != CST_OK) {
        return rc;
    }
    count_request(memory, request);
    rc = add_all(memory, request, err);
    if (rc != CST_OK) {
        goto err_after_segments;
    }
    memory->started_ns = uv_hrtime();
    cstd_memory_mount_all(memory);
    cstd_records_mount(memory);
    memory->kept = NULL;
    return CST_OK;

err_after_segments:
    unmap_table(memory);
    cstd_records_undo(&memory->records);
    cstd_shared_heads_close(&memory->heads);
    memory->kept = NULL;
    for (uint32_t i = 0; i < memory->n_segments; i++) {
        if (memory->segments[i] != NULL) {
            cstd_segment_unref(memory->segments[i]);
        }
    }
    free_lists(memory);
    return rc;
}

/* -- close ---------------------------------------------------------------------------------- */

void cstd_memory_close(struct cstd_memory *memory)
{
    struct cstd_segment **segments = memory->segments;
    uint32_t n = memory->n_segments;

    unmap_table(memory);
    cstd_shared_heads_close(&memory->heads);
    cstd_slot_refusals_forget(memory);
    cstd_pool_pages_forget(memory);
    /* on_ready must not be called any more. */
    cstd_deferred_remove(&memory->daemon->later, &memory->ready);
    memory->segments = NULL;
    memory->n_segments = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (segments[i] != NULL) { /* The slabs of parked pools are NULL. */
            (void)cstd_memory_release(memory, segments[i]);
        }
    }
    cstd_records_close(memory);
    free(segments);
    free_lists(memory);
    /* Otherwise on_segment_gone of the last segment does it. */
    if (n == 0 && memory->n_open == 0) {
        cstd_deferred_add(&memory->daemon->later, &memory->gone);
    }
}
