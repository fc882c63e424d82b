/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/mounts.h"

#include "daemon/engine/engines.h"
#include "daemon/base/log.h"
#include "daemon/budget/host_memory.h"
#include "proto/engine.pb-c.h"
#include "proto/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A request id is the segment's id x 4 plus one of these. */
enum { ADD_REQUEST = 1, DROP_REQUEST = 2 };

static void set_mount(const struct cstd_engine *engine, struct cstd_segment *segment,
                      enum cstd_mount_state state)
{
    segment->mounts[engine->index] = (uint8_t)state;
}

static enum cstd_mount_state mount_of(const struct cstd_engine *engine,
                                      const struct cstd_segment *segment)
{
    return (enum cstd_mount_state)segment->mounts[engine->index];
}

/* Release the engine's reference, because the engine no longer maps @segment and is not asked
 * to. */
static void let_go(struct cstd_engine *engine, struct cstd_segment *segment)
{
    set_mount(engine, segment, CSTD_MOUNT_NONE);
    cstd_engines_unlist(engine->engines, segment);
    cstd_segment_unref(segment);
}

/* Count an engine's answer to the request to map; the last answer calls on_mounted. */
static void answered(struct cstd_segment *segment)
{
    if (--segment->n_waiting == 0 && segment->on_mounted != NULL) {
        segment->on_mounted(segment);
    }
}

static bool is_first(const struct cstd_engine *engine, const struct cstd_segment *segment)
{
    return segment->populate == (int)engine->index;
}

/* True if @engine populates @segment now, or was asked to. */
static bool populates(const struct cstd_engine *engine, const struct cstd_segment *segment)
{
    return is_first(engine, segment) && !segment->device &&
           (mount_of(engine, segment) == CSTD_MOUNT_ADDING ||
            mount_of(engine, segment) == CSTD_MOUNT_UNWANTED);
}

/* True if @segment must wait until other segments have been populated. If an engine that populates
 * segments of several owners dies, any of the owners may be the cause. After a death the segments
 * of each owner are therefore populated separately, and the next death shows whose they are. */
static bool is_apart(struct cstd_engine *engine, const struct cstd_segment *segment)
{
    const struct cstd_population *own = segment->population;
    const struct cstd_segment *other;

    if (own == NULL || segment->device || !is_first(engine, segment)) {
        return false;
    }
    TAILQ_FOREACH(other, &engine->engines->segments, link)
    {
        const struct cstd_population *theirs = other->population;

        if (theirs != NULL && theirs != own && (own->n_deaths > 0 || theirs->n_deaths > 0) &&
            populates(engine, other)) {
            engine->one_by_one = true;
            return true;
        }
    }
    return false;
}

/* True if @segment does not exist yet for @engine. An accelerator's engine pins host memory when it
 * maps it, and imports memory that another engine has allocated. Both require that the memory was
 * populated or allocated first. */
static bool must_wait(const struct cstd_engine *engine, const struct cstd_segment *segment)
{
    return cstd_engine_is_gpu(engine) && !segment->made && !is_first(engine, segment);
}

