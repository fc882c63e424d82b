/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/engine_parts.h"

#include <stdlib.h>

static struct cste_mapping *mapping_of_mail(struct cste_mail *mail)
{
    return (struct cste_mapping *)(void *)((char *)mail - offsetof(struct cste_mapping, mail));
}

static struct cste_mapping *mapping_of(struct cste_segment *segment)
{
    return (struct cste_mapping *)(void *)segment;
}

/* Answer @request about segment @id with @status. The text of @what is sent along, unless @what is
 * NULL or its status is CST_OK. */
static void answer(struct cste_engine *engine, uint64_t request, uint32_t id, int status,
                   struct cst_err *what)
{
    Engine__SegmentDone done = ENGINE__SEGMENT_DONE__INIT;
    struct cst_err err;
    int rc;

    done.id = id;
    done.status = status;
    done.text = what != NULL && what->status != CST_OK ? what->text : NULL;
    rc = cste_outbox_say(&engine->outbox, ENGINE__MSG_TYPE__ENGINE_SEGMENT_DONE, CST_FRAME_REPLY,
                         request, &done.base, -1, &err);
    cste_engine_fail(engine, rc, &err);
}

/* Answer the SEGMENT_ADD of @mapping, which is mapped. If the memory was created here, its handle
 * is sent along. */
static void answer_mapped(struct cste_engine *engine, struct cste_mapping *mapping)
{
    Engine__SegmentDone done = ENGINE__SEGMENT_DONE__INIT;
    struct cst_err err;
    int rc;

    done.id = mapping->segment.id;
    done.status = CST_OK;
    done.text = mapping->note.status != CST_OK ? mapping->note.text : NULL;
    done.has_locked = mapping->lock;
    done.locked = mapping->segment.mem.locked;
    rc = cste_outbox_say(&engine->outbox, ENGINE__MSG_TYPE__ENGINE_SEGMENT_DONE, CST_FRAME_REPLY,
                         mapping->request, &done.base, mapping->made ? mapping->fd : -1, &err);
    /* cste_outbox_say has taken the handle over. */
    mapping->fd = mapping->made ? -1 : mapping->fd;
    cste_engine_fail(engine, rc, &err);
}

static void report(struct cste_engine *engine, struct cste_mapping *mapping)
{
    Engine__Progress progress = ENGINE__PROGRESS__INIT;
    uint64_t bytes = atomic_load(&mapping->populated);
    struct cst_err err;
    int rc;

    if (bytes == mapping->reported) {
        return;
    }
    mapping->reported = bytes;
    progress.id = mapping->segment.id;
    progress.bytes = bytes;
    rc = cste_outbox_say(&engine->outbox, ENGINE__MSG_TYPE__ENGINE_PROGRESS, CST_FRAME_EVENT, 0,
                         &progress.base, -1, &err);
    cste_engine_fail(engine, rc, &err);
}

/* No report is made while the socket is full, because a later report has newer numbers. */
void cste_engine_report_progress(struct cste_engine *engine)
{
    if (engine->n_adding == 0 || engine->outbox.full) {
        return;
    }
    for (uint32_t i = 0; i < engine->segments.n; i++) {
        if (engine->segments.v[i]->state == CSTE_SEGMENT_ADDING) {
            report(engine, mapping_of(engine->segments.v[i]));
        }
    }
}

/* -- unmapping ------------------------------------------------------------------------------ */

static void unmapped(struct cste_mail *mail, void *arg)
{
    struct cste_mapping *mapping = mapping_of_mail(mail);
    struct cste_engine *engine = arg;

    cste_segments_remove(&engine->segments, &mapping->segment);
    /* A failed SEGMENT_ADD is answered before a SEGMENT_DROP of its segment. */
    if (atomic_load(&mapping->failed)) {
        answer(engine, mapping->request, mapping->segment.id, mapping->err.status, &mapping->err);
    }
    if (mapping->drop) {
        answer(engine, mapping->drop_request, mapping->segment.id, CST_OK, NULL);
    }
    free(mapping);
}

/* Unmap a DROPPING segment if nobody uses it. Otherwise the segment is unmapped when the last
 * command that uses it is over. */
static void unmap_if_idle(struct cste_engine *engine, struct cste_mapping *mapping)
{
    if (mapping->segment.state == CSTE_SEGMENT_DROPPING && mapping->segment.n_uses == 0) {
        mapping->mail.deliver = unmapped;
        cste_mapping_unmap(mapping, cste_engine_lanes(engine, CSTE_LANE_MAP));
    }
}

