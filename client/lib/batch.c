/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/batch.h"

#include "proto/reason.h"

#include <stdlib.h>
#include <string.h>

/* Largest number of items in a batch, even if the daemon allows more. An item has at most 28 bytes,
 * so that 2048 items fit into a frame. */
#define MAX_ITEMS 2048

/* Batches are kept until the connection is over and reused, so that a step allocates no memory. */
struct cstc_batch {
    struct cstc_call call;        /* First field: the callback converts its address. */
    struct cst_job *job;          /* The owner. */
    struct cstc_batch *next;      /* Next in job->batches. */
    bool in_flight;               /* False: the batch can be used for new items. */
    bool awaited;                 /* The pending call waits for it. */
    uint32_t lease_epoch;         /* job->lease_epoch when it was sent. */
    uint32_t n_items;             /* Number of items. */
    uint32_t capacity;            /* Number of entries allocated in items. */
    struct cst_lease_item *items; /* The items in order. Owned. */
};

static bool is_fetch(const struct cst_lease_item *item)
{
    return item->kind == CST_LEASE_FETCH_WEIGHT || item->kind == CST_LEASE_FETCH_GRAD;
}

static bool is_hint(const struct cst_lease_item *item)
{
    return item->kind == CST_LEASE_PREFETCH || item->kind == CST_LEASE_EVICT;
}

/* Record the failure of @item. A hint that fails changes nothing. A fetch ahead that fails is
 * repeated as a fetch for which the worker waits, which then reports the failure. The failure of
 * any other item would be lost, and with it perhaps a gradient; therefore it makes the step
 * void. */
static void note_failure(struct cstc_batch *batch, const struct cst_lease_item *item,
                         const struct cst_err *why)
{
    struct cst_job *job = batch->job;
    bool is_void = why->status == CST_EPEERDIED || why->status == CST_ESTALE;

    if (batch->awaited && job->sequence.refused.status == CST_OK) {
        job->sequence.refused = *why;
    }
    if (is_void || (!is_fetch(item) && !is_hint(item))) {
        cstc_job_void(job, why);
    }
}

/* Check that the block of @result lies in the slabs of the size class of @chunk. */
static int check_place(const struct cst_job *job, uint32_t chunk, const Cistern__ItemResult *result,
                       struct cst_err *why)
{
    const struct cst_plan_class *class = &job->plan.classes[job->traits[chunk].size_class];
    const struct cstc_slabs *slabs = &job->class_slabs[job->traits[chunk].size_class];
    uint64_t block_bytes = 2 * class->chunk_elems;

    if (!result->has_slab || !result->has_offset || !result->has_generation) {
        return cst_err_set(why, CST_EPROTO, "a lease without a place");
    }
    /* The worker writes to this place: a wrong one would overwrite the memory of another chunk. */
    if (result->slab < slabs->first || result->slab - slabs->first >= slabs->n ||
        result->offset % 128 != 0 || job->slabs[result->slab].bytes < block_bytes ||
        result->offset > job->slabs[result->slab].bytes - block_bytes) {
        return cst_err_set(why, CST_EPROTO, "a lease at slab %u, offset %llu, outside of the pool",
                           result->slab, (unsigned long long)result->offset);
    }
    return CST_OK;
}

/* Take over a granted lease. If the daemon leaves the copy to the worker, the copy is started here.
 * If that fails, the step is void, and the lease counts as refused. */
static int take_lease(struct cstc_batch *batch, const struct cst_lease_item *item,
                      const Cistern__ItemResult *result, struct cst_err *why)
{
    struct cst_job *job = batch->job;
    struct cst_lease lease = {
        .slab = result->slab, .offset = result->offset, .generation = result->generation};
    struct cstc_load_home home = {.segment = result->home_segment,
                                  .offset = result->home_offset,
                                  .bytes = result->has_home_bytes ? result->home_bytes : 0};
    const void *row = NULL;
    int rc = check_place(job, item->chunk, result, why);

    if (rc == CST_OK && home.bytes > 0) {
        rc = cstc_load_find(job, item->chunk, &home, &row, why);
    }
    if (rc != CST_OK) {
        return rc;
    }
    if (home.bytes > 0 && cstc_load_start(job, item->chunk, row, home.bytes, &lease) != CST_OK) {
        cst_lease_refuse(&job->sequence.leases, item);
    } else {
        cst_lease_grant(&job->sequence.leases, item, &lease, result->has_hit && result->hit);
    }
    return CST_OK;
}

