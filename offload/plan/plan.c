/* SPDX-License-Identifier: Apache-2.0 */
/* The search from begin to end: check, candidates, simulations of the promising ones, neighbours of
 * the best, answer. */
#include "offload/plan/search.h"

#include "offload/buffers.h"
#include "offload/packing.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define DEFAULT_EVENTS 600000
#define ANY_PRICE                                                                                  \
    16 /* If there is no other plan, its simulation may use this many times max_events. */
#define HOST_GRAIN 4096 /* Simulated accelerators allocate pages of the host. */
#define MOST_ACTIVATIONS (UINT64_MAX / 4)
#define MOST_COMPUTE_NS 1e16 /* 116 days. */

/* -- open ------------------------------------------------------------------------------------- */

/* Sum of the operators' activation bytes. Declared numbers can be anything, so the sum is limited
 * and cannot overflow. */
static uint64_t count_activations(const struct cst_plan_config *config)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < config->model->n_operators; i++) {
        uint64_t more = config->model->operators[i].activation_bytes;

        bytes += more < MOST_ACTIVATIONS - bytes ? more : MOST_ACTIVATIONS - bytes;
    }
    return config->budget->activation_bytes > 0 ? config->budget->activation_bytes : bytes;
}

/* True if all ranks do the same, because every tensor belongs to all ranks. */
static bool all_alike(const struct cst_model *model, uint32_t world)
{
    uint64_t all = world >= 64 ? UINT64_MAX : (UINT64_C(1) << world) - 1;

    for (uint32_t t = 0; t < model->n_tensors; t++) {
        if ((model->groups[model->tensors[t].group] & all) != all) {
            return false;
        }
    }
    return true;
}

/* Compute time of the busiest rank in ns, if it never waits. */
static double count_compute(const struct cst_search *s)
{
    const struct cst_plan_config *c = s->config;
    double share = c->flops_share > 0 ? c->flops_share : 1, most = 0;
    double rate = s->rates.devices[0].flops * share / (s->host ? s->world : 1);

    for (uint32_t rank = 0; rank < s->world; rank++) {
        double flops = 0;

        for (uint32_t i = 0; i < c->model->n_operators; i++) {
            const struct cst_layout_operator *o = &c->model->operators[i];
            double uses =
                o->expected_uses > 0 && o->expected_uses < 1 ? (double)o->expected_uses : 1;

            flops += (o->ranks >> rank & 1) != 0 ? uses * o->flops : 0;
        }
        most = flops > most ? flops : most;
    }
    return most * (c->recompute ? 4 : 3) * c->micro_batches / rate * 1e9;
}

