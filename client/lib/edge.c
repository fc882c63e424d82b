/* SPDX-License-Identifier: Apache-2.0 */
/* cst_put and cst_take: arrays pass between two ranks in memory that both map. */
#include "client/lib/edge.h"

#include "client/lib/job.h"
#include "client/lib/shared_wait.h"
#include "offload/layout/edge.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_MS 300000 /* The default of [job] timeout in cistern.conf(5). */

/* -- slots ------------------------------------------------------------------------------------ */

/* An edge, and what is looked for in it. */
struct search {
    const struct cst_layout_edge *e;
    struct cstc_edge *edge;
    uint64_t attempt;
    uint32_t number;
    uint32_t found; /* The slot that was found. */
};

static struct cst_shared_head *head_of(const struct cstc_edge *edge)
{
    return edge->memory.base;
}

static _Atomic uint64_t *word_of(const struct cstc_edge *edge, uint32_t slot)
{
    return (_Atomic uint64_t *)(void *)((char *)edge->memory.base + cst_edge_word_offset(slot));
}

static void *address_of(const struct search *s)
{
    char *first = s->edge->apart.base != NULL
                      ? (char *)s->edge->apart.base
                      : (char *)s->edge->memory.base + cst_edge_head_bytes(s->e->n_slots);

    return first + s->found * cst_edge_slot_stride(s->e->slot_bytes);
}

static bool find(struct search *s, uint32_t first,
                 bool (*fits)(const struct search *s, uint64_t word))
{
    for (uint32_t i = 0; i < s->e->n_slots; i++) {
        uint32_t slot = (first + i) % s->e->n_slots;

        if (s->edge->slots[slot].use == CSTC_SLOT_UNUSED &&
            fits(s, atomic_load(word_of(s->edge, slot)))) {
            s->found = slot;
            return true;
        }
    }
    return false;
}

static bool is_free(const struct search *s, uint64_t word)
{
    return cst_edge_is_free(word, s->attempt);
}

static bool is_wanted(const struct search *s, uint64_t word)
{
    return word == cst_edge_full(s->attempt, s->number);
}

static bool find_free(void *arg)
{
    struct search *s = arg;

    return find(s, s->edge->next_put, is_free);
}

static bool find_array(void *arg)
{
    struct search *s = arg;

    return find(s, s->edge->next_take, is_wanted);
}

/* Find the slot of @s->number that is between the two parts of @use. */
static bool find_begun(struct search *s, enum cstc_slot_use use)
{
    for (uint32_t slot = 0; slot < s->e->n_slots; slot++) {
        if (s->edge->slots[slot].use == use && s->edge->slots[slot].number == s->number) {
            s->found = slot;
            return true;
        }
    }
    return false;
}

/* -- checks ----------------------------------------------------------------------------------- */

static int check_edge(const struct cst_job *job, int edge, enum cstc_slot_use use,
                      struct cst_err *err)
{
    const struct cst_layout_edge *e;
    uint32_t rank;
    int rc = cstc_edge_check(job, edge, err);

    if (rc != CST_OK) {
        return rc;
    }
    e = &job->model.edges[edge];
    rank = use == CSTC_SLOT_PUT ? e->from : e->to;
    if (rank != job->rank && !cst_layout_edge_is_shared(e)) {
        return cst_err_set(err, CST_EINVAL, "edge '%s': rank %u %s, not rank %u", e->name, rank,
                           use == CSTC_SLOT_PUT ? "puts" : "takes", job->rank);
    }
    return CST_OK;
}

/* Check a call for @edge, and fill in @s. */
static int begin(struct cst_job *job, int edge, uint32_t number, enum cstc_slot_use use,
                 struct search *s, struct cst_err *err)
{
    int rc = cstc_job_check_step(job, err);