void cste_engine_close_work(struct cste_engine *engine, struct cste_work *work)
{
    struct cste_segment *going[CSTE_WORK_MAX_USES];
    uint32_t n = 0;

    /* A command may hold a segment more than once, but the segment is unmapped once. */
    for (uint32_t i = 0; i < work->n_uses; i++) {
        uint32_t k = 0;

        while (k < n && going[k] != work->uses[i]) {
            k++;
        }
        if (k == n && work->uses[i]->state == CSTE_SEGMENT_DROPPING) {
            going[n++] = work->uses[i];
        }
    }
    cste_work_close(work);
    for (uint32_t i = 0; i < n; i++) {
        unmap_if_idle(engine, mapping_of(going[i]));
    }
}

/* Begin to drop a segment. No new command may use a DROPPING segment. */
static void start_drop(struct cste_engine *engine, struct cste_mapping *mapping)
{
    engine->n_drops--;
    mapping->segment.state = CSTE_SEGMENT_DROPPING;
    unmap_if_idle(engine, mapping);
}

/* Returns whether all commands that were submitted before the SEGMENT_DROP are over. */
static bool drop_is_due(const struct cste_engine *engine, const struct cste_mapping *mapping)
{
    return mapping->drop && mapping->segment.state == CSTE_SEGMENT_READY &&
           (engine->oldest == NULL || engine->oldest->sequence > mapping->drop_after);
}

void cste_engine_start_drops(struct cste_engine *engine)
{
    for (uint32_t i = 0; i < engine->segments.n; i++) {
        if (drop_is_due(engine, mapping_of(engine->segments.v[i]))) {
            start_drop(engine, mapping_of(engine->segments.v[i]));
        }
    }
}

int cste_engine_drop_segment(struct cste_engine *engine, const struct cst_frame *frame,
                             struct cst_err *err)
{
    Engine__SegmentDrop *drop = engine__segment_drop__unpack(NULL, frame->body_bytes, frame->body);
    struct cste_segment *segment;
    struct cste_mapping *mapping;
    struct cst_err what;

    if (drop == NULL || frame->n_fds != 0) {
        engine__segment_drop__free_unpacked(drop, NULL);
        return cst_err_set(err, CST_EPROTO, "malformed SEGMENT_DROP");
    }
    segment = cste_segments_get(&engine->segments, drop->id);
    mapping = segment != NULL ? mapping_of(segment) : NULL;
    if (mapping == NULL || mapping->drop || segment->state == CSTE_SEGMENT_DROPPING) {
        (void)cst_err_set(&what, CST_ENOTFOUND, "there is no segment %u", drop->id);
        answer(engine, frame->request, drop->id, CST_ENOTFOUND, &what);
    } else {
        mapping->drop = true;
        mapping->discard = drop->discard && !mapping->import;
        mapping->drop_request = frame->request;
        mapping->drop_after = engine->n_submitted;
        engine->n_drops++;
        if (segment->state == CSTE_SEGMENT_ADDING) {
            /* The drop goes on when the adding has ended. */
            cste_mapping_cancel(mapping);
        } else if (drop_is_due(engine, mapping)) {
            start_drop(engine, mapping);
        }
    }
    engine__segment_drop__free_unpacked(drop, NULL);
    return CST_OK;
}

/* -- mapping -------------------------------------------------------------------------------- */

/* Handle the end of adding a segment. A failure is answered later, when the segment is unmapped. */
static void added(struct cste_engine *engine, struct cste_mapping *mapping)
{
    bool failed = atomic_load(&mapping->failed);

    engine->n_adding--;
    report(engine, mapping);
    /* The engine ends with this status instead of answering. */
    if (failed && mapping->err.status == CST_EGPU) {
        cste_engine_fail(engine, CST_EGPU, &mapping->err);
        return;
    }
    if (!failed) {
        answer_mapped(engine, mapping);
    }
    cste_mapping_close_fd(mapping);
    /* A command cannot have used the segment, which was not READY. The drop need not wait. */
    if (mapping->drop) {
        start_drop(engine, mapping);
    } else if (failed) {
        mapping->segment.state = CSTE_SEGMENT_DROPPING;
        unmap_if_idle(engine, mapping);
    } else {
        mapping->segment.state = CSTE_SEGMENT_READY;
    }
    cste_engine_start_held(engine);
}