static int check_config(const struct cst_plan_config *c, struct cst_err *err)
{
    int rc = cst_rates_check(c->rates, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (c->world == 0 || c->world > CST_CORE_MAX_WORLD || c->micro_batches == 0 ||
        c->model->n_tensors == 0 || c->device >= c->rates->n_devices) {
        return cst_err_set(err, CST_EINVAL,
                           "a plan for %" PRIu32 " ranks, %" PRIu32 " micro-batches, %" PRIu32
                           " tensors, device %" PRIu32 " of %" PRIu32,
                           c->world, c->micro_batches, c->model->n_tensors, c->device,
                           c->rates->n_devices);
    }
    if (c->states.grad_over_weight &&
        (c->states.two_weights || (c->runtime_only && c->micro_batches > 1))) {
        return cst_err_set(
            err, CST_EINVAL,
            "gradients in the place of weights (grad_over_weight) cannot be combined with %s",
            c->states.two_weights ? "early or delayed updates" : "micro-batches");
    }
    if (c->rates->devices[c->device].flops <= 0) {
        return cst_err_set(err, CST_EINVAL, "rates: device '%s': flops is not known",
                           c->rates->devices[c->device].name);
    }
    return CST_OK;
}

/* Convert the rates of updates, which are measured for AdamW with fp32 moments: time is
 * proportional to bytes. */
static void scale_updates(struct cst_search *s)
{
    static const struct cst_layout_states measured = {.optimizer = CST_OPTIMIZER_ADAMW};
    double faster =
        cst_layout_update_bytes(&measured, 2) / cst_layout_update_bytes(&s->config->states, 2);

    for (uint32_t i = 0; i < s->rates.n_devices; i++) {
        s->rates.devices[i].update *= faster;
    }
    for (uint32_t i = 0; i < s->rates.n_nodes; i++) {
        s->rates.nodes[i].update *= faster;
    }
}

static bool is_processor(const struct cst_rates_device *device)
{
    return strcmp(device->name, "host") == 0;
}

/* Find the ranks' device, and the device that makes device updates. */
static void choose_devices(struct cst_search *s)
{
    const struct cst_plan_config *c = s->config;
    uint32_t n = s->world;

    s->rates.devices[0] = c->rates->devices[c->device];
    s->rates.n_devices = 1;
    s->host = is_processor(&s->rates.devices[0]);
    s->grain = c->device_grain > 0 ? c->device_grain : s->host ? HOST_GRAIN : CST_SEARCH_GRAIN;
    s->room_request =
        cst_plan_chooses_room(c) ? CST_PLAN_DEVICE_UPDATE_AUTO : c->device_update_bytes;
    if (s->room_request == 0) {
        return;
    }
    if (s->host) {
        if (c->accelerator >= c->rates->n_devices ||
            is_processor(&c->rates->devices[c->accelerator])) {
            return;
        }
        s->accelerator = s->rates.n_devices++;
        s->rates.devices[s->accelerator] = c->rates->devices[c->accelerator];
        n = c->n_accelerators > 0 && c->n_accelerators < n ? c->n_accelerators : n;
    }
    s->n_rooms = n < CST_CORE_MAX_UPDATE_DEVICES ? n : CST_CORE_MAX_UPDATE_DEVICES;
}

/* Number of ranks that one simulated rank represents: all, if they do the same. Exception: with
 * more than two ranks, updates may make the sums of the real ranks' contributions in other cases
 * than for one rank. */
static uint32_t count_alike(const struct cst_search *s)
{
    bool fuses = s->host && s->config->overlap == CST_OVERLAP_EARLY && s->world > 2;

    return !fuses && all_alike(s->config->model, s->world) ? s->world : 1;
}

int cst_search_open(struct cst_search *s, const struct cst_plan_config *config, struct cst_err *err)
{
    uint64_t limit = config->budget->device_bytes;
    int rc = check_config(config, err);

    if (rc != CST_OK) {
        return rc;
    }
    *s = (struct cst_search){.config = config,
                             .rates = *config->rates,
                             .world = config->world,
                             .stands_for = 1,
                             .best = NONE,
                             .room = UINT64_MAX / 4};
    choose_devices(s);
    scale_updates(s);
    s->stands_for = count_alike(s);
    s->activation_bytes = s->host ? 0 : count_activations(config);
    if (limit != CST_PLAN_NO_LIMIT) {
        s->room = limit > s->activation_bytes ? limit - s->activation_bytes : 0;
    }
    s->compute_ns = count_compute(s);
    if (!(s->compute_ns <= MOST_COMPUTE_NS)) {
        return cst_err_set(
            err, CST_EINVAL,
            "a step of %g s: the operators' flops, or those of '%s', cannot be right",
            s->compute_ns * 1e-9, s->rates.devices[0].name);
    }
    rc = cst_search_check_rooms(s, err);
    if (rc != CST_OK) {
        return rc;
    }
    s->events_left = config->max_events == 0 ? DEFAULT_EVENTS : config->max_events;
    s->events_most = ANY_PRICE * s->events_left;
    return CST_OK;
}

bool cst_search_stops(struct cst_search *s)
{
    s->stopped = s->stopped || (s->config->stop != NULL && s->config->stop(s->config->stop_arg));
    return s->stopped;
}

/* -- the answer ----------------------------------------------------------------------------- */

/* Bytes that each rank must request so that each accelerator has @bytes. */
static uint64_t of_rank(const struct cst_search *s, uint64_t bytes)
{
    return (bytes * s->n_rooms + s->world - 1) / s->world;
}

/* Compute the least memory with which a device reservation fits one chunk, and one chunk's states
 * fit. */
static void describe_least(const struct cst_search *s, const struct cst_layout *layout,
                           struct cst_plan_choice *choice)
{
    const struct cst_layout_device device = {.grain = s->grain};

    if (s->n_rooms > 0) {
        choice->least_room = of_rank(s, cst_align_up(cst_buffers_least(layout), s->grain));
        choice->least_states = of_rank(s, cst_layout_device_least(layout, &device));
    }
}

static void describe_room(const struct cst_search *s, const struct cst_plan_try *try,
                          const struct cst_layout *layout, struct cst_plan_choice *choice)
{
    struct cst_core_room rooms[CST_CORE_MAX_UPDATE_DEVICES];
    struct cst_buffers buffers;

    describe_least(s, layout, choice);
    if (cst_search_rooms(s, try, layout, rooms, &choice->interleave) > 0) {
        cst_buffers_divide(&buffers, layout, rooms[0].bytes);
        choice->n_buffers = buffers.n;
    }
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        choice->n_staying += layout->chunks[c].device != 0;
    }
    choice->state_bytes += (layout->device_bytes + s->world - 1) / s->world;
}