static void send_add(struct cstd_engine *engine, struct cstd_segment *segment)
{
    Engine__SegmentAdd add = ENGINE__SEGMENT_ADD__INIT;
    Engine__Remote remote = ENGINE__REMOTE__INIT;
    bool first = is_first(engine, segment);

    engine->n_asked++;
    cstd_engines_watch(engine->engines);
    add.id = segment->id;
    add.bytes = segment->bytes;
    add.has_node = add.has_populate = add.has_lock = 1;
    add.node = first ? segment->bind : -1;
    /* A segment that is mapped again was populated by the previous process, and one of an earlier
     * daemon by its engine. */
    add.populate = first && (!segment->device || segment->file) && !segment->sparse &&
                   !segment->adopted && mount_of(engine, segment) != CSTD_MOUNT_REMOUNT;
    add.has_file_offset = segment->file;
    add.file_offset = segment->file_offset;
    add.has_sparse = 1;
    add.sparse = segment->sparse;
    add.lock = first && segment->lock;
    add.has_device = add.has_create = add.device = segment->device;
    /* A new process imports the accelerator memory that its predecessor allocated. */
    add.create = segment->device && segment->fd < 0;
    if (segment->remote) {
        add.has_device = add.has_create = add.has_populate = 0;
        remote.machine = segment->remote_machine;
        remote.segment = segment->remote_id;
        add.remote = &remote;
    }
    add.has_served = add.served = segment->served && engine->net != NULL;
    set_mount(engine, segment,
              mount_of(engine, segment) == CSTD_MOUNT_REMOUNT ? CSTD_MOUNT_REMOUNTING
                                                              : CSTD_MOUNT_ADDING);
    (void)cstd_engine_send(engine, ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD,
                           segment->id * 4ull + ADD_REQUEST, &add.base, segment->fd);
}

static void send_drop(struct cstd_engine *engine, struct cstd_segment *segment)
{
    Engine__SegmentDrop drop = ENGINE__SEGMENT_DROP__INIT;

    engine->n_asked++;
    cstd_engines_watch(engine->engines);
    drop.id = segment->id;
    /* Returning many pages takes milliseconds, so the engine does it, not the loop. */
    drop.has_discard = drop.discard =
        is_first(engine, segment) && !segment->device && cstd_segment_is_ours(segment);
    set_mount(engine, segment, CSTD_MOUNT_DROPPING);
    (void)cstd_engine_send(engine, ENGINE__MSG_TYPE__ENGINE_SEGMENT_DROP,
                           segment->id * 4ull + DROP_REQUEST, &drop.base, -1);
}

void cstd_mounts_add(struct cstd_engine *engine, struct cstd_segment *segment)
{
    if (cstd_engine_is_up(engine) && !must_wait(engine, segment) && !is_apart(engine, segment)) {
        send_add(engine, segment);
    }
}

static bool is_wanted(const struct cstd_engine *engine, const struct cstd_segment *segment)
{
    return mount_of(engine, segment) == CSTD_MOUNT_WANTED;
}

/* The first engine has populated or allocated @segment: ask the accelerators' engines that waited
 * for this. */
static void let_others(struct cstd_engines *engines, struct cstd_segment *segment)
{
    segment->made = true;
    for (unsigned i = 0; i < engines->n; i++) {
        struct cstd_engine *engine = &engines->v[i];

        if (cstd_engine_is_gpu(engine) && is_wanted(engine, segment)) {
            cstd_mounts_add(engine, segment);
        }
    }
}

/* The first engine has failed: the engines that waited for it fail as well. */
static void refuse_others(struct cstd_engines *engines, struct cstd_segment *segment)
{
    for (unsigned i = 0; i < engines->n; i++) {
        struct cstd_engine *engine = &engines->v[i];

        if (is_wanted(engine, segment) && must_wait(engine, segment)) {
            let_go(engine, segment);
            answered(segment);
        }
    }
}

/* Store the owner's error about a segment that could not be mapped. The first error counts. */
static void explain(const struct cstd_engine *engine, struct cstd_segment *segment, int status,
                    const char *text)
{
    const struct cstd_engine *first;
    char size[CST_SIZE_TEXT];

    text = text != NULL ? text : cst_status_words(status);
    if (segment->err.status != 0) {
        return;
    }
    if (!segment->device) {
        (void)cst_err_set(&segment->err, status, "segment of %s: %s",
                          cst_size_text(segment->bytes, size), text);
        return;
    }
    first = &engine->engines->v[segment->populate];
    if (first == engine) {
        (void)cst_err_set(&segment->err, status, "memory of %s on %s: %s",
                          cst_size_text(segment->bytes, size), engine->device, text);
    } else {
        (void)cst_err_set(&segment->err, status,
                          "%s cannot reach the memory of %s on %s: %s; 'peers = no' in [gpu] "
                          "avoids that",
                          engine->device, cst_size_text(segment->bytes, size), first->device, text);
    }
}

