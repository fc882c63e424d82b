/* SPDX-License-Identifier: Apache-2.0 */
/* A rank: offload/worker/sequence.h under the virtual clock. If the device is the processor,
 * the worker computes between begin and end of an operator. Else it enqueues the computation and
 * goes on, and what it gives back waits for the stream. */
#include "offload/simulate/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void advance(struct cst_sim_worker *w);

static const struct cst_model *model_of(const struct cst_sim_worker *w)
{
    return w->sim->config->core->model;
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

static int send_items(void *arg, const struct cst_lease_item *items, uint32_t n, bool awaited,
                      struct cst_err *err)
{
    struct cst_sim_worker *w = arg;
    struct cst_sim_batch *batch = n == 0 ? NULL : get_batch(w, n);

    if (n == 0) {
        return CST_OK;
    }
    if (batch == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a batch of rank %u", w->rank);
    }
    memcpy(batch->items, items, n * sizeof *items);
    batch->n_items = batch->n_left = n;
    batch->awaited = awaited;
    batch->used = true;
    w->sequence.n_awaited += awaited;
    cst_sim_timer(w->sim, w->sim->hop_ns, CST_SIM_BATCH,
                  (uint64_t)w->rank << 32 | (uint64_t)(batch - w->batches));
    return CST_OK;
}

/* The daemon processes the items of a batch. */
static void digest_batch(struct cst_sim_worker *w, uint32_t b)
{
    static const enum cst_event_kind kinds[] = {
        [CST_LEASE_FETCH_WEIGHT] = CST_EV_FETCH_WEIGHT, [CST_LEASE_FETCH_GRAD] = CST_EV_FETCH_GRAD,
        [CST_LEASE_RELEASE] = CST_EV_RELEASE,           [CST_LEASE_REDUCE_SCATTER] = CST_EV_HAND_IN,
        [CST_LEASE_ACCUMULATE] = CST_EV_ACCUMULATE,     [CST_LEASE_WANT] = CST_EV_WANT,
    };

    for (uint32_t i = 0; i < w->batches[b].n_items && w->sim->status == CST_OK; i++) {
        const struct cst_lease_item *item = &w->batches[b].items[i];
        struct cst_event event = {.kind = kinds[item->kind],
                                  .tag = tag_of(w, b, i),
                                  .rank = w->rank,
                                  .attempt = w->attempt,
                                  .chunk = item->chunk,
                                  .generation = item->lease.generation,
                                  .ahead = item->ahead};

        w->sim->event(w->sim, &event);
    }
}

void cst_sim_worker_reply(struct cst_sim_worker *w, uint32_t b, uint32_t item,
                          const struct cst_reply *reply)
{
    struct cst_sim_batch *batch = &w->batches[b];

    if (reply->status != CST_OK) {
        cst_sim_fail(w->sim, &reply->err);
        return;
    }
    batch->replies[item] = *reply;
    if (--batch->n_left == 0) {
        cst_sim_timer(w->sim, w->sim->hop_ns, CST_SIM_BATCH_END, (uint64_t)w->rank << 32 | b);
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
        cst_lease_grant(&w->sequence.leases, item, &lease, reply->hit);
    }
    w->sequence.n_awaited -= batch->awaited;
    batch->used = false;
}

/* -- the sequence's calls --------------------------------------------------------------------- */

/* Replies arrive by themselves. */
static int poll_replies(void *arg, struct cst_err *err)
{
    (void)arg;
    (void)err;
    return CST_OK;
}

/* The time in which gradients are filled with zeros is not simulated. */
static int zero(void *arg, uint32_t tensor, const struct cst_lease *lease, struct cst_err *err)
{
    (void)arg;
    (void)tensor;
    (void)lease;
    (void)err;
    return CST_OK;
}

/* The next computation waits for the copy that sequence.awaited_copy names. A mark does not wait
 * for it: weights that are given back unused leave a little earlier than those of a real worker. */
static int await(void *arg, uint64_t copy, struct cst_err *err)
{
    (void)arg;
    (void)copy;
    (void)err;
    return CST_OK;
}

static int mark(void *arg, uint64_t *out, struct cst_err *err)
{
    struct cst_sim_worker *w = arg;
    struct cst_sim_entry entry = {.is_mark = true, .number = w->sequence.mark + 1};

    (void)err;
    *out = entry.number;
    cst_sim_enqueue(w, &entry);
    /* The commands that wait for the mark are sent later, so no other mark can have been passed
     * here. */
    (void)cst_sim_run_stream(w);
    return CST_OK;
}

/* Not reached, because none of these calls fails. */
static int failed(void *arg, const struct cst_err *why, struct cst_err *err)
{
    (void)arg;
    *err = *why;
    return why->status;
}

const struct cst_sequence_calls cst_sim_worker_calls = {
    .send = send_items,
    .poll = poll_replies,
    .zero = zero,
    .await = await,
    .mark = mark,
    .failed = failed,
};

/* Whether the result of a function of the sequence is CST_OK. A failure ends the simulation. */
static bool is_done(struct cst_sim_worker *w, int rc, const struct cst_err *err)
{
    if (rc != CST_OK && rc != CST_EAGAIN) {
        cst_sim_fail(w->sim, err);
    }
    return rc == CST_OK;
}

/* -- operators ------------------------------------------------------------------------------ */

/* True if the ranks ask for units. A backward unit repeats its forward pass by itself. */
static bool is_dispatched(const struct cst_sim_worker *w)
{
    return model_of(w)->n_stages > 0;
}

static double work_of(const struct cst_sim_worker *w, const struct cst_sim_op *at)
{
    double flops = model_of(w)->operators[at->op].flops;
    bool repeats = w->sim->config->recompute && !is_dispatched(w);
    double passes = !at->backward ? 1 : repeats ? 3 : 2;

    return w->flops > 0 ? passes * flops / w->flops : 0;
}

/* True in the last micro-batch of the step. */
static bool is_last(const struct cst_sim_worker *w)
{
    return w->micro + 1 >= w->sim->config->micro_batches;
}

static void end_op(struct cst_sim_worker *w)
{
    const struct cst_sim_op *at = &w->ops[w->at];
    struct cst_err err;

    (void)is_done(w, cst_sequence_end(&w->sequence, at->op, at->backward, &err), &err);
    w->at++;
    w->state = w->at < w->n_ops ? CST_SIM_BEGIN : is_dispatched(w) ? CST_SIM_ASK : CST_SIM_FLUSH;
}

static void compute(struct cst_sim_worker *w)
{
    struct cst_sim_entry entry = {
        .at = w->ops[w->at], .step = w->step, .number = w->sequence.awaited_copy};

    entry.work = work_of(w, &entry.at);
    if (w->stream) {
        cst_sim_enqueue(w, &entry);
        (void)cst_sim_run_stream(w);
        end_op(w);
    } else {
        w->state = CST_SIM_COMPUTE;
        cst_sim_compute(w, &entry);
    }
}

static void begin_op(struct cst_sim_worker *w)
{
    const struct cst_sim_op *at = &w->ops[w->at];
    struct cst_err err;

    if (is_done(w, cst_sequence_begin(&w->sequence, at->op, at->backward, &err), &err)) {
        compute(w);
    }
}

/* -- micro-batches and steps ---------------------------------------------------------------- */

/* An operator with a share of the micro-batches is used whenever the multiples of the share pass an
 * integer, each operator with another offset. So it is the same in each simulation. */
static bool is_used(const struct cst_sim_worker *w, uint32_t op)
{
    const struct cst_layout_operator *o = &model_of(w)->operators[op];
    double share = o->expected_uses > 0 ? (double)o->expected_uses : 1;
    uint64_t k = (uint64_t)w->step * w->sim->config->micro_batches + w->micro;
    double from = fmod(op * 0.6180339887498949, 1);

    if (!cst_model_runs(model_of(w), o, w->rank)) {
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

/* Plan the unit that the rank was given: a forward pass, and a backward pass if it has one. */
static void plan_unit(struct cst_sim_worker *w)
{
    const struct cst_work_unit *unit = &w->unit;
    uint32_t n = 0;

    for (uint32_t op = 0; op < model_of(w)->n_operators; op++) {
        if (model_of(w)->operators[op].stage == unit->stage) {
            w->ops[n++] = (struct cst_sim_op){.op = op};
        }
    }
    for (uint32_t i = n; unit->backward && i-- > 0;) {
        w->ops[2 * n - 1 - i] = (struct cst_sim_op){.op = w->ops[i].op, .backward = true};
    }
    w->n_ops = unit->backward ? 2 * n : n;
    w->at = 0;
    w->state = n > 0 ? CST_SIM_BEGIN : CST_SIM_ASK;
}

/* End a unit, and ask for the next one. */
static void end_unit(struct cst_sim_worker *w)
{
    struct cst_err err;

    if (is_done(w, cst_sequence_flush(&w->sequence, &err), &err)) {
        w->state = CST_SIM_STEPPING;
        cst_sim_timer(w->sim, w->sim->hop_ns, CST_SIM_NEXT, (uint64_t)w->rank << 32);
    }
}

/* End a micro-batch that is not the last one. */
static void accumulate(struct cst_sim_worker *w)
{
    struct cst_err err;

    (void)is_done(w, cst_sequence_accumulate(&w->sequence, &err), &err);
    w->micro++;
    plan_micro_batch(w);
}

static void end_step(struct cst_sim_worker *w)
{
    struct cst_err err;

    if (is_done(w, cst_sequence_flush(&w->sequence, &err), &err)) {
        w->state = CST_SIM_STEPPING;
        cst_sim_timer(w->sim, w->sim->hop_ns, CST_SIM_STEP, (uint64_t)w->rank << 32);
    }
}

static void begin_step(struct cst_sim_worker *w)
{
    w->idle_since = w->sim->now;
    w->compute_ns = w->wait_ns = 0;
    w->micro = 0;
    if (w->step == w->sim->config->n_steps) {
        w->state = CST_SIM_OVER;
        return;
    }
    if (w->sim->config->core->policy.overlap == CST_OVERLAP_EARLY) {
        cst_sim_timer(w->sim, w->sim->hop_ns, CST_SIM_PREPARE, (uint64_t)w->rank << 32);
    }
    if (is_dispatched(w)) {
        w->state = CST_SIM_ASK;
    } else {
        plan_micro_batch(w);
    }
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
        case CST_SIM_ASK:
            end_unit(w);
            break;
        case CST_SIM_FLUSH:
            if (is_dispatched(w) || is_last(w)) {
                end_step(w);
            } else {
                accumulate(w);
            }
            break;
        case CST_SIM_SYNCING:
        case CST_SIM_COMPUTE:
        case CST_SIM_STEPPING:
        case CST_SIM_OVER:
            break;
        }
    } while (w->sim->status == CST_OK && (w->state != before || w->at != at || w->micro != micro));
}

/* -- events ----------------------------------------------------------------------------------- */

void cst_sim_worker_run(struct cst_sim_worker *w, uint64_t attempt)
{
    w->attempt = attempt;
    begin_step(w);
    advance(w);
}

/* Send STEP, or PREPARE of the next one, without clipping so that updates can be early; or NEXT. */
static void ask(struct cst_sim_worker *w, enum cst_event_kind kind, enum cst_sim_single item)
{
    struct cst_event event = {
        .kind = kind,
        .tag = tag_of(w, CST_SIM_NO_BATCH, item),
        .rank = w->rank,
        .attempt = w->attempt,
        .hyper = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .grad_scale = 1}};

    w->sim->event(w->sim, &event);
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
        ask(w, CST_EV_PREPARE, CST_SIM_TAG_PREPARE);
        break;
    case CST_SIM_STEP:
        ask(w, CST_EV_STEP, CST_SIM_TAG_STEP);
        break;
    case CST_SIM_NEXT:
        ask(w, CST_EV_NEXT, CST_SIM_TAG_NEXT);
        break;
    case CST_SIM_UNIT:
        cst_sequence_stepped(&w->sequence);
        if (w->has_unit) {
            plan_unit(w);
        } else {
            w->state = CST_SIM_FLUSH;
        }
        advance(w);
        break;
    case CST_SIM_STEP_END:
        w->step++;
        cst_sequence_stepped(&w->sequence);
        begin_step(w);
        advance(w);
        break;
    case CST_SIM_COMMAND:
    case CST_SIM_DONE:
    case CST_SIM_SEALED:
        break;
    }
}

static void computed(struct cst_sim_worker *w)
{
    uint64_t now = w->sim->now;

    w->compute_ns += now - w->compute_begin;
    w->idle_since = w->last_backward = now;
    cst_sim_interval(w->sim, CST_LANE_COMPUTE, w->rank, w->computing.at.op,
                     w->computing.at.backward, w->compute_begin);
    if (!w->stream) {
        end_op(w);
    }
}

void cst_sim_worker_ended(struct cst_sim_worker *w, struct cst_effort *effort)
{
    struct cst_err err;

    if (effort == &w->compute) {
        computed(w);
    } else {
        cst_sim_copied(w);
    }
    if (w->stream && cst_sim_run_stream(w)) {
        (void)is_done(w, cst_sequence_pass(&w->sequence, &err), &err);
    }
    advance(w);
}
