/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of a job's memory: they are added, mounted by engines, counted and released. */
#include "daemon/memory/memory_pools.h"

#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/budget/quota.h"
#include "daemon/engine/engines.h"
#include "daemon/memory/files.h"
#include "daemon/memory/tiers/tier.h"
#include "proto/size.h"

#include <string.h>

/* Largest number of bytes between two progress lines in the log. */
static const uint64_t log_step_bytes = UINT64_C(1) << 30;

static void count(struct cstd_memory *memory, struct cstd_segment *segment)
{
    /* The difference wraps if a new engine populates the segment again. */
    memory->populated += segment->populated - segment->counted;
    segment->counted = segment->populated;
}

static void on_progress(struct cstd_segment *segment)
{
    struct cstd_memory *memory = segment->arg;
    uint64_t total = memory->arena_bytes + memory->pool_bytes, step = total / 4;
    char done[CST_SIZE_TEXT], all[CST_SIZE_TEXT];

    count(memory, segment);
    step = step > log_step_bytes ? log_step_bytes : step;
    /* No lines for small jobs, which are populated in a moment. */
    if (memory->populated >= memory->logged + step && memory->populated < total &&
        step >= log_step_bytes / 16) {
        memory->logged = memory->populated;
        cstd_log_about(CSTD_LOG_INFO,
                       &(struct cstd_log_about){
                           .job = memory->name, .rank = CSTD_LOG_NONE, .uid = memory->account->uid},
                       "populated %s of %s", cst_size_text(memory->populated, done),
                       cst_size_text(total, all));
    }
}

/* All engines have answered. */
static void answered(struct cstd_memory *memory)
{
    if (--memory->n_waiting == 0) {
        cstd_deferred_add(&memory->daemon->later, &memory->ready);
    }
}

static void on_mounted(struct cstd_segment *segment)
{
    struct cstd_memory *memory = segment->arg;

    if (segment->err.status != 0 && memory->err.status == 0 &&
        !cstd_slot_refusals_own(memory, segment)) {
        memory->err = segment->err;
    }
    /* Accelerator memory is allocated without reports of progress. Of a segment that failed nothing
     * is of use, whatever was reported. */
    segment->populated = segment->err.status == 0 ? segment->bytes : 0;
    count(memory, segment);
    answered(memory);
}

static void on_mounted_apart(struct cstd_segment *segment)
{
    struct cstd_memory *memory = segment->arg;

    if (segment->err.status != 0 && memory->err.status == 0) {
        memory->err = segment->err;
    }
    answered(memory);
}

static void on_segment_gone(struct cstd_segment *segment)
{
    struct cstd_memory *memory = segment->arg;

    if (--memory->n_open == 0 || memory->parked) {
        cstd_deferred_add(&memory->daemon->later, &memory->gone);
    }
}

static void enter(struct cstd_memory *memory, struct cstd_segment *segment)
{
    segment->arg = memory;
    segment->on_mounted = on_mounted;
    segment->on_progress = on_progress;
    memory->ids[memory->n_segments] = segment->id;
    memory->segments[memory->n_segments++] = segment;
}

/* Take the next segment that was kept, whose descriptor belongs to the caller. */
static struct cstd_memory_kept take_kept(struct cstd_memory *memory)
{
    struct cstd_memory_kept kept = *memory->kept;

    memory->kept++->fd = -1;
    return kept;
}

int cstd_memory_add_segment(struct cstd_memory *memory, uint64_t bytes, struct cstd_budget *budget,
                            struct cst_set host_engines, int populate, struct cst_err *err)
{
    struct cstd_daemon *daemon = memory->daemon;
    struct cstd_engines *engines = daemon->engines;
    struct cstd_segment *segment;
    int rc;