/* Take the descriptor of accelerator memory from the answer. */
static int take_handle(struct cstd_segment *segment, struct cst_frame *frame)
{
    if (frame->n_fds != 1) {
        return CST_EPROTO;
    }
    segment->fd = frame->fds[0];
    frame->n_fds = 0;
    return CST_OK;
}

void cstd_mounts_drop(struct cstd_engine *engine, struct cstd_segment *segment)
{
    switch (mount_of(engine, segment)) {
    case CSTD_MOUNT_WANTED:
        /* The owner unmaps the segment itself and needs no call of on_mounted. */
        segment->n_waiting--;
        let_go(engine, segment);
        break;
    case CSTD_MOUNT_REMOUNT:
        /* n_remounting counts segments in REMOUNT only while the engine is in MOUNTING
         * (cstd_mounts_renew). */
        engine->n_remounting -= engine->state == CSTD_ENGINE_MOUNTING;
        let_go(engine, segment);
        break;
    case CSTD_MOUNT_ADDING:
        segment->n_waiting--;
        set_mount(engine, segment, CSTD_MOUNT_UNWANTED);
        break;
    case CSTD_MOUNT_REMOUNTING:
        engine->n_remounting--;
        set_mount(engine, segment, CSTD_MOUNT_UNWANTED);
        break;
    case CSTD_MOUNT_MOUNTED:
        send_drop(engine, segment);
        break;
    case CSTD_MOUNT_NONE:
    case CSTD_MOUNT_UNWANTED:
    case CSTD_MOUNT_DROPPING:
        break;
    }
    if (engine->state == CSTD_ENGINE_MOUNTING && engine->n_remounting == 0) {
        engine->state = CSTD_ENGINE_READY;
    }
}

/* Note that the driver did not register host memory. The first time is logged. */
static void note_staged(struct cstd_engine *engine, const char *text)
{
    if (!engine->staged) {
        cstd_log(CSTD_LOG_WARNING, "engine %u: %s does not register host memory: %s", engine->index,
                 engine->device, text != NULL ? text : "no reason is given");
    }
    engine->staged = true;
}

/* Note whether pages were locked. Memory that a GPU's engine has pinned needs no lock. */
static void note_lock(struct cstd_engine *engine, struct cstd_segment *segment,
                      const Engine__SegmentDone *done)
{
    if (is_first(engine, segment) && segment->lock) {
        segment->locked = engine->locked = done->locked;
    } else if (cstd_engine_is_gpu(engine) && !segment->device && done->status == CST_OK) {
        engine->locked = done->locked;
        if (strcmp(cstd_engine_kind(engine), "cuda") == 0 && !done->locked) {
            note_staged(engine, done->text);
        }
    }
}

static void on_add_done(struct cstd_engine *engine, struct cstd_segment *segment,
                        const Engine__SegmentDone *done, struct cst_frame *frame)
{
    enum cstd_mount_state was = mount_of(engine, segment);
    int status = done->status;
    char size[CST_SIZE_TEXT];

    note_lock(engine, segment, done);
    if (was == CSTD_MOUNT_UNWANTED) {
        if (status == CST_OK) {
            send_drop(engine, segment);
        } else {
            let_go(engine, segment);
        }
        return;
    }
    if (was == CSTD_MOUNT_REMOUNTING && status != CST_OK) {
        cstd_log(CSTD_LOG_ERROR, "engine %u: segment %u cannot be mapped again: %s", engine->index,
                 segment->id, done->text != NULL ? done->text : cst_status_words(status));
        /* Without the segment, commands would fail that need not fail. A new process may map it. */
        cstd_process_kill(engine->process);
        return;
    }
    if (status == CST_OK && segment->device && segment->fd < 0) {
        status = take_handle(segment, frame);
    }
    if (status != CST_OK) {
        explain(engine, segment, status, done->text);
    }
    set_mount(engine, segment, CSTD_MOUNT_MOUNTED);
    if (was == CSTD_MOUNT_REMOUNTING) {
        if (--engine->n_remounting == 0) {
            engine->state = CSTD_ENGINE_READY;
        }
        return;
    }
    if (is_first(engine, segment) && status == CST_OK) {
        let_others(engine->engines, segment);
    } else if (is_first(engine, segment)) {
        refuse_others(engine->engines, segment);
    }
    if (status != CST_OK) {
        let_go(engine, segment);
    } else if (segment->lock_required && segment->populate == (int)engine->index &&
               !segment->locked && segment->err.status == 0) {
        (void)cst_err_set(
            &segment->err, CST_ENOMEM, "segment of %s: it cannot be locked in memory: %s",
            cst_size_text(segment->bytes, size),
            done->text != NULL ? done->text : "see LimitMEMLOCK and 'lock' in [host]");
    }
    answered(segment);
}