    if (rc == CST_OK && job->pending.kind != CSTC_PENDING_NONE) {
        rc = cst_err_set(err, CST_EBUSY, "job '%s': another call is pending", job->name);
    }
    rc = rc == CST_OK ? check_edge(job, edge, use, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    *s = (struct search){.e = &job->model.edges[edge],
                         .edge = &job->edges[edge],
                         .attempt = job->attempt,
                         .number = number};
    /* The word has number + 1 in 32 bits. */
    return number < UINT32_MAX ? CST_OK
                               : cst_err_set(err, CST_EINVAL, "edge '%s': number %u is too large",
                                             s->e->name, number);
}

static int check_data(const struct cst_layout_edge *e, const void *data, uint64_t bytes,
                      struct cst_err *err)
{
    if (bytes > e->slot_bytes) {
        return cst_err_set(err, CST_EINVAL, "edge '%s': %llu bytes, but a slot has %llu", e->name,
                           (unsigned long long)bytes, (unsigned long long)e->slot_bytes);
    }
    if (data == NULL && bytes > 0) {
        return cst_err_set(err, CST_EINVAL, "edge '%s': no data", e->name);
    }
    return CST_OK;
}

/* -- copies ----------------------------------------------------------------------------------- */

static struct cstc_slot *slot_of(const struct search *s)
{
    return &s->edge->slots[s->found];
}

/* The device has failed in a copy: the step is void. Returns the status, with its cause in *err. */
static int fail(struct cst_job *job, const struct cst_err *why, struct cst_err *err)
{
    cstc_device_failed(job, why);
    return cstc_job_check_step(job, err);
}

/* Wait until the device does nothing with the slot any more. @blocks: this thread waits. Otherwise
 * the device's stream does. */
static int await_device(struct cst_job *job, const struct cstc_slot *slot, bool blocks,
                        struct cst_err *err)
{
    struct cst_err why;
    int rc = slot->device_copy == 0
                 ? CST_OK
                 : job->device.calls->await_array(job->device.arg, slot->device_copy, blocks, &why);

    return rc == CST_OK ? CST_OK : fail(job, &why, err);
}

/* The worker is about to access the slot that it has opened, itself or by work in its stream. If
 * the wait for the device fails, the step is void, and the next sync closes the slot. */
static int await_quiet(struct cst_job *job, struct search *s, struct cst_err *err)
{
    return await_device(job, slot_of(s), !s->edge->on_device, err);
}

/* The worker has enqueued the work that accesses the slot of @s: wait until it is done. What comes
 * next in an edge to oneself is done after this work, and need not wait. */
static int await_work(struct cst_job *job, const struct search *s, struct cst_err *err)
{
    struct cst_err why;
    uint64_t number;
    int rc;

    if (!s->edge->on_device || cst_layout_edge_is_own(s->e)) {
        return CST_OK;
    }
    rc = job->device.calls->copy_array(job->device.arg, NULL, NULL, 0, &number, &why);
    if (rc == CST_OK) {
        rc = job->device.calls->await_array(job->device.arg, number, true, &why);
    }
    return rc == CST_OK ? CST_OK : fail(job, &why, err);
}

/* Start the copy of @bytes bytes between @data and the slot that is open: by the device, or by the
 * library's thread. */
static int start_copy(struct cst_job *job, struct search *s, void *data, uint64_t bytes,
                      struct cst_err *err)
{
    struct cstc_slot *slot = slot_of(s);
    const bool put = slot->use == CSTC_SLOT_PUT;
    struct cst_err why;
    int rc;

    slot->copy.to = put ? address_of(s) : data;
    slot->copy.from = put ? data : address_of(s);
    slot->copy.bytes = bytes;
    if (!cstc_edge_by_device(job)) {
        return cstc_copier_start(&job->copier, &slot->copy, err);
    }
    if (bytes == 0) { /* @data may be NULL. */
        return CST_OK;
    }
    rc = job->device.calls->copy_array(job->device.arg, slot->copy.to, slot->copy.from, bytes,
                                       &slot->device_copy, &why);
    return rc == CST_OK ? CST_OK : fail(job, &why, err);
}

/* Wait for the copy that was started. What comes next in an edge to oneself is done by the same
 * device in its order, so that this thread need not wait. */
static int finish_copy(struct cst_job *job, const struct search *s, bool blocks,
                       struct cst_err *err)
{
    struct cstc_slot *slot = slot_of(s);