static int take_result(struct cstc_batch *batch, const struct cst_lease_item *item,
                       const Cistern__ItemResult *result, struct cst_err *why)
{
    struct cst_leases *leases = &batch->job->sequence.leases;

    if (result->status > 0 || result->status == CST_EAGAIN) {
        return cst_err_set(why, CST_EPROTO, "an item with status %d, which is not final",
                           result->status);
    }
    if (result->status < 0) {
        struct cst_err failure;

        (void)cst_err_set(&failure, result->status, "%s",
                          result->text != NULL ? result->text : cst_status_words(result->status));
        (void)cst_err_give_reason(&failure, cst_reason_of_number(result->reason), result->status);
        if (is_fetch(item)) {
            cst_lease_refuse(leases, item);
        }
        note_failure(batch, item, &failure);
        return CST_OK;
    }
    return is_fetch(item) ? take_lease(batch, item, result, why) : CST_OK;
}

static void fail_all(struct cstc_batch *batch, const struct cst_err *why)
{
    for (uint32_t i = 0; i < batch->n_items; i++) {
        if (is_fetch(&batch->items[i])) {
            cst_lease_refuse(&batch->job->sequence.leases, &batch->items[i]);
        }
        note_failure(batch, &batch->items[i], why);
    }
}

/* Process the results, which are in the order of the items. If one is impossible, the leases of the
 * worker and of the daemon may differ, and the connection ends. */
static void take_results(struct cstc_batch *batch)
{
    const Cistern__BatchDone *done = (const Cistern__BatchDone *)batch->call.reply;
    struct cst_err why = {0};
    int rc = CST_OK;

    if (done->n_results != batch->n_items) {
        rc = cst_err_set(&why, CST_EPROTO, "%zu results for a batch of %u items", done->n_results,
                         batch->n_items);
    }
    for (uint32_t i = 0; rc == CST_OK && i < batch->n_items; i++) {
        rc = take_result(batch, &batch->items[i], done->results[i], &why);
    }
    if (rc != CST_OK) {
        if (batch->awaited && batch->job->sequence.refused.status == CST_OK) {
            batch->job->sequence.refused = why;
        }
        (void)cstc_job_distrust(batch->job, &why, NULL);
    }
}

static void batch_done(struct cstc_call *call)
{
    struct cstc_batch *batch = (struct cstc_batch *)(void *)call;

    /* A sync since then has voided all leases, and has set n_awaited to 0. */
    if (batch->lease_epoch == batch->job->lease_epoch) {
        if (call->status == CST_OK) {
            take_results(batch);
        } else {
            fail_all(batch, &call->err);
        }
        batch->job->sequence.n_awaited -= batch->awaited ? 1 : 0;
    }
    batch->in_flight = false;
    cstc_call_reset(call);
}

/* The reply to Accumulate or PrepareStep. If Accumulate failed, the micro-batch would be mixed with
 * the next one. If PrepareStep failed, it is unknown with which parameters chunks are updated.
 * Therefore both failures make the step void. */
static void plain_done(struct cstc_call *call)
{
    struct cstc_batch *batch = (struct cstc_batch *)(void *)call;

    if (batch->lease_epoch == batch->job->lease_epoch && call->status != CST_OK) {
        cstc_job_void(batch->job, &call->err);
    }
    batch->in_flight = false;
    cstc_call_reset(call);
}

/* Return a batch that is not in flight, with space for @n items; NULL: out of memory. */
static struct cstc_batch *get_batch(struct cst_job *job, uint32_t n)
{
    struct cstc_batch *batch;
    struct cst_lease_item *items;

    for (batch = job->batches; batch != NULL && batch->in_flight; batch = batch->next) {
    }
    /* More batches than the daemon's credits are possible: the rest waits in the client's queue. */
    if (batch == NULL) {
        batch = calloc(1, sizeof *batch);
        if (batch == NULL) {
            return NULL;
        }
        batch->job = job;
        batch->next = job->batches;
        job->batches = batch;
    }
    if (batch->capacity < n) {
        items = realloc(batch->items, n * sizeof *items);
        if (items == NULL) {
            return NULL;
        }
        batch->items = items;
        batch->capacity = n;
    }
    return batch;
}

/* BatchItem.Kind and cst_lease_kind have the same numbers. */
static void fill_item(const struct cst_lease_item *item, Cistern__BatchItem *msg)
{
    cistern__batch_item__init(msg);
    msg->kind = (Cistern__BatchItem__Kind)item->kind;
    msg->chunk = item->chunk;
    msg->has_generation = !is_fetch(item) && !is_hint(item);
    msg->generation = item->lease.generation;
    msg->has_ahead = item->ahead;
    msg->ahead = item->ahead;
}

static int start_accumulate(struct cst_job *job, struct cstc_batch *batch, struct cst_err *err)
{
    Cistern__Accumulate msg = CISTERN__ACCUMULATE__INIT;

    msg.attempt = job->attempt;
    batch->call.done = plain_done;
    return cstc_call_start(job->client, &batch->call, CISTERN__MSG_TYPE__MSG_ACCUMULATE, &msg.base,
                           CISTERN__MSG_TYPE__MSG_OK, NULL, err);
}