/* True if the engine was asked to map @segment and has not answered. */
static bool awaits_add(const struct cstd_engine *engine, const struct cstd_segment *segment)
{
    enum cstd_mount_state state = mount_of(engine, segment);

    return state == CSTD_MOUNT_ADDING || state == CSTD_MOUNT_REMOUNTING ||
           state == CSTD_MOUNT_UNWANTED;
}

/* Ask for the segments that waited for the population of another owner's segments. */
static void add_waiting(struct cstd_engine *engine)
{
    struct cstd_segment *segment;

    engine->one_by_one = false;
    TAILQ_FOREACH(segment, &engine->engines->segments, link)
    {
        if (is_wanted(engine, segment)) {
            cstd_mounts_add(engine, segment);
        }
    }
}

void cstd_mounts_done(struct cstd_engine *engine, struct cst_frame *frame)
{
    Engine__SegmentDone *done = engine__segment_done__unpack(NULL, frame->body_bytes, frame->body);
    struct cstd_segment *segment =
        done != NULL ? cstd_engines_find(engine->engines, done->id) : NULL;

    if (segment != NULL && frame->request == segment->id * 4ull + DROP_REQUEST &&
        mount_of(engine, segment) == CSTD_MOUNT_DROPPING) {
        engine->n_asked--;
        let_go(engine, segment);
    } else if (segment != NULL && frame->request == segment->id * 4ull + ADD_REQUEST &&
               awaits_add(engine, segment)) {
        engine->n_asked--;
        cstd_segment_ref(segment); /* The segment must outlive let_go in this block. */
        on_add_done(engine, segment, done, frame);
        cstd_segment_unref(segment);
    } else {
        cstd_log(CSTD_LOG_WARNING, "engine %u: answer for a segment that it was not asked for",
                 engine->index);
    }
    engine__segment_done__free_unpacked(done, NULL);
    if (engine->one_by_one) {
        add_waiting(engine);
    }
}

void cstd_mounts_progress(struct cstd_engine *engine, const struct cst_frame *frame)
{
    Engine__Progress *progress = engine__progress__unpack(NULL, frame->body_bytes, frame->body);
    struct cstd_segment *segment =
        progress != NULL ? cstd_engines_find(engine->engines, progress->id) : NULL;

    if (segment != NULL && progress->bytes <= segment->bytes) {
        segment->populated = progress->bytes;
        if (segment->on_progress != NULL) {
            segment->on_progress(segment);
        }
    }
    engine__progress__free_unpacked(progress, NULL);
}

bool cstd_mounts_blame(struct cstd_engine *engine)
{
    uint64_t death = ++engine->engines->n_deaths;
    struct cstd_segment *segment;
    bool any = false;

    TAILQ_FOREACH(segment, &engine->engines->segments, link)
    {
        struct cstd_population *population = segment->population;

        if (population == NULL || !populates(engine, segment)) {
            continue;
        }
        any = true;
        if (population->last_death != death) {
            population->last_death = death;
            population->n_deaths++;
        }
        /* Otherwise the next process would have as little memory as this one. */
        cstd_segment_empty(segment);
    }
    return any;
}