    if (!cstc_edge_by_device(job)) {
        cstc_copier_wait(&job->copier, &slot->copy);
        return CST_OK;
    }
    return await_device(job, slot, blocks || !cst_layout_edge_is_own(s->e), err);
}

/* -- put and take ----------------------------------------------------------------------------- */

/* Nobody else can put or take in an edge to oneself: explain why the wait would not end. */
static int refuse_wait(const struct search *s, enum cstc_slot_use use, struct cst_err *err)
{
    if (use == CSTC_SLOT_PUT) {
        return cst_err_set(err, CST_EINVAL,
                           "edge '%s': all %u slots are full, and no other rank takes from it",
                           s->e->name, s->e->n_slots);
    }
    return cst_err_set(err, CST_ENOTFOUND, "edge '%s': array %u was not put", s->e->name,
                       s->number);
}

/* Find the slot of @s->number in an edge of all ranks. Nothing waits there: what a rank takes was
 * put before the rank got the unit in which it takes. */
static int find_shared(struct search *s, enum cstc_slot_use use, struct cst_err *err)
{
    if (s->number >= s->e->n_slots) {
        return cst_err_set(err, CST_EINVAL,
                           "edge '%s': array %u, but in an edge of all ranks with %u slots the "
                           "numbers are 0 to %u",
                           s->e->name, s->number, s->e->n_slots, s->e->n_slots - 1);
    }
    s->found = s->number;
    if (s->edge->slots[s->found].use != CSTC_SLOT_UNUSED) {
        return cst_err_set(err, CST_EINVAL, "edge '%s': array %u is being %s", s->e->name,
                           s->number, use == CSTC_SLOT_PUT ? "taken" : "put");
    }
    if (use == CSTC_SLOT_TAKEN && !is_wanted(s, atomic_load(word_of(s->edge, s->found)))) {
        return cst_err_set(err, CST_ENOTFOUND, "edge '%s': array %u was not put", s->e->name,
                           s->number);
    }
    return CST_OK;
}

static int wait_for(struct cst_job *job, struct search *s, enum cstc_slot_use use,
                    struct cst_err *err)
{
    bool (*ready)(void *arg) = use == CSTC_SLOT_PUT ? find_free : find_array;
    const uint32_t timeout_ms = job->timeout_ms > 0 ? job->timeout_ms : DEFAULT_TIMEOUT_MS;
    int rc;

    if (cst_layout_edge_is_shared(s->e)) {
        return find_shared(s, use, err);
    }
    if (ready(s)) {
        return CST_OK;
    }
    if (cst_layout_edge_is_own(s->e)) {
        return refuse_wait(s, use, err);
    }
    rc = cstc_shared_wait(job, head_of(s->edge), 2, ready, s, timeout_ms, err);
    if (rc != CST_ETIMEDOUT) {
        return rc;
    }
    return use == CSTC_SLOT_PUT
               ? cst_err_set(err, rc, "edge '%s': rank %u freed no slot in %u ms (array %u)",
                             s->e->name, s->e->to, timeout_ms, s->number)
               : cst_err_set(err, rc, "edge '%s': rank %u did not put array %u in %u ms",
                             s->e->name, s->e->from, s->number, timeout_ms);
}

/* Do the first part of a put or a take. */
static int open_slot(struct cst_job *job, int edge, uint32_t number, enum cstc_slot_use use,
                     struct search *s, struct cst_err *err)
{
    int rc = begin(job, edge, number, use, s, err);

