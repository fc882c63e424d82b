/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a search when it begins, and what its parts ask of it. */
#include "offload/plan/card.h"
#include "offload/plan/drives.h"
#include "offload/plan/reservation.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_EVENTS 600000
#define ANY_PRICE                                                                                  \
    16 /* If there is no other plan, its simulation may use this many times max_events. */
#define HOST_GRAIN 4096      /* Simulated accelerators allocate pages of the host. */
#define MOST_COMPUTE_NS 1e16 /* 116 days. */
#define MAX_PADDING 0.02     /* Default of max_padding. */
/* A step counts as longer by these shares if more is padding than max_padding, and if more is
 * padding than this share of the weights. */
#define COST_OF_PADDING 0.0025
#define COST_OF_HALF_EMPTY 0.02
#define HALF_EMPTY 0.5
/* A step counts as longer by this share, times the host memory in which states on drives are
 * updated or which they do not leave, divided by all states: states are on drives to save host
 * memory. */
#define COST_OF_WINDOWS 0.1
/* If more than this share of the states that are to be on drives is not, because their chunks are
 * too large, a step counts as this many times longer for each further share of 1. Only plans that
 * do better are then chosen, if there are any. */
#define DRIVES_LACK 0.1
#define COST_OF_LACK 100

/* Activations of the rank that has most of them. */
static uint64_t count_activations(const struct cst_plan_config *config)
{
    uint64_t most = 0;

    for (uint32_t r = 0; r < config->world; r++) {
        uint64_t bytes = cst_card_activations(config->model, r);

        most = bytes > most ? bytes : most;
    }
    return config->budget->activation_bytes > 0 ? config->budget->activation_bytes : most;
}

/* True if all ranks do the same, because every tensor belongs to all ranks. The ranks of a model
 * that is cut into stages do different stages. */
static bool all_alike(const struct cst_model *model, uint32_t world)
{
    const struct cst_set all = cst_set_range(0, world);

    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const struct cst_set ranks = cst_model_group_ranks(model, model->tensors[t].group);

        if (!cst_set_within(&all, &ranks)) {
            return false;
        }
    }
    return model->n_stages == 0 || world == 1;
}

/* Compute time of the busiest rank in ns, if it never waits. Ranks share stages evenly at best. */
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

            flops += cst_model_runs(c->model, o, rank) ? uses * o->flops : 0;
        }
        most = flops > most ? flops : most;
    }
    most /= c->model->n_stages > 0 ? s->world : 1;
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
        (c->states.two_weights || c->states.masters == CST_MASTERS_SPLIT || c->micro_batches > 1)) {
        return cst_err_set(
            err, CST_EINVAL,
            "gradients in the place of weights (grad_over_weight) cannot be combined with %s, or "
            "leave grad_over_weight out",
            c->states.two_weights
                ? "early or delayed updates, or with two versions of the weights: set overlap to "
                  "commit and versions to 1"
            : c->states.masters == CST_MASTERS_SPLIT ? "split masters: set masters to fp32"
                                                     : "micro-batches: set micro_batches to 1");
    }
    for (uint32_t i = 0; cst_optimizer_of_matrices(c->states.optimizer) && i < c->rates->n_nodes;
         i++) {
        if (c->rates->nodes[i].products <= 0) {
            return cst_err_set(err, CST_EINVAL,
                               "rates: nodes[%" PRIu32 "].products, the rate of Muon's products, "
                               "is not known: measure with cistern probe",
                               i);
        }
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
    double faster = cst_layout_update_bytes(&measured, 2, CST_BF16) /
                    cst_layout_update_bytes(&s->config->states, 2, CST_BF16);

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
    s->update_request =
        cst_plan_chooses_reservation(c) ? CST_PLAN_DEVICE_UPDATE_AUTO : c->device_update_bytes;
    s->lends = c->lent && !s->host;
    if (s->update_request == 0 && !s->lends) {
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
    s->n_reservations = n < CST_CORE_MAX_UPDATE_DEVICES ? n : CST_CORE_MAX_UPDATE_DEVICES;
}

/* Number of ranks that one simulated rank represents: all, if they do the same. Exception: with
 * more than two ranks, updates may make the sums of the real ranks' contributions in other cases
 * than for one rank. Of pools that lend memory, each is simulated. */
static uint32_t count_alike(const struct cst_search *s)
{
    bool fuses = s->host && s->config->overlap == CST_OVERLAP_EARLY && s->world > 2;

    return !fuses && !s->lends && all_alike(s->config->model, s->world) ? s->world : 1;
}

uint64_t cst_search_events(const struct cst_plan_config *config)
{
    return config->max_events == 0 ? DEFAULT_EVENTS : config->max_events;
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
                             .best = UINT32_MAX,
                             .most_layouts = UINT64_MAX,
                             .device_left = UINT64_MAX / 4};
    choose_devices(s);
    scale_updates(s);
    s->stands_for = count_alike(s);
    s->activation_bytes = s->host ? 0 : count_activations(config);
    if (limit != CST_PLAN_NO_LIMIT) {
        s->device_left = limit > s->activation_bytes ? limit - s->activation_bytes : 0;
    }
    s->compute_ns = count_compute(s);
    if (!(s->compute_ns <= MOST_COMPUTE_NS)) {
        return cst_err_set(
            err, CST_EINVAL,
            "a step of %g s: the operators' flops, or those of '%s', cannot be right",
            s->compute_ns * 1e-9, s->rates.devices[0].name);
    }
    rc = cst_reservation_check(s, err);
    rc = rc == CST_OK ? cst_drives_check(s, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    s->events_left = cst_search_events(config);
    s->events_most = ANY_PRICE * s->events_left;
    return CST_OK;
}

void cst_search_close(struct cst_search *s)
{
    if (s->is_built) {
        cst_layout_close(&s->layout);
    }
    free(s->points);
}

bool cst_search_stops(struct cst_search *s)
{
    s->stopped = s->stopped || (s->config->stop != NULL && s->config->stop(s->config->stop_arg));
    return s->stopped;
}

uint64_t cst_search_memory(const struct cst_plan_point *point)
{
    return point->pool_bytes + point->device_update_bytes + point->device_states;
}

double cst_search_cost(const struct cst_search *s, const struct cst_plan_point *point, uint64_t ns)
{
    double most = s->config->max_padding > 0 ? s->config->max_padding : MAX_PADDING;
    double padding = (double)point->padding_bytes / (double)s->config->model->weight_bytes;
    double more = padding <= most         ? 0
                  : padding <= HALF_EMPTY ? COST_OF_PADDING
                                          : COST_OF_HALF_EMPTY;

    if (point->drive_asked > 0) {
        double lacks = (double)point->drive_lacks / (double)point->drive_asked - DRIVES_LACK;

        more += COST_OF_WINDOWS * (double)(point->window_bytes + point->drive_stays) /
                (double)(point->drive_asked + point->drive_stays);
        more += lacks > 0 ? COST_OF_LACK * lacks : 0;
    }
    return (double)ns * (1 + more);
}

bool cst_search_is_better(const struct cst_search *s, const struct cst_plan_point *a,
                          const struct cst_plan_point *b)
{
    double cost_a = cst_search_cost(s, a, a->result.step_ns);
    double cost_b = cst_search_cost(s, b, b->result.step_ns);
    uint64_t memory_a = cst_search_memory(a), memory_b = cst_search_memory(b);

    if (cost_a != cost_b) {
        return cost_a < cost_b;
    }
    return memory_a != memory_b ? memory_a < memory_b : a->n_chunks < b->n_chunks;
}
