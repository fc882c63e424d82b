/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/worker/sequence.h"

#include "proto/reason.h"

#include <stdlib.h>

int cst_sequence_init(struct cst_sequence *s, const struct cst_lease_model *model,
                      uint32_t micro_batches, bool stream, const struct cst_sequence_calls *calls,
                      void *arg, struct cst_err *err)
{
    int rc;

    *s = (struct cst_sequence){.calls = calls, .arg = arg, .stream = stream};
    rc = cst_lease_init(&s->leases, model, err);
    if (rc == CST_OK && stream) {
        rc = cst_fence_init(&s->fences, model->n_chunks, micro_batches, err);
    }
    if (rc == CST_OK && stream) {
        s->copies = calloc(model->n_chunks + 1ul, sizeof *s->copies);
        rc = s->copies != NULL ? CST_OK
                               : cst_err_set(err, CST_ENOMEM,
                                             "no memory for the copies of %u "
                                             "chunks",
                                             model->n_chunks);
    }
    if (rc != CST_OK) {
        cst_sequence_close(s);
    }
    return rc;
}

void cst_sequence_close(struct cst_sequence *s)
{
    cst_lease_close(&s->leases);
    cst_fence_close(&s->fences);
    free(s->copies);
    *s = (struct cst_sequence){0};
}

void cst_sequence_forget(struct cst_sequence *s)
{
    cst_lease_forget(&s->leases);
    s->n_awaited = 0;
    s->wanted = s->asked = s->flushed = false;
}

/* -- sending -------------------------------------------------------------------------------- */

/* The device has failed. Planned fetches were not sent, so that they are not held. */
static int fail(struct cst_sequence *s, const struct cst_err *why, struct cst_err *err)
{
    cst_lease_give_up(&s->leases);
    return s->calls->failed(s->arg, why, err);
}

static int await(struct cst_sequence *s, uint64_t copy, struct cst_err *err)
{
    int rc;

    /* Copies are in order: the stream waits already for this one or a later one. */
    if (copy <= s->awaited_copy) {
        return CST_OK;
    }
    rc = s->calls->await(s->arg, copy, err);
    if (rc == CST_OK) {
        s->awaited_copy = copy;
        s->marked = false; /* The next mark must come after this wait. */
    }
    return rc;
}

static int put_mark(struct cst_sequence *s, struct cst_err *err)
{
    int rc = CST_OK;

    if (!s->marked) {
        rc = s->calls->mark(s->arg, &s->mark, err);
        s->marked = rc == CST_OK;
    }
    return rc;
}

/* The await comes before the mark, so that a passed mark means that the copies are done, too. */
static int mark_given_back(struct cst_sequence *s, struct cst_err *err)
{
    uint64_t copy = 0;
    int rc;

    for (uint32_t i = 0; i < s->leases.n_items; i++) {
        const struct cst_lease_item *item = &s->leases.items[i];

        if (item->kind == CST_LEASE_RELEASE && s->copies[item->chunk] > copy) {
            copy = s->copies[item->chunk];
        }
    }
    rc = await(s, copy, err);
    return rc == CST_OK ? put_mark(s, err) : rc;
}

/* Keep the planned items that must wait for the stream. */
static int hold(struct cst_sequence *s, struct cst_err *err)
{
    struct cst_err why; /* Not cleared: the text is long, and this is done for each operator. */
    int rc;

    cst_fence_take_back(&s->fences, &s->leases);
    if (cst_fence_is_needed(&s->leases)) {
        rc = mark_given_back(s, &why);
        if (rc != CST_OK) {
            return fail(s, &why, err);
        }
        /* If the mark is known to be passed, the owner will not report it again, and the items are
         * sent at once. */
        if (s->mark > s->passed) {
            cst_fence_hold(&s->fences, &s->leases, s->mark);
        }
    } else if (s->fences.n > 0) {
        cst_fence_hold(&s->fences, &s->leases, s->mark); /* An EVICT may have to wait. */
    }
    return CST_OK;
}

static int send_planned(struct cst_sequence *s, bool awaited, struct cst_err *err)
{
    int rc = s->stream ? hold(s, err) : CST_OK;

    if (rc == CST_OK) {
        rc = s->calls->send(s->arg, s->leases.items, s->leases.n_items, awaited, err);
        cst_lease_clear(&s->leases);
    }
    return rc;
}

int cst_sequence_hint(struct cst_sequence *s, struct cst_err *err)
{
    return send_planned(s, false, err);
}

int cst_sequence_pass(struct cst_sequence *s, struct cst_err *err)
{
    const struct cst_lease_item *items;
    uint32_t n;

    if (s->fences.n == 0) {
        return CST_OK;
    }
    items = cst_fence_pass(&s->fences, s->passed, &n);
    return s->calls->send(s->arg, items, n, false, err);
}

int cst_sequence_drain(struct cst_sequence *s, struct cst_err *err)
{
    int rc;

    cst_fence_drop(&s->fences);
    rc = await(s, s->last_copy, err);
    s->marked = false; /* The program may have enqueued work outside of operators. */
    return rc == CST_OK ? put_mark(s, err) : rc;
}

void cst_sequence_copied(struct cst_sequence *s, uint32_t chunk, uint64_t number)
{
    s->last_copy = s->copies[chunk] = number;
}

/* -- begin ---------------------------------------------------------------------------------- */

/* Tell the daemon, once for an operator, that the worker now waits for the fetches ahead: the
 * daemon cannot know otherwise. */
static int want(struct cst_sequence *s, struct cst_err *err)
{
    int rc = CST_OK;

    if (!s->wanted) {
        cst_lease_want(&s->leases);
        rc = s->calls->send(s->arg, s->leases.items, s->leases.n_items, false, err);
        cst_lease_clear(&s->leases);
        s->wanted = rc == CST_OK;
    }
    return rc == CST_OK ? CST_EAGAIN : rc;
}