    if (rc == CST_OK && find_begun(s, use)) {
        rc = cst_err_set(err, CST_EINVAL, "edge '%s': array %u is being %s already", s->e->name,
                         number, use == CSTC_SLOT_PUT ? "put" : "taken");
    }
    rc = rc == CST_OK ? wait_for(job, s, use, err) : rc;
    if (rc == CST_OK) {
        s->edge->slots[s->found].use = use;
        s->edge->slots[s->found].number = number;
        *(use == CSTC_SLOT_PUT ? &s->edge->next_put : &s->edge->next_take) =
            (s->found + 1) % s->e->n_slots;
    }
    return rc;
}

/* Do the second part: the slot is full, or free again. */
static void close_slot(struct search *s)
{
    bool put = s->edge->slots[s->found].use == CSTC_SLOT_PUT;

    s->edge->slots[s->found].use = CSTC_SLOT_UNUSED;
    s->edge->slots[s->found].started = false;
    if (!put && cst_layout_edge_is_shared(s->e)) {
        return; /* The array can be taken again. */
    }
    atomic_store(word_of(s->edge, s->found),
                 put ? cst_edge_full(s->attempt, s->number) : cst_edge_empty(s->attempt));
    if (!cst_layout_edge_is_own(s->e)) {
        cst_shared_notify(head_of(s->edge));
    }
}

static int end(struct cst_job *job, int edge, uint32_t number, enum cstc_slot_use use,
               struct cst_err *err)
{
    struct search s;
    int rc = begin(job, edge, number, use, &s, err);

    if (rc == CST_OK && (!find_begun(&s, use) || s.edge->slots[s.found].started)) {
        rc = cst_err_set(err, CST_EINVAL, "edge '%s': array %u is not being %s", s.e->name, number,
                         use == CSTC_SLOT_PUT ? "put" : "taken");
    }
    rc = rc == CST_OK ? await_work(job, &s, err) : rc;
    if (rc == CST_OK) {
        close_slot(&s);
    }
    return rc;
}

int cst_put_begin(struct cst_job *job, int edge, uint32_t number, void **slot, struct cst_err *err)
{
    struct search s;
    int rc = open_slot(job, edge, number, CSTC_SLOT_PUT, &s, err);

    rc = rc == CST_OK ? await_quiet(job, &s, err) : rc;
    if (rc == CST_OK) {
        *slot = address_of(&s);
    }
    return rc;
}

int cst_put_end(struct cst_job *job, int edge, uint32_t number, struct cst_err *err)
{
    return end(job, edge, number, CSTC_SLOT_PUT, err);
}

int cst_take_begin(struct cst_job *job, int edge, uint32_t number, const void **slot,
                   struct cst_err *err)
{
    struct search s;
    int rc = open_slot(job, edge, number, CSTC_SLOT_TAKEN, &s, err);

    rc = rc == CST_OK ? await_quiet(job, &s, err) : rc;
    if (rc == CST_OK) {
        *slot = address_of(&s);
    }
    return rc;
}

int cst_take_end(struct cst_job *job, int edge, uint32_t number, struct cst_err *err)
{
    return end(job, edge, number, CSTC_SLOT_TAKEN, err);
}

/* Open the slot of a put or take of @bytes bytes of @data. */
static int open_for(struct cst_job *job, int edge, uint32_t number, enum cstc_slot_use use,
                    const void *data, uint64_t bytes, struct search *s, struct cst_err *err)
{
    int rc = begin(job, edge, number, use, s, err);

    rc = rc == CST_OK ? check_data(s->e, data, bytes, err) : rc;
    return rc == CST_OK ? open_slot(job, edge, number, use, s, err) : rc;
}

/* Copy at once, in this thread if the job has no GPU. */
static int copy_now(struct cst_job *job, struct search *s, void *data, uint64_t bytes,
                    struct cst_err *err)
{
    if (cstc_edge_by_device(job)) {
        int rc = start_copy(job, s, data, bytes, err);

        return rc == CST_OK ? finish_copy(job, s, true, err) : rc;
    }
    if (bytes > 0 && slot_of(s)->use == CSTC_SLOT_PUT) { /* @data may be NULL. */
        memcpy(address_of(s), data, bytes);
    } else if (bytes > 0) {
        memcpy(data, address_of(s), bytes);
    }
    return CST_OK;
}

int cst_put(struct cst_job *job, int edge, uint32_t number, const void *data, uint64_t bytes,
            struct cst_err *err)
{
    struct search s;
    int rc = open_for(job, edge, number, CSTC_SLOT_PUT, data, bytes, &s, err);

