/* SPDX-License-Identifier: Apache-2.0 */
/* A rank: client/op.c, step.c and device.c under the virtual clock. If the device is the processor,
 * the worker computes between begin and end of an operator. Else it enqueues the computation and
 * goes on, and what it gives back waits for the stream. */
#include "offload/plan/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void advance(struct cst_sim_worker *w);

static const struct cst_model *model_of(const struct cst_sim_worker *w)
{
    return w->play->config->core->model;
}

/* -- batches -------------------------------------------------------------------------------- */

static uint64_t tag_of(const struct cst_sim_worker *w, uint32_t batch, uint32_t item)
{
    return ((uint64_t)w->rank + 1) << 56 | (uint64_t)batch << 32 | item;
}

static struct cst_sim_batch *get_batch(struct cst_sim_worker *w, uint32_t n)
{
    struct cst_sim_batch *batch, *grown;
    uint32_t i = 0;

    while (i < w->n_batches && w->batches[i].used) {
        i++;
    }
    if (i == w->n_batches) {
        grown = realloc(w->batches, (w->n_batches + 1ul) * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        w->batches = grown;
        w->batches[w->n_batches++] = (struct cst_sim_batch){.used = false};
    }
    batch = &w->batches[i];
    if (batch->capacity < n) {
        free(batch->items);
        free(batch->replies);
        batch->capacity = n;
        batch->items = malloc(n * sizeof *batch->items);
        batch->replies = malloc(n * sizeof *batch->replies);
    }
    return batch->items == NULL || batch->replies == NULL ? NULL : batch;
}

static void send_items(struct cst_sim_worker *w, const struct cst_lease_item *items, uint32_t n,
                       bool awaited)
{
    struct cst_sim_batch *batch = n == 0 ? NULL : get_batch(w, n);

    if (n == 0) {
        return;
    }
    if (batch == NULL) {
        cst_sim_out_of_memory(w->play);
        return;
    }
    memcpy(batch->items, items, n * sizeof *items);
    batch->n_items = batch->n_left = n;
    batch->awaited = awaited;
    batch->used = true;
    w->n_awaited += awaited;
    cst_sim_timer(w->play, w->play->hop_ns, CST_SIM_BATCH,
                  (uint64_t)w->rank << 32 | (uint64_t)(batch - w->batches));
}

/* The daemon processes the items of a batch. */
static void digest_batch(struct cst_sim_worker *w, uint32_t b)
{
    static const enum cst_event_kind kinds[] = {
        [CST_LEASE_FETCH_WEIGHT] = CST_EV_FETCH_WEIGHT, [CST_LEASE_FETCH_GRAD] = CST_EV_FETCH_GRAD,
        [CST_LEASE_RELEASE] = CST_EV_RELEASE,           [CST_LEASE_REDUCE_SCATTER] = CST_EV_HAND_IN,
        [CST_LEASE_ACCUMULATE] = CST_EV_ACCUMULATE,     [CST_LEASE_WANT] = CST_EV_WANT,
    };

    for (uint32_t i = 0; i < w->batches[b].n_items && w->play->status == CST_OK; i++) {
        const struct cst_lease_item *item = &w->batches[b].items[i];
        struct cst_event event = {.kind = kinds[item->kind],
                                  .tag = tag_of(w, b, i),
                                  .rank = w->rank,
                                  .attempt = w->attempt,
                                  .chunk = item->chunk,
                                  .generation = item->lease.generation,
                                  .ahead = item->ahead};

        cst_sim_event(w->play, &event);
    }
}

void cst_sim_worker_reply(struct cst_sim_worker *w, uint32_t b, uint32_t item,
                          const struct cst_reply *reply)
{
    struct cst_sim_batch *batch = &w->batches[b];

    if (reply->status != CST_OK) {
        cst_sim_fail(w->play, &reply->err);
        return;
    }
    batch->replies[item] = *reply;
    if (--batch->n_left == 0) {
        cst_sim_timer(w->play, w->play->hop_ns, CST_SIM_BATCH_END, (uint64_t)w->rank << 32 | b);
    }
}

static void take_results(struct cst_sim_worker *w, uint32_t b)
{
    struct cst_sim_batch *batch = &w->batches[b];

    for (uint32_t i = 0; i < batch->n_items; i++) {
        const struct cst_lease_item *item = &batch->items[i];
        const struct cst_reply *reply = &batch->replies[i];
        struct cst_lease lease = {
            .slab = reply->slab, .offset = reply->offset, .generation = reply->generation};

        if (item->kind != CST_LEASE_FETCH_WEIGHT && item->kind != CST_LEASE_FETCH_GRAD) {
            continue;
        }
        if (reply->home_bytes > 0) {
            cst_sim_copy_weights(w, item->chunk, reply->home_bytes);
        }
        cst_lease_grant(&w->leases, item, &lease, reply->hit);
    }
    w->n_awaited -= batch->awaited;
    batch->used = false;
}

static void give_back_passed(struct cst_sim_worker *w)
{
    uint32_t n;
    const struct cst_lease_item *items;

    if (w->fences.n > 0) {
        items = cst_fence_pass(&w->fences, w->passed, &n);
        send_items(w, items, n, false);
    }
}

static void mark(struct cst_sim_worker *w)
{
    struct cst_sim_entry entry = {.is_mark = true, .number = w->mark + 1};

    if (w->marked) {
        return;
    }
    w->marked = true;
    w->mark++;
    cst_sim_enqueue(w, &entry);
    /* The commands that wait for the mark are sent later, so no other mark can have been passed
     * here. */
    (void)cst_sim_run_stream(w);
}

/* Let the stream wait for the copies of weights that are given back. */
static void await_planned(struct cst_sim_worker *w)
{
    for (uint32_t i = 0; i < w->leases.n_items; i++) {
        const struct cst_lease_item *item = &w->leases.items[i];

        if (item->kind == CST_LEASE_RELEASE && w->copy_of[item->chunk] > w->waited_copy) {
            w->waited_copy = w->copy_of[item->chunk];
            w->marked = false;
        }
    }
}

/* Send what the books have planned, like client/device.c. */
static void send_plan(struct cst_sim_worker *w, bool awaited)
{
    if (w->stream) {
        cst_fence_take_back(&w->fences, &w->leases);
        if (cst_fence_is_needed(&w->leases)) {
            await_planned(w);
            mark(w);
            if (w->mark > w->passed) {
                cst_fence_hold(&w->fences, &w->leases, w->mark);
            }
        }
    }
    send_items(w, w->leases.items, w->leases.n_items, awaited);
}

/* -- operators ------------------------------------------------------------------------------ */

static double work_of(const struct cst_sim_worker *w, const struct cst_sim_op *at)
{
    double flops = model_of(w)->operators[at->op].flops;
    double passes = !at->backward ? 1 : w->play->config->recompute ? 3 : 2;

    return w->flops > 0 ? passes * flops / w->flops : 0;
}

static uint64_t copies_of(const struct cst_sim_worker *w, uint32_t op)
{
    uint32_t n;
    const uint32_t *chunks = cst_lease_op_chunks(&w->leases, op, &n);
    uint64_t number = w->waited_copy;

    for (uint32_t i = 0; i < n; i++) {
        number = w->copy_of[chunks[i]] > number ? w->copy_of[chunks[i]] : number;
    }
    return number;
}

/* True in the last micro-batch of the step. */
static bool is_last(const struct cst_sim_worker *w)
{
    return w->micro + 1 >= w->play->config->micro_batches;
}

static void end_op(struct cst_sim_worker *w)
{
    const struct cst_sim_op *at = &w->ops[w->at];

    if (!w->play->config->reduce_once || is_last(w)) {
        cst_lease_end(&w->leases, at->op, at->backward);
        send_plan(w, false);
    }
    w->at++;
    w->state = w->at < w->n_ops ? CST_SIM_BEGIN : CST_SIM_FLUSH;
}

static void compute(struct cst_sim_worker *w)
{
    struct cst_sim_entry entry = {.at = w->ops[w->at], .step = w->step};

    entry.work = work_of(w, &entry.at);
    entry.number = w->waited_copy = copies_of(w, entry.at.op);
    w->marked = false;
    if (w->stream) {
        cst_sim_enqueue(w, &entry);
        (void)cst_sim_run_stream(w);
        end_op(w);
    } else {
        w->state = CST_SIM_COMPUTE;
        cst_sim_compute(w, &entry);
    }
}

/* Tell the daemon, once per operator, that the worker now waits for what it fetched ahead. */
static void want(struct cst_sim_worker *w)
{
    if (w->wanted) {
        return;
    }
    w->wanted = true;
    cst_lease_want(&w->leases);
    send_items(w, w->leases.items, w->leases.n_items, false);
}

static void begin_op(struct cst_sim_worker *w)
{
    const struct cst_sim_op *at = &w->ops[w->at];
    struct cst_err err;

    if (cst_lease_must_settle(&w->leases, at->op, at->backward)) {
        want(w);
        return;
    }
    /* An ACCUMULATE still waits for the stream: gradients of the next micro-batch are opened after
     * it. */
    if (at->backward && w->fences.n_turns > 0) {
        return;
    }
    if (cst_lease_begin(&w->leases, at->op, at->backward, &err) != CST_OK) {
        (void)cst_err_prefix(&err, "operator '%s'", model_of(w)->operators[at->op].name);
        cst_sim_fail(w->play, &err);
        return;
    }
    w->state = CST_SIM_AWAIT;
    w->wanted = false;
    send_plan(w, true);
}

static void begun(struct cst_sim_worker *w)
{
    const struct cst_sim_op *at = &w->ops[w->at];

    cst_lease_ahead(&w->leases, at->op, at->backward);
    send_plan(w, false);
    compute(w);
}

/* -- micro-batches and steps ---------------------------------------------------------------- */

/* An operator with a share of the micro-batches is used whenever the multiples of the share pass an
 * integer, each operator with another offset. So it is the same in each simulation. */
static bool is_used(const struct cst_sim_worker *w, uint32_t op)
{
    const struct cst_layout_operator *o = &model_of(w)->operators[op];
    double share = o->expected_uses > 0 ? (double)o->expected_uses : 1;
    uint64_t k = (uint64_t)w->step * w->play->config->micro_batches + w->micro;
    double from = fmod(op * 0.6180339887498949, 1);

    if ((o->ranks >> w->rank & 1) == 0) {
        return false;
    }
    return share >= 1 || floor(from + (double)(k + 1) * share) > floor(from + (double)k * share);
}

static void plan_micro_batch(struct cst_sim_worker *w)
{
    uint32_t n = 0;

    for (uint32_t op = 0; op < model_of(w)->n_operators; op++) {
        if (is_used(w, op)) {
            w->ops[n++] = (struct cst_sim_op){.op = op};
        }
    }
    for (uint32_t i = n; i-- > 0;) {
        w->ops[n + (n - 1 - i)] = (struct cst_sim_op){.op = w->ops[i].op, .backward = true};
    }
    w->n_ops = 2 * n;
    w->at = 0;
    w->state = n > 0 ? CST_SIM_BEGIN : CST_SIM_FLUSH;
}

/* End a micro-batch that is not the last one. */
static void turn(struct cst_sim_worker *w)
{
    if (!w->play->config->reduce_once) {
        cst_lease_turn(&w->leases);
        send_plan(w, false);
        cst_lease_reset_step(&w->leases);
    }
    w->micro++;
    plan_micro_batch(w);
}

/* Hand in and give back everything that is left. */
static void flush(struct cst_sim_worker *w)
{
    if (!is_last(w)) {
        turn(w);
        return;
    }
    if (w->leases.asked_ahead != CST_LEASE_NONE) {
        return;
    }
    cst_lease_flush(&w->leases);
    send_plan(w, false);
    w->state = CST_SIM_SETTLE;
}

static void settle(struct cst_sim_worker *w)
{
    if (w->fences.n > 0) {
        return;
    }
    w->state = CST_SIM_STEPPING;
    cst_sim_timer(w->play, w->play->hop_ns, CST_SIM_STEP, (uint64_t)w->rank << 32);
}

static void begin_step(struct cst_sim_worker *w)
{
    w->idle_since = w->play->now;
    w->compute_ns = w->wait_ns = 0;
    w->micro = 0;
    if (w->step == w->play->config->n_steps) {
        w->state = CST_SIM_OVER;
        return;
    }
    if (w->play->config->core->policy.overlap == CST_OVERLAP_EARLY) {
        cst_sim_timer(w->play, w->play->hop_ns, CST_SIM_PREPARE, (uint64_t)w->rank << 32);
    }
    plan_micro_batch(w);
}

/* Continue until the worker has to wait. */
static void advance(struct cst_sim_worker *w)
{
    enum cst_sim_state before;
    uint32_t at, micro;

    do {
        before = w->state;
        at = w->at;
        micro = w->micro;
        switch (w->state) {
        case CST_SIM_BEGIN:
            begin_op(w);
            break;
        case CST_SIM_AWAIT:
            if (w->n_awaited == 0) {
                begun(w);
            }
            break;
        case CST_SIM_FLUSH:
            flush(w);
            break;
        case CST_SIM_SETTLE:
            settle(w);
            break;
        case CST_SIM_SYNCING:
        case CST_SIM_COMPUTE:
        case CST_SIM_STEPPING:
        case CST_SIM_OVER:
            break;
        }
    } while (w->play->status == CST_OK && (w->state != before || w->at != at || w->micro != micro));
}

/* -- events ----------------------------------------------------------------------------------- */

void cst_sim_worker_run(struct cst_sim_worker *w, uint64_t attempt)
{
    w->attempt = attempt;
    begin_step(w);
    advance(w);
}

/* Send STEP, or PREPARE of the next one, without clipping so that updates can be early. */
static void ask(struct cst_sim_worker *w, enum cst_event_kind kind)
{
    struct cst_event event = {
        .kind = kind,
        .tag = tag_of(w, CST_SIM_NO_BATCH,
                      kind == CST_EV_STEP ? CST_SIM_TAG_STEP : CST_SIM_TAG_PREPARE),
        .rank = w->rank,
        .attempt = w->attempt,
        .hyper = {.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .grad_scale = 1.0f}};

    cst_sim_event(w->play, &event);
}

void cst_sim_worker_timer(struct cst_sim_worker *w, enum cst_sim_timer kind, uint32_t batch)
{
    switch (kind) {
    case CST_SIM_BATCH:
        digest_batch(w, batch);
        break;
    case CST_SIM_BATCH_END:
        take_results(w, batch);
        advance(w);
        break;
    case CST_SIM_PREPARE:
        ask(w, CST_EV_PREPARE);
        break;
    case CST_SIM_STEP:
        ask(w, CST_EV_STEP);
        break;
    case CST_SIM_STEP_END:
        w->step++;
        cst_lease_reset_step(&w->leases);
        begin_step(w);
        advance(w);
        break;
    case CST_SIM_COMMAND:
    case CST_SIM_DONE:
        break;
    }
}

static void computed(struct cst_sim_worker *w)
{
    uint64_t now = w->play->now;

    w->compute_ns += now - w->compute_begin;
    w->idle_since = w->last_backward = now;
    cst_sim_interval(w->play, CST_LANE_COMPUTE, w->rank, w->computing.at.op,
                     w->computing.at.backward, w->compute_begin);
    if (!w->stream) {
        end_op(w);
    }
}

void cst_sim_worker_ended(struct cst_sim_worker *w, struct cst_effort *effort)
{
    if (effort == &w->compute) {
        computed(w);
    } else {
        cst_sim_copied(w);
    }
    if (w->stream && cst_sim_run_stream(w)) {
        give_back_passed(w);
    }
    advance(w);
}