static int start(struct cst_job *job, struct cstc_batch *batch, struct cst_err *err)
{
    /* Nearly all batches have at most 64 items, and need no allocation. */
    Cistern__BatchItem items[64], *pointers[64], *more = NULL, **more_pointers = NULL;
    Cistern__Batch msg;
    int rc = CST_ENOMEM;

    cistern__batch__init(&msg);
    msg.attempt = job->attempt;
    msg.n_items = batch->n_items;
    msg.items = pointers;
    if (batch->n_items > 64) {
        more = malloc(batch->n_items * sizeof *more);
        more_pointers = malloc(batch->n_items * sizeof *more_pointers);
        if (more == NULL || more_pointers == NULL) {
            goto out;
        }
        msg.items = more_pointers;
    }
    for (uint32_t i = 0; i < batch->n_items; i++) {
        msg.items[i] = more != NULL ? &more[i] : &items[i];
        fill_item(&batch->items[i], msg.items[i]);
    }
    batch->call.done = batch_done;
    rc = cstc_call_start(job->client, &batch->call, CISTERN__MSG_TYPE__MSG_BATCH, &msg.base,
                         CISTERN__MSG_TYPE__MSG_BATCH_DONE, &cistern__batch_done__descriptor, err);
out:
    free(more);
    free(more_pointers);
    return rc == CST_ENOMEM
               ? cst_err_set(err, rc, "no memory for a batch of %u items", batch->n_items)
               : rc;
}

static int send_some(struct cst_job *job, const struct cst_lease_item *items, uint32_t n,
                     bool awaited, struct cst_err *err)
{
    struct cstc_batch *batch = get_batch(job, n);
    int rc;

    if (batch == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a batch of %u items", n);
    }
    memcpy(batch->items, items, n * sizeof *items);
    batch->n_items = n;
    batch->awaited = awaited;
    batch->lease_epoch = job->lease_epoch;
    rc = items[0].kind == CST_LEASE_ACCUMULATE ? start_accumulate(job, batch, err)
                                               : start(job, batch, err);
    if (rc == CST_OK) {
        batch->in_flight = true;
        job->sequence.n_awaited += awaited ? 1 : 0;
    }
    return rc;
}

int cstc_batch_prepare(struct cst_job *job, Cistern__Hyper *hyper, struct cst_err *err)
{
    struct cstc_batch *batch = get_batch(job, 0);
    Cistern__PrepareStep msg = CISTERN__PREPARE_STEP__INIT;
    int rc;

    if (batch == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to prepare a step");
    }
    msg.attempt = job->attempt;
    msg.hyper = hyper;
    batch->n_items = 0;
    batch->awaited = false;
    batch->lease_epoch = job->lease_epoch;
    batch->call.done = plain_done;
    rc = cstc_call_start(job->client, &batch->call, CISTERN__MSG_TYPE__MSG_PREPARE_STEP, &msg.base,
                         CISTERN__MSG_TYPE__MSG_OK, NULL, err);
    batch->in_flight = rc == CST_OK;
    return rc;
}

/* Cancel items that could not be sent. Fetches are not held. Earlier items of the same list may be
 * sent already; therefore the step is void. */
static void give_up(struct cst_job *job, const struct cst_lease_item *items, uint32_t n,
                    const struct cst_err *why)
{
    for (uint32_t i = 0; i < n; i++) {
        if (is_fetch(&items[i])) {
            cst_lease_refuse(&job->sequence.leases, &items[i]);
        }
    }
    cstc_job_void(job, why);
}

/* Return how many of the @n items at @items are sent in the next message: one ACCUMULATE alone, or
 * up to @max items of other kinds. */
static uint32_t take_run(const struct cst_lease_item *items, uint32_t n, uint32_t max)
{
    uint32_t run = 0;

    while (run < n && run < max && items[run].kind != CST_LEASE_ACCUMULATE) {
        run++;
    }
    return run > 0 ? run : 1;
}

int cstc_batch_send(struct cst_job *job, const struct cst_lease_item *items, uint32_t n_items,
                    bool awaited, struct cst_err *err)
{
    uint32_t max = job->client->max_batch < MAX_ITEMS ? job->client->max_batch : MAX_ITEMS;
    struct cst_err why = {0};

    for (uint32_t at = 0; at < n_items;) {
        uint32_t n = take_run(items + at, n_items - at, max);
        int rc = send_some(job, items + at, n, awaited, &why);

        if (rc != CST_OK) {
            give_up(job, items + at, n_items - at, &why);
            if (err != NULL) {
                *err = why;
            }
            return rc;
        }
        at += n;
    }
    return CST_OK;
}

void cstc_batch_free_all(struct cst_job *job)
{
    while (job->batches != NULL) {
        struct cstc_batch *batch = job->batches;

        job->batches = batch->next;
        cstc_call_reset(&batch->call);
        free(batch->call.queued);
        free(batch->items);
        free(batch);
    }
}