/* Send the fetches of what the operator lacks. */
static int ask(struct cst_sequence *s, uint32_t op, bool backward, struct cst_err *err)
{
    int rc;

    if (cst_lease_must_settle(&s->leases, op, backward)) {
        rc = s->calls->poll(s->arg, err);
        if (rc != CST_OK) {
            return rc;
        }
        if (cst_lease_must_settle(&s->leases, op, backward)) {
            return want(s, err);
        }
    }
    /* While the end of a micro-batch waits for the stream, no gradient of the next micro-batch is
     * fetched: it would belong to the wrong one. */
    if (backward && s->fences.n_turns > 0) {
        return CST_EAGAIN;
    }
    rc = cst_lease_begin(&s->leases, op, backward, err);
    if (rc != CST_OK) {
        (void)cst_err_prefix(err, "operator '%s'", s->leases.model.operators[op].name);
        return rc;
    }
    s->refused.status = CST_OK;
    return send_planned(s, true, err);
}

static int await_op(struct cst_sequence *s, uint32_t op, struct cst_err *err)
{
    uint64_t copy = 0;
    uint32_t n;
    const uint32_t *chunks = cst_lease_op_chunks(&s->leases, op, &n);
    struct cst_err why;

    for (uint32_t i = 0; s->stream && i < n; i++) {
        copy = s->copies[chunks[i]] > copy ? s->copies[chunks[i]] : copy;
    }
    return await(s, copy, &why) == CST_OK ? CST_OK : fail(s, &why, err);
}

/* All fetches are answered. */
static int enter(struct cst_sequence *s, uint32_t op, bool backward, struct cst_err *err)
{
    int rc;

    if (s->refused.status != CST_OK) {
        return cst_err_give_reason(err, s->refused.reason,
                                   cst_err_set(err, s->refused.status, "operator '%s': %.500s",
                                               s->leases.model.operators[op].name,
                                               s->refused.text));
    }
    rc = await_op(s, op, err);
    if (rc == CST_OK) {
        cst_lease_ahead(&s->leases, op, backward);
        rc = send_planned(s, false, err);
    }
    if (rc == CST_OK) {
        s->marked = false; /* The program may now enqueue work after the newest mark. */
    }
    return rc;
}

int cst_sequence_begin(struct cst_sequence *s, uint32_t op, bool backward, struct cst_err *err)
{
    int rc = CST_OK;

    if (!s->asked) {
        rc = ask(s, op, backward, err);
        s->asked = rc == CST_OK;
    }
    if (rc == CST_OK && s->n_awaited > 0) {
        rc = CST_EAGAIN;
    }
    if (rc == CST_OK) {
        rc = enter(s, op, backward, err);
    }
    if (rc != CST_EAGAIN) {
        s->asked = s->wanted = false;
    }
    return rc;
}

/* -- ends ----------------------------------------------------------------------------------- */

/* Fill with zeros the gradients of @item's chunk that were not written in this micro-batch: a block
 * comes with undefined contents. The gaps between tensors are not cleared, because nobody reads
 * them. */
static int zero_unwritten(struct cst_sequence *s, const struct cst_lease_item *item,
                          struct cst_err *err)
{
    const struct cst_lease_chunk *chunk = &s->leases.chunks[item->chunk];
    int rc = CST_OK;

    for (uint32_t i = 0; rc == CST_OK && i < chunk->n_tensors; i++) {
        uint32_t tensor = s->leases.by_chunk[chunk->first_tensor + i];

        if (!s->leases.written[tensor]) {
            s->marked = false; /* The hand-in must wait for this work, too. */
            rc = s->calls->zero(s->arg, tensor, &item->lease, err);
        }
    }
    return rc;
}

/* Send the planned hand-ins, whose gradients are complete except for those that were not
 * written. */
static int hand_in(struct cst_sequence *s, struct cst_err *err)
{
    struct cst_err why;
    int rc = CST_OK;

    for (uint32_t i = 0; rc == CST_OK && i < s->leases.n_items; i++) {
        if (s->leases.items[i].kind == CST_LEASE_REDUCE_SCATTER) {
            rc = zero_unwritten(s, &s->leases.items[i], &why);
        }
    }
    return rc == CST_OK ? send_planned(s, false, err) : fail(s, &why, err);
}

int cst_sequence_end(struct cst_sequence *s, uint32_t op, bool backward, struct cst_err *err)
{
    cst_lease_end(&s->leases, op, backward);
    return hand_in(s, err);
}

int cst_sequence_accumulate(struct cst_sequence *s, struct cst_err *err)
{
    int rc;

    cst_lease_turn(&s->leases);
    rc = hand_in(s, err);
    if (rc == CST_OK) {
        cst_lease_reset_step(&s->leases);
    }
    return rc;
}

int cst_sequence_flush(struct cst_sequence *s, struct cst_err *err)
{
    int rc = CST_OK;

    /* Repeated calls must not plan the hand-ins again. */
    if (!s->flushed) {
        /* A lease that is granted after the flush would not be released. */
        if (s->leases.n_asked > 0) {
            return CST_EAGAIN;
        }
        cst_lease_flush(&s->leases);
        rc = hand_in(s, err);
        s->flushed = rc == CST_OK;
    }
    if (rc == CST_OK && s->fences.n > 0) {
        return CST_EAGAIN;
    }
    s->flushed = false;
    return rc;
}

void cst_sequence_stepped(struct cst_sequence *s)
{
    cst_lease_reset_step(&s->leases);
}
