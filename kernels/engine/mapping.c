/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#define CLASS_BACKGROUND (CSTE_THREAD_POOL_CLASSES - 1)

/* Record a failure. Only the first one is reported. */
static void fail(struct cste_mapping *mapping, const struct cst_err *err)
{
    if (!atomic_exchange(&mapping->failed, true)) {
        mapping->err = *err;
    }
}

static struct cste_mapping *mapping_of(struct cste_task *task)
{
    return (struct cste_mapping *)(void *)((char *)task - offsetof(struct cste_mapping, task));
}

/* Allocate and touch pages, or write zeros to a file. */
static int populate(struct cste_mapping *mapping, unsigned thread, uint64_t offset, uint64_t bytes,
                    struct cst_err *err)
{
    const struct cste_mem *mem = &mapping->segment.mem;

    return mapping->import
               ? cste_device_fill(mapping->device, thread, (struct cste_addr){mem, offset}, bytes,
                                  err)
               : cste_device_populate(mapping->device, mapping->fd, mem, offset, bytes, err);
}

static void populate_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct cste_mapping *mapping = mapping_of(task);
    uint64_t offset = piece * CSTE_MAPPING_PIECE;
    uint64_t bytes = mapping->segment.mem.bytes - offset;
    struct cst_err err;

    if (!mapping->populate || atomic_load(&mapping->failed)) {
        return;
    }
    bytes = bytes < CSTE_MAPPING_PIECE ? bytes : CSTE_MAPPING_PIECE;
    if (populate(mapping, thread, offset, bytes, &err) != CST_OK) {
        (void)cst_err_prefix(&err, "segment %u of %llu bytes", mapping->segment.id,
                             (unsigned long long)mapping->segment.mem.bytes);
        fail(mapping, &err);
        return;
    }
    (void)atomic_fetch_add(&mapping->populated, bytes);
    (void)atomic_fetch_add(mapping->progress, 1);
    cste_mailbox_knock(mapping->box);
}

/* Lock the segment. A failure is noted and is not fatal, unless the device has failed. */
static void lock(struct cste_mapping *mapping)
{
    struct cst_err err;
    int rc = cste_device_lock(mapping->device, &mapping->segment.mem, &err);

    if (rc == CST_EGPU) {
        fail(mapping, &err);
    } else if (rc != CST_OK && mapping->note.status == CST_OK) {
        /* An earlier note is kept. The daemon learns from the flag `locked` that locking failed. */
        mapping->note = err;
    }
    (void)atomic_fetch_add(mapping->progress, 1);
}

static void populate_done(struct cste_task *task)
{
    struct cste_mapping *mapping = mapping_of(task);

    if (!atomic_load(&mapping->failed)) {
        mapping->segment.mem.fresh = false;
        if (mapping->lock) {
            lock(mapping);
        }
    }
    cste_mailbox_post(mapping->box, &mapping->mail);
}

/* Let the lanes populate (and lock) the segment. */
static void submit_populate(struct cste_mapping *mapping)
{
    /* Locking alone needs one piece. */
    uint64_t bytes = mapping->populate ? mapping->segment.mem.bytes : 1;

    mapping->task = (struct cste_task){.piece = populate_piece,
                                       .done = populate_done,
                                       .n_pieces = (bytes - 1) / CSTE_MAPPING_PIECE + 1,
                                       .class = CLASS_BACKGROUND};
    cste_thread_pool_submit(mapping->lanes, &mapping->task);
}

static void import_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct cste_mapping *mapping = mapping_of(task);
    bool make = mapping->fd < 0 && mapping->id_there == 0;
    struct cst_err err;

    (void)piece;
    if (atomic_load(&mapping->failed)) {
        return;
    }
    if (cste_device_import(mapping->device, thread, &mapping->fd, &mapping->segment.mem, &err) !=
        CST_OK) {
        (void)cst_err_prefix(&err, "segment %u of %llu bytes", mapping->segment.id,
                             (unsigned long long)mapping->segment.mem.bytes);
        fail(mapping, &err);
        return;
    }
    mapping->made = make;
    (void)atomic_fetch_add(mapping->progress, 1);
}

static void import_done(struct cste_task *task)
{
    struct cste_mapping *mapping = mapping_of(task);

    if (mapping->populate && !atomic_load(&mapping->failed)) {
        submit_populate(mapping);
    } else {
        populate_done(task);
    }
}

/* Return the pages to the system. If this fails, the daemon does it, on its loop. */
static void discard(struct cste_mem *mem)
{
    if (mem->locked) {
        (void)munlock(mem->base, mem->bytes); /* Locked pages cannot be removed. */
    }
    (void)madvise(mem->base, mem->bytes, MADV_REMOVE);
}

static void unmap_piece(struct cste_task *task, uint64_t piece, unsigned thread)
{
    struct cste_mapping *mapping = mapping_of(task);

    (void)piece;
    (void)thread;
    if (mapping->discard) {
        discard(&mapping->segment.mem);
    }
    cste_device_unmap(mapping->device, &mapping->segment.mem);
}

static void unmap_done(struct cste_task *task)
{
    struct cste_mapping *mapping = mapping_of(task);

    cste_mailbox_post(mapping->box, &mapping->mail);
}

int cste_mapping_open(struct cste_mapping *mapping, uint64_t bytes, int node, struct cst_err *err)
{
    int rc;

    mapping->segment.mem = (struct cste_mem){.bytes = bytes,
                                             .sparse = mapping->sparse,
                                             .served = mapping->served,
                                             .id = mapping->segment.id,
                                             .machine = mapping->machine,
                                             .id_there = mapping->id_there,
                                             .file_offset = mapping->file_offset,
                                             .fresh = mapping->import && mapping->populate};
    if (mapping->import) {
        return CST_OK;
    }
    rc = cste_segments_check_fd(mapping->fd, bytes, err);
    return rc != CST_OK ? rc
                        : cste_device_map(mapping->device, mapping->fd, node, &mapping->segment.mem,
                                          &mapping->note, err);
}

bool cste_mapping_has_work(const struct cste_mapping *mapping)
{
    return mapping->import || mapping->populate || mapping->lock;
}

void cste_mapping_populate(struct cste_mapping *mapping, struct cste_thread_pool *lanes)
{
    mapping->lanes = lanes;
    if (!mapping->import) {
        submit_populate(mapping);
        return;
    }
    mapping->task = (struct cste_task){
        .piece = import_piece, .done = import_done, .n_pieces = 1, .class = CLASS_BACKGROUND};
    cste_thread_pool_submit(lanes, &mapping->task);
}

void cste_mapping_unmap(struct cste_mapping *mapping, struct cste_thread_pool *lanes)
{
    mapping->task = (struct cste_task){
        .piece = unmap_piece, .done = unmap_done, .n_pieces = 1, .class = CLASS_BACKGROUND};
    cste_thread_pool_submit(lanes, &mapping->task);
}

void cste_mapping_cancel(struct cste_mapping *mapping)
{
    struct cst_err err;

    (void)cst_err_set(&err, CST_ECANCELLED, "segment %u was dropped while it was being added",
                      mapping->segment.id);
    fail(mapping, &err);
}

void cste_mapping_close_fd(struct cste_mapping *mapping)
{
    if (mapping->fd >= 0) {
        (void)close(mapping->fd);
        mapping->fd = -1;
    }
}