/* Name the limit that may have been exceeded, as far as it can be read. */
static void name_limit(char *out, size_t n)
{
    struct cstd_host_memory_limit limit;
    char size[CST_SIZE_EXACT];

    if (cstd_host_memory_limit("", &limit)) {
        (void)snprintf(out, n, "the daemon's control group allows %s (%.100s)",
                       cst_size_exact(limit.bytes, size), limit.file);
    } else {
        (void)snprintf(out, n, "no limit of a control group can be read");
    }
}

void cstd_mounts_refuse(struct cstd_engine *engine, const char *how)
{
    struct cstd_segment *segment, *next;
    char limit[192];

    name_limit(limit, sizeof limit);
    for (segment = TAILQ_FIRST(&engine->engines->segments); segment != NULL; segment = next) {
        const struct cstd_population *population = segment->population;

        next = TAILQ_NEXT(segment, link);
        if (population == NULL || population->n_deaths < CSTD_POPULATION_DEATHS ||
            !is_wanted(engine, segment) || !is_first(engine, segment)) {
            continue;
        }
        cstd_segment_ref(segment);
        (void)cst_err_set(&segment->err, CST_ENOMEM,
                          "%u engines died while they populated its memory, the last one %.40s: %s",
                          population->n_deaths, how, limit);
        refuse_others(engine->engines, segment);
        let_go(engine, segment);
        answered(segment);
        cstd_segment_unref(segment);
    }
}

/* Segments that the process was to map are mapped by the next one; segments that it was to unmap
 * are released. */
void cstd_mounts_forget(struct cstd_engine *engine)
{
    struct cstd_segment *segment, *next;

    engine->n_remounting = engine->n_asked = 0;
    for (segment = TAILQ_FIRST(&engine->engines->segments); segment != NULL; segment = next) {
        next = TAILQ_NEXT(segment, link);
        switch (mount_of(engine, segment)) {
        case CSTD_MOUNT_ADDING:
            set_mount(engine, segment, CSTD_MOUNT_WANTED);
            break;
        case CSTD_MOUNT_MOUNTED:
        case CSTD_MOUNT_REMOUNTING:
            set_mount(engine, segment, CSTD_MOUNT_REMOUNT);
            break;
        case CSTD_MOUNT_UNWANTED:
        case CSTD_MOUNT_DROPPING:
            let_go(engine, segment);
            break;
        case CSTD_MOUNT_NONE:
        case CSTD_MOUNT_WANTED:
        case CSTD_MOUNT_REMOUNT:
            break;
        }
    }
}

void cstd_mounts_fail(struct cstd_engine *engine)
{
    struct cstd_segment *segment, *next;

    for (segment = TAILQ_FIRST(&engine->engines->segments); segment != NULL; segment = next) {
        next = TAILQ_NEXT(segment, link);
        /* Segments in REMOUNT stay. Their owners use them already, and a later process maps
         * them. */
        if (mount_of(engine, segment) == CSTD_MOUNT_WANTED) {
            cstd_segment_ref(segment);
            (void)cst_err_set(&segment->err, CST_EENGINE, "%s", engine->why);
            if (is_first(engine, segment)) {
                refuse_others(engine->engines, segment);
            }
            let_go(engine, segment);
            answered(segment);
            cstd_segment_unref(segment);
        }
    }
}

void cstd_mounts_renew(struct cstd_engine *engine)
{
    struct cstd_segment *segment;

    engine->n_remounting = 0;
    TAILQ_FOREACH(segment, &engine->engines->segments, link)
    {
        enum cstd_mount_state state = mount_of(engine, segment);

        if (state == CSTD_MOUNT_REMOUNT || state == CSTD_MOUNT_WANTED) {
            /* Commands cannot refer to a segment in WANTED yet. */
            engine->n_remounting += state == CSTD_MOUNT_REMOUNT;
            cstd_mounts_add(engine, segment);
        }
    }
}