    if (memory->kept != NULL) {
        struct cstd_memory_kept kept = take_kept(memory);

        rc = cstd_segment_adopt(&segment, kept.id, bytes, kept.fd, budget, memory->account, err);
    } else {
        rc = cstd_segment_open(&segment, cstd_engines_segment_id(engines), bytes, budget,
                               memory->account, memory->name, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    segment->engines = cst_set_union(host_engines, memory->gpu_engines);
    segment->served = !cst_set_none(&memory->served);
    segment->populate = populate;
    /* Memory of an earlier daemon has its pages, which no death of an engine may empty. */
    segment->population = segment->adopted ? NULL : &memory->population;
    /* With one node there is nothing to bind. */
    segment->bind = engines->n_nodes > 1 ? (int)engines->v[populate].os_node : -1;
    segment->lock = daemon->config->lock != CSTD_LOCK_NO;
    /* States that exist are not given up because they cannot be locked any more. */
    segment->lock_required = daemon->config->lock == CSTD_LOCK_YES && !segment->adopted;
    enter(memory, segment);
    return CST_OK;
}

int cstd_memory_add_device_segment(struct cstd_memory *memory, uint64_t bytes,
                                   const struct cstd_tier *tier, struct cst_set others,
                                   struct cst_err *err)
{
    struct cstd_segment *segment;
    int rc;

    if (memory->kept != NULL) {
        struct cstd_memory_kept kept = take_kept(memory);

        rc = cstd_segment_adopt_device(&segment, kept.id, bytes, kept.fd, tier->budget,
                                       memory->account, tier->number, err);
    } else {
        rc = cstd_segment_open_device(&segment, cstd_engines_segment_id(memory->daemon->engines),
                                      bytes, tier->budget, memory->account, tier->number,
                                      memory->name, err);
    }
    if (rc == CST_OK) {
        segment->engines = cst_set_union(segment->engines, others);
        enter(memory, segment);
    }
    return rc;
}

int cstd_memory_add_file_segment(struct cstd_memory *memory, uint64_t bytes,
                                 const struct cstd_tier *tier, struct cst_err *err)
{
    struct cstd_file *file = cstd_files_on(memory->files, tier);
    struct cstd_segment *segment;
    int rc;

    if (file == NULL) {
        return cst_err_set(err, CST_ELOST, "job '%s' has no file on drive %s", memory->name,
                           tier->label);
    }
    if (memory->kept != NULL) {
        struct cstd_memory_kept kept = take_kept(memory);

        rc = cstd_segment_adopt_device(&segment, kept.id, bytes, kept.fd, tier->budget,
                                       memory->account, tier->number, err);
    } else {
        rc = cstd_segment_open_file(&segment, cstd_engines_segment_id(memory->daemon->engines),
                                    bytes, file->fd, tier->budget, memory->account, tier->number,
                                    memory->name, err);
    }
    if (rc == CST_OK) {
        segment->file = true;
        segment->file_offset = file->taken;
        file->taken += bytes;
        enter(memory, segment);
    }
    return rc;
}

int cstd_memory_add_shared(struct cstd_memory *memory, const struct cstd_segment *of, uint32_t node,
                           struct cst_err *err)
{
    struct cstd_segment *segment;
    uint32_t id = memory->kept != NULL ? take_kept(memory).id
                                       : cstd_engines_segment_id(memory->daemon->engines);
    int rc = cstd_segment_open_shared(&segment, id, of, memory->name, err);

    if (rc == CST_OK) {
        segment->engines = cst_set_union(cst_set_of(node), memory->gpu_engines);
        memory->base_bytes += segment->bytes;
        enter(memory, segment);
    }
    return rc;
}

int cstd_memory_add_heir(struct cstd_memory *memory, const struct cstd_segment *of,
                         struct cst_err *err)
{
    struct cstd_segment *segment;
    int rc = cstd_segment_open_heir(&segment, cstd_engines_segment_id(memory->daemon->engines), of,
                                    memory->gpu_engines, memory->name, err);

    if (rc == CST_OK) {
        enter(memory, segment);
    }
    return rc;
}

struct cst_set cstd_memory_all_nodes(const struct cstd_memory *memory)
{
    return cst_set_range(0, memory->daemon->engines->n_nodes);
}

void cstd_memory_mount(struct cstd_memory *memory, struct cstd_segment *segment)
{
    memory->n_open++;
    memory->n_waiting++;
    memory->pool_bytes += segment->bytes;
    segment->on_gone = on_segment_gone;
    cstd_engines_mount(memory->daemon->engines, segment);
}

void cstd_memory_mount_apart(struct cstd_memory *memory, struct cstd_segment *segment)
{
    memory->n_open++;
    memory->n_waiting++;
    segment->arg = memory;
    segment->on_mounted = on_mounted_apart;
    segment->on_gone = on_segment_gone;
    cstd_engines_mount(memory->daemon->engines, segment);
}

void cstd_memory_mount_adopted(struct cstd_memory *memory, struct cstd_segment *segment)
{
    segment->arg = memory;
    segment->on_mounted = on_mounted;
    memory->populated += segment->bytes;
    cstd_memory_mount(memory, segment);
}

uint64_t cstd_memory_release(struct cstd_memory *memory, struct cstd_segment *segment)
{
    uint64_t bytes = segment->bytes;

    memory->populated -= segment->counted;
    /* The answers of engines do not matter any more; on_gone is still counted. */
    segment->on_mounted = segment->on_progress = NULL;
    cstd_engines_unmount(memory->daemon->engines, segment);
    cstd_segment_unref(segment);
    return bytes;
}

void cstd_memory_mount_all(struct cstd_memory *memory)
{
    struct cstd_engines *engines = memory->daemon->engines;

    for (uint32_t i = 0; i < memory->n_segments; i++) {
        struct cstd_segment *segment = memory->segments[i];

        memory->n_open += segment != NULL;
        memory->n_waiting += segment != NULL;
    }
    for (uint32_t i = 0; i < memory->n_segments; i++) {
        struct cstd_segment *segment = memory->segments[i];

        if (segment == NULL) {
            continue;
        }
        /* Set only now, because after a failure above nobody waits for on_gone. */
        segment->on_gone = on_segment_gone;
        memory->populated += memory->kept != NULL ? segment->bytes : 0;
        cstd_engines_mount(engines, segment);
    }
}