static int make_choice(struct cst_search *s, const struct cst_plan_try *try,
                       struct cst_plan_choice *out, struct cst_err *err)
{
    struct cst_plan_choice choice = {
        .layout = cst_search_layout_config(s, try),
        .n_classes = try->n_sizes,
        .prefetch_depth = try->depth,
        .eviction = try->eviction,
        .grad = try->over ? CST_PLAN_GRAD_OVER : CST_PLAN_GRAD_BESIDE,
        .reduce_each = s->config->micro_batches > 1 && !try->once,
        .n_chunks = try->n_chunks,
        .pool_bytes = try->pool_bytes,
        .state_bytes = try->state_bytes,
        .device_update_bytes = try->device_update_bytes,
        .device_states = try->device_states,
        .activation_bytes = s->activation_bytes,
        .host_bytes = try->host_bytes,
        .disk_bytes = try->disk_bytes,
        .padding_bytes = try->padding_bytes,
        .bound_ns = try->bound_ns,
        .predicted = try->result,
    };
    struct cst_layout layout;
    int rc = cst_search_layout(s, try, &layout, err);

    if (rc != CST_OK) {
        return rc;
    }
    memcpy(choice.n_blocks, try->n_blocks, sizeof choice.n_blocks);
    describe_room(s, try, &layout, &choice);
    choice.device_rows = malloc(try->n_chunks);
    choice.disk_rows = malloc(try->n_chunks);
    if (choice.device_rows == NULL || choice.disk_rows == NULL) {
        free(choice.device_rows);
        free(choice.disk_rows);
        cst_layout_close(&layout);
        return cst_err_set(err, CST_ENOMEM, "no memory for a plan");
    }
    for (uint32_t c = 0; c < try->n_chunks; c++) {
        choice.device_rows[c] = cst_search_device_rows(try, &layout, c);
        choice.disk_rows[c] = cst_search_disk_rows(try, &layout, c);
    }
    choice.binds = try == &s->tries[s->best] ? cst_search_binds(s, try, &layout) : "";
    cst_layout_close(&layout);
    *out = choice;
    return CST_OK;
}

static void close_choice(struct cst_plan_choice *choice)
{
    free(choice->device_rows);
    free(choice->disk_rows);
    *choice = (struct cst_plan_choice){0};
}

void cst_plans_close(struct cst_plans *plans)
{
    close_choice(&plans->best);
    for (uint32_t i = 0; i < CST_PLAN_RUNNERS_UP; i++) {
        close_choice(&plans->runners_up[i].plan);
    }
    plans->n_runners_up = 0;
}

/* True if the points differ in more than the prefetch depth, and their steps by more than noise. */
static bool is_other(const struct cst_plan_try *a, const struct cst_plan_try *b)
{
    double x = (double)a->result.step_ns, y = (double)b->result.step_ns;

    if (x < (1 + CST_PLAN_NOISE) * y && y < (1 + CST_PLAN_NOISE) * x) {
        return false;
    }
    return a->sizes[0] != b->sizes[0] || a->n_device != b->n_device || a->once != b->once ||
           a->device_update_bytes != b->device_update_bytes || a->device_states != b->device_states;
}