static void added_by_mail(struct cste_mail *mail, void *arg)
{
    added(arg, mapping_of_mail(mail));
}

static struct cste_mapping *new_mapping(struct cste_engine *engine, const Engine__SegmentAdd *add,
                                        uint64_t request, int fd)
{
    struct cste_mapping *mapping = calloc(1, sizeof *mapping);

    if (mapping != NULL) {
        mapping->segment.id = add->id;
        mapping->mail.deliver = added_by_mail;
        mapping->device = &engine->device;
        mapping->box = &engine->box;
        mapping->fd = fd;
        mapping->request = request;
        mapping->import = add->device || add->remote != NULL;
        mapping->file_offset = add->file_offset;
        mapping->populate =
            add->populate && (!mapping->import || engine->config.ops->memory->in_files);
        mapping->lock = (add->lock || engine->config.ops->memory->always_locks) && !mapping->import;
        mapping->sparse = add->sparse;
        mapping->served = add->served;
        if (add->remote != NULL) {
            mapping->machine = add->remote->machine;
            mapping->id_there = add->remote->segment;
        }
        mapping->progress = &engine->context.progress;
    }
    return mapping;
}

/* Check what a segment has to do with other machines. */
static int check_machines(const struct cste_engine *engine, const Engine__SegmentAdd *add,
                          struct cst_err *err)
{
    if (add->remote == NULL && !add->served) {
        return CST_OK;
    }
    if (add->remote != NULL && (add->remote->segment == 0 || add->served || add->device)) {
        return cst_err_set(err, CST_EINVAL,
                           "segment %u is segment %u of machine %u, and is served or of a device",
                           add->id, add->remote->segment, add->remote->machine);
    }
    return cste_device_check_peers(&engine->device, err);
}

/* Add @mapping to the set and map it. On failure the set is unchanged. */
static int enter(struct cste_engine *engine, struct cste_mapping *mapping,
                 const Engine__SegmentAdd *add, struct cst_err *err)
{
    int rc;

    if (add->id == engine->undo_id) {
        return cst_err_set(err, CST_EEXIST, "segment %u is the undo segment", add->id);
    }
    rc = check_machines(engine, add, err);
    if (rc == CST_OK) {
        rc = cste_segments_add(&engine->segments, &mapping->segment, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    rc = cste_mapping_open(mapping, add->bytes, add->node, err);
    if (rc != CST_OK) {
        cste_segments_remove(&engine->segments, &mapping->segment);
        return cst_err_prefix(err, "segment %u", add->id);
    }
    return CST_OK;
}

/* Add a segment. @fd (-1: none) is taken over. A failure is answered to the daemon. CST_ENOMEM: not
 * even an answer was possible. */
static int add_segment(struct cste_engine *engine, const Engine__SegmentAdd *add, uint64_t request,
                       int fd, struct cst_err *err)
{
    struct cste_mapping *mapping = new_mapping(engine, add, request, fd);
    struct cst_err what;
    int rc;

    if (mapping == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a segment");
    }
    rc = enter(engine, mapping, add, &what);
    if (rc != CST_OK) {
        answer(engine, request, add->id, rc, &what);
        cste_mapping_close_fd(mapping);
        free(mapping);
        return CST_OK;
    }
    engine->n_adding++;
    if (cste_mapping_has_work(mapping)) {
        cste_mapping_populate(mapping, cste_engine_lanes(engine, CSTE_LANE_MAP));
    } else {
        added(engine, mapping);
    }
    return CST_OK;
}

int cste_engine_add_segment(struct cste_engine *engine, struct cst_frame *frame,
                            struct cst_err *err)
{
    Engine__SegmentAdd *add = engine__segment_add__unpack(NULL, frame->body_bytes, frame->body);
    /* Memory that is made here, or is that of another machine. */
    bool no_fd = add != NULL && ((add->device && add->create) || add->remote != NULL);
    int rc;

    if (add == NULL || frame->n_fds != (no_fd ? 0 : 1)) {
        rc = cst_err_set(err, CST_EPROTO, "malformed SEGMENT_ADD, or %u fds", frame->n_fds);
    } else {
        frame->n_fds = 0;
        rc = add_segment(engine, add, frame->request, no_fd ? -1 : frame->fds[0], err);
    }
    engine__segment_add__free_unpacked(add, NULL);
    return rc;
}