    /* The copy only reads @data. */
    rc = rc == CST_OK ? copy_now(job, &s, (void *)(uintptr_t)data, bytes, err) : rc;
    if (rc == CST_OK) {
        close_slot(&s);
    }
    return rc;
}

int cst_take(struct cst_job *job, int edge, uint32_t number, void *data, uint64_t bytes,
             struct cst_err *err)
{
    struct search s;
    int rc = open_for(job, edge, number, CSTC_SLOT_TAKEN, data, bytes, &s, err);

    rc = rc == CST_OK ? copy_now(job, &s, data, bytes, err) : rc;
    if (rc == CST_OK) {
        close_slot(&s);
    }
    return rc;
}

/* -- copies beside the computation ------------------------------------------------------------ */

/* Begin a put or take of @bytes bytes of @data. */
static int start(struct cst_job *job, int edge, uint32_t number, enum cstc_slot_use use, void *data,
                 uint64_t bytes, struct cst_err *err)
{
    struct search s;
    int rc = open_for(job, edge, number, use, data, bytes, &s, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = start_copy(job, &s, data, bytes, err);
    slot_of(&s)->started = rc == CST_OK;
    if (rc != CST_OK) {
        slot_of(&s)->use = CSTC_SLOT_UNUSED; /* The word has not changed. */
    }
    return rc;
}

int cst_put_start(struct cst_job *job, int edge, uint32_t number, const void *data, uint64_t bytes,
                  struct cst_err *err)
{
    /* The copy only reads @data. */
    return start(job, edge, number, CSTC_SLOT_PUT, (void *)(uintptr_t)data, bytes, err);
}

int cst_take_start(struct cst_job *job, int edge, uint32_t number, void *data, uint64_t bytes,
                   struct cst_err *err)
{
    return start(job, edge, number, CSTC_SLOT_TAKEN, data, bytes, err);
}

/* Find the slot whose copy was started for @s->number. */
static bool find_started(struct search *s)
{
    for (uint32_t slot = 0; s->edge->slots != NULL && slot < s->e->n_slots; slot++) {
        if (s->edge->slots[slot].started && s->edge->slots[slot].number == s->number) {
            s->found = slot;
            return true;
        }
    }
    return false;
}

int cst_edge_wait(struct cst_job *job, int edge, uint32_t number, struct cst_err *err)
{
    struct search s = {.number = number, .attempt = job->attempt};
    bool started = false;
    int rc = cstc_edge_check(job, edge, err), checked;

    if (rc != CST_OK) {
        return rc;
    }
    s.e = &job->model.edges[edge];
    if (job->edges != NULL) {
        s.edge = &job->edges[edge];
        started = !job->client->forked && find_started(&s);
    }
    if (started) {
        rc = finish_copy(job, &s, false, err);
    }
    checked = cstc_job_check_step(job, err);
    rc = checked == CST_OK ? rc : checked;
    if (rc == CST_OK && !started) {
        rc = cst_err_set(err, CST_EINVAL, "edge '%s': no copy of array %u was started", s.e->name,
                         number);
    }
    if (rc == CST_OK) {
        close_slot(&s);
    }
    return rc;
}

void cstc_edge_forget(struct cst_job *job)
{
    for (uint32_t i = 0; job->edges != NULL && i < job->model.n_edges; i++) {
        struct cstc_slot *slots = job->edges[i].slots;

        for (uint32_t k = 0; slots != NULL && k < job->model.edges[i].n_slots; k++) {
            cstc_copier_wait(&job->copier, &slots[k].copy);
            (void)await_device(job, &slots[k], true, NULL); /* A failure makes the step void. */
            slots[k].use = CSTC_SLOT_UNUSED;
            slots[k].started = false;
            slots[k].device_copy = 0;
        }
    }
}