static int pick_runners_up(struct cst_search *s, struct cst_plans *plans, struct cst_err *err)
{
    uint32_t picked[CST_PLAN_RUNNERS_UP + 1] = {s->best}, n = 1;
    int rc = CST_OK;

    while (n <= CST_PLAN_RUNNERS_UP && rc == CST_OK && !cst_search_stops(s)) {
        struct cst_plan_loser *loser = &plans->runners_up[n - 1];
        uint32_t next = NONE;

        for (uint32_t i = 0; i < s->n_tries; i++) {
            const struct cst_plan_try *try = &s->tries[i];
            bool other = try->replayed && try->result.step_ns != UINT64_MAX;

            for (uint32_t k = 0; k < n; k++) {
                other = other && is_other(try, &s->tries[picked[k]]);
            }
            if (other && (next == NONE || cst_search_is_better(try, &s->tries[next]))) {
                next = i;
            }
        }
        if (next == NONE) {
            break;
        }
        rc = make_choice(s, &s->tries[next], &loser->plan, err);
        if (rc == CST_OK) {
            cst_search_why(&s->tries[next], &s->tries[s->best], loser->why);
            picked[n++] = next;
            plans->n_runners_up++;
        }
    }
    return rc;
}

static int cannot_fit(const struct cst_search *s, struct cst_err *err)
{
    int rc = cst_search_tell_lack(s, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (s->lack.err.status != 0) {
        if (err != NULL) {
            *err = s->lack.err;
        }
        return s->lack.err.status;
    }
    return cst_err_set(err, CST_EINVAL,
                       "chunks of %" PRIu64 " elements: no layout of the model has them",
                       s->config->chunk_elems);
}

static int stopped(struct cst_err *err)
{
    return cst_err_set(err, CST_ETIMEDOUT, "the search was stopped before it had a plan");
}

static int answer(struct cst_search *s, struct cst_plans *out, struct cst_err *err)
{
    struct cst_plans plans = {
        .n_candidates = s->n_tries, .n_replayed = s->n_replayed, .n_events = s->n_events};
    int rc;

    if (s->best == NONE) {
        return s->stopped && s->n_tries == 0 ? stopped(err) : cannot_fit(s, err);
    }
    s->best = cst_search_thriftiest(s);
    cst_search_why_states(s, plans.states_why);
    plans.n_layouts = s->n_layouts;
    plans.stopped = s->stopped;
    plans.without_states_ns = s->without_ns == UINT64_MAX ? 0 : s->without_ns;
    rc = pick_runners_up(s, &plans, err);
    if (rc == CST_OK) { /* The best plan is built last, so that the model has its layout. */
        rc = make_choice(s, &s->tries[s->best], &plans.best, err);
    }
    if (rc != CST_OK) {
        cst_plans_close(&plans);
        return rc;
    }
    *out = plans;
    return CST_OK;
}

static int look(struct cst_search *s)
{
    int rc = cst_search_list(s);

    rc = rc == CST_OK ? cst_search_replay(s) : rc;
    return rc == CST_OK ? cst_search_climb(s) : rc;
}

/* Search once more with states that stay on accelerators, if the planner chooses them. */
static int look_with_states(struct cst_search *s)
{
    if (s->config->device_states == CST_PLAN_DEVICE_UPDATE_AUTO) {
        s->without_ns = s->best == NONE ? UINT64_MAX : s->tries[s->best].result.step_ns;
    }
    if (!cst_search_may_split(s) || cst_search_stops(s)) {
        return CST_OK;
    }
    s->splits = true;
    s->most_layouts = s->n_layouts + cst_search_split_layouts(s->config->model);
    s->events_left = s->config->max_events == 0 ? DEFAULT_EVENTS : s->config->max_events;
    return look(s);
}

int cst_plan_search(struct cst_plans *out, const struct cst_plan_config *config,
                    struct cst_err *err)
{
    struct cst_search s;
    int rc = cst_search_open(&s, config, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = look(&s);
    rc = rc == CST_OK ? look_with_states(&s) : rc;
    if (rc == CST_OK) {
        rc = answer(&s, out, err);
    } else if (rc == CST_ETIMEDOUT) {
        rc = cst_err_set(err, rc, "%s", s.lack.err.text);
    } else {
        rc = cst_err_set(err, rc, "no memory to search for a plan");
    }
    free(s.tries);
    return rc;
}
