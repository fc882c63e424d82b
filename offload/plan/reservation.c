/* SPDX-License-Identifier: Apache-2.0 */
/* Updates on accelerators: device reservations, states that stay there, and k. If one simulated
 * rank represents all, there are device reservations for all ranks nevertheless, each with a link
 * of its own. */
#include "offload/plan/reservation.h"

#include "offload/layout/buffers.h"
#include "offload/gradient/lent_memory.h"
#include "offload/layout/packing.h"
#include "offload/plan/pipeline.h"
#include "proto/round_up.h"
#include "proto/size.h"

#include <inttypes.h>

#define MOST_BYTES (UINT64_C(1) << 52) /* Largest accelerator. */

static bool is_auto(const struct cst_search *s)
{
    return s->update_request == CST_PLAN_DEVICE_UPDATE_AUTO;
}

bool cst_plan_chooses_reservation(const struct cst_plan_config *c)
{
    return c->device_update_bytes == CST_PLAN_DEVICE_UPDATE_AUTO ||
           (c->device_update_bytes == 0 && c->device_states == CST_PLAN_DEVICE_UPDATE_AUTO);
}

int cst_plan_check_reservation(const struct cst_plan_config *c, struct cst_err *err)
{
    if (c->device_states == 0) {
        return CST_OK;
    }
    if (c->device_states != CST_PLAN_DEVICE_UPDATE_AUTO &&
        (c->device_update_bytes == 0 || c->device_update_bytes == CST_PLAN_DEVICE_UPDATE_AUTO)) {
        return cst_err_set(
            err, CST_EINVAL,
            "states that stay on devices (device_states) need memory for updates "
            "there (device_update_bytes), of a given size unless the plan chooses both");
    }
    if (c->states.moments != CST_MOMENTS_FP32 || c->states.grad_over_weight ||
        c->states.masters != CST_MASTERS_FP32) {
        return cst_err_set(err, CST_EINVAL,
                           "states that stay on devices (device_states) cannot be combined with "
                           "%s, or device_states to 0",
                           c->states.grad_over_weight
                               ? "gradients in the place of weights: leave grad_over_weight out"
                           : c->states.masters != CST_MASTERS_FP32
                               ? "split masters: set masters to fp32"
                               : "moments that are not fp32: set moments to fp32");
    }
    return CST_OK;
}

bool cst_reservation_is_chosen(const struct cst_search *s)
{
    return is_auto(s) && s->n_reservations > 0;
}

bool cst_reservation_may_split(const struct cst_search *s)
{
    return s->config->device_states == CST_PLAN_DEVICE_UPDATE_AUTO && s->n_reservations > 0 &&
           s->rates.devices[s->accelerator].update > 0;
}

bool cst_reservation_may_keep(const struct cst_search *s)
{
    return cst_reservation_may_split(s) && is_auto(s) && s->stands_for == 1 && !s->host;
}

bool cst_reservation_may_lend(const struct cst_search *s)
{
    return cst_reservation_is_chosen(s) && !s->host && s->world <= CST_CORE_MAX_UPDATE_DEVICES &&
           s->rates.devices[s->accelerator].update > 0;
}

/* Bytes of an accelerator if each of its ranks has @bytes. */
static uint64_t of_each(const struct cst_search *s, uint64_t bytes)
{
    return bytes / s->n_reservations * s->world +
           bytes % s->n_reservations * s->world / s->n_reservations;
}

uint64_t cst_reservation_of_rank(const struct cst_search *s, uint64_t bytes)
{
    return (bytes * s->n_reservations + s->world - 1) / s->world;
}

/* If accelerators are not the ranks' own devices, their memory is that in the rates, if it is
 * known. */
uint64_t cst_reservation_memory(const struct cst_search *s)
{
    uint64_t bytes = s->host ? s->rates.devices[s->accelerator].memory_bytes : 0;

    return bytes > 0 ? bytes : UINT64_MAX;
}

/* Check that a device reservation has at least one unit of the granularity: a smaller one would be
 * none. */
static int check_grain(const struct cst_search *s, struct cst_err *err)
{
    char wish[CST_SIZE_EXACT], least[CST_SIZE_EXACT];

    if (is_auto(s) || of_each(s, s->update_request) >= s->grain) {
        return CST_OK;
    }
    return cst_err_set(
        err, CST_EINVAL,
        "memory for updates (device_update_bytes) of %s of each rank's accelerator is too "
        "small: '%s' allocates memory in multiples of %s",
        cst_size_exact(s->update_request, wish), s->rates.devices[s->accelerator].name,
        cst_size_exact(s->grain, least));
}

static int check_memory(const struct cst_search *s, struct cst_err *err)
{
    uint64_t memory = cst_reservation_memory(s);
    uint64_t reserved = is_auto(s) ? 0 : of_each(s, s->update_request);
    uint64_t wish = s->config->device_states;
    uint64_t states = wish == CST_PLAN_DEVICE_UPDATE_AUTO ? 0 : of_each(s, wish);
    char all[CST_SIZE_TEXT], updates[CST_SIZE_TEXT], stay[CST_SIZE_TEXT], lacks[CST_SIZE_EXACT];

    if (reserved + states <= memory) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EPOOL,
                       "device memory of '%s', %s: updates take %s, states that stay there %s: %s "
                       "short",
                       s->rates.devices[s->accelerator].name, cst_size_text(memory, all),
                       cst_size_text(reserved, updates), cst_size_text(states, stay),
                       cst_size_exact(reserved + states - memory, lacks));
}

int cst_reservation_check(const struct cst_search *s, struct cst_err *err)
{
    const struct cst_plan_config *c = s->config;
    const struct cst_rates_device *device = &s->rates.devices[s->accelerator];
    int rc;

    if (c->overlap != CST_OVERLAP_COMMIT && !c->states.two_weights) {
        return cst_err_set(err, CST_EINVAL, "early and delayed updates need two weight rows");
    }
    if ((c->device_update_bytes > MOST_BYTES && !is_auto(s)) ||
        (c->device_states > MOST_BYTES && c->device_states != CST_PLAN_DEVICE_UPDATE_AUTO)) {
        return cst_err_set(err, CST_EINVAL, "%" PRIu64 " bytes of an accelerator",
                           c->device_update_bytes > MOST_BYTES && !is_auto(s)
                               ? c->device_update_bytes
                               : c->device_states);
    }
    if (s->lends && (c->device_update_bytes != 0 || c->device_states != 0)) {
        return cst_err_set(err, CST_EINVAL,
                           "pools that lend memory for updates cannot be combined with "
                           "device_update_bytes or device_states");
    }
    if (s->lends && device->update <= 0) {
        return cst_err_set(err, CST_EINVAL, "rates: device '%s': update is not known",
                           device->name);
    }
    if (s->update_request == 0 || (is_auto(s) && s->n_reservations == 0)) {
        return cst_plan_check_reservation(c, err);
    }
    if (s->n_reservations == 0) {
        return cst_err_set(err, CST_EINVAL,
                           "memory for updates on accelerators (device_update_bytes): the rates "
                           "have no accelerator");
    }
    if (device->update <= 0 && !is_auto(s)) {
        return cst_err_set(err, CST_EINVAL, "rates: device '%s': update is not known",
                           device->name);
    }
    if (cst_optimizer_of_matrices(c->states.optimizer) && cst_rates_products(device) <= 0) {
        return cst_err_set(err, CST_EINVAL,
                           "rates: device '%s': neither products, for updates by Muon, nor flops "
                           "is known",
                           device->name);
    }
    rc = cst_plan_check_reservation(c, err);
    if (rc == CST_OK) {
        rc = check_grain(s, err);
    }
    return rc == CST_OK ? check_memory(s, err) : rc;
}

static uint32_t engine_of(const struct cst_search *s, uint32_t i)
{
    return (s->config->n_nodes == 0 ? 1 : s->config->n_nodes) + i;
}

/* Bytes of each device reservation: the sum of its ranks' shares, rounded down to the
 * granularity. */
static uint64_t reservation_of_each(const struct cst_search *s, const struct cst_plan_point *point)
{
    uint64_t bytes = of_each(s, point->device_update_bytes);

    return bytes - bytes % s->grain;
}

void cst_reservation_devices(const struct cst_search *s, const struct cst_plan_point *point,
                             struct cst_layout_config *config)
{
    for (uint32_t i = 0; point->device_states > 0 && i < s->n_reservations; i++) {
        config->devices[config->n_devices++] =
            (struct cst_layout_device){.engine = engine_of(s, i),
                                       .bytes = of_each(s, point->device_states),
                                       .grain = s->grain,
                                       .reservation_bytes = reservation_of_each(s, point)};
    }
}

/* Bytes of a device reservation with buffers of @bytes and a place for the gradient of each chunk
 * that fits them. */
static uint64_t with_held(const struct cst_layout *layout, uint64_t bytes)
{
    struct cst_buffers buffers;
    uint64_t n = 0;

    cst_buffers_divide(&buffers, layout, bytes);
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        n += cst_buffers_hold(&buffers, chunk);
    }
    return bytes + n * buffers.kept_bytes;
}

uint64_t cst_reservation_bytes(const struct cst_search *s, const struct cst_plan_point *point,
                               const struct cst_layout *layout)
{
    uint64_t want;

    if (point->update_classes == 0 || s->n_reservations == 0) {
        return 0;
    }
    if (!is_auto(s)) {
        return s->update_request;
    }
    want = cst_buffers_want(layout, point->update_classes);
    want = point->keeps_gradients ? with_held(layout, want) : want;
    want = cst_round_up(cst_reservation_of_rank(s, want), CST_SEARCH_GRAIN);
    return of_each(s, want) <= cst_reservation_memory(s) ? want : 0;
}

/* Bytes of the device reservation without places for gradients. A gradient is kept only if it is
 * the only contribution, which is not so if one rank represents several. */
static uint64_t without_held(const struct cst_layout *layout, uint64_t bytes)
{
    struct cst_buffers buffers;

    cst_buffers_divide(&buffers, layout, bytes);
    return buffers.n > 0 ? buffers.n * buffers.bytes : bytes;
}

/* The engines whose memory the accelerator of @engine cannot access. If one rank represents all,
 * its accelerator stands for several that cannot access each other's memory. */
static struct cst_set find_unreachable(const struct cst_search *s,
                                       const struct cst_plan_point *point, uint32_t engine)
{
    struct cst_set others = {{0}};

    if (cst_search_is_apart(s)) {
        others = cst_set_range(0, CST_SET_MAX);
    }
    if (cst_search_stands_for(s, point) == 1) {
        cst_set_drop(&others, engine);
    }
    return others;
}

void cst_search_pools(const struct cst_search *s, const struct cst_plan_point *point,
                      const struct cst_layout *layout, uint32_t world, struct cst_core_pool *pools)
{
    uint32_t n_nodes = s->config->n_nodes == 0 ? 1 : s->config->n_nodes;

    for (uint32_t rank = 0; rank < world; rank++) {
        pools[rank] =
            (struct cst_core_pool){.tier = s->host ? CST_TIER_HOST : n_nodes + rank,
                                   .worker_copies = !s->host && s->config->worker_copies &&
                                                    !layout->states.grad_over_weight,
                                   .unreachable = find_unreachable(s, point, n_nodes + rank)};
        for (uint32_t i = 0; i < layout->n_classes; i++) {
            pools[rank].parts[i].n_blocks = point->n_blocks[i];
            pools[rank].parts[i].blocks_per_slab = point->n_blocks[i]; /* One slab per class. */
            pools[rank].parts[i].first_slab = i;
        }
    }
}

uint32_t cst_reservation_lent_buffers(const struct cst_search *s,
                                      const struct cst_plan_point *point,
                                      const struct cst_layout *layout, uint32_t rank)
{
    struct cst_core_pool pools[CST_CORE_MAX_WORLD];
    struct cst_lent_division division;

    cst_search_pools(s, point, layout, s->world, pools);
    cst_lent_memory_divide(layout, rank, pools[rank].parts, &division);
    return division.buffers.n;
}

uint32_t cst_reservation_list(const struct cst_search *s, const struct cst_plan_point *point,
                              const struct cst_layout *layout,
                              struct cst_core_device_reservation list[CST_CORE_MAX_UPDATE_DEVICES],
                              uint32_t *interleave)
{
    uint32_t n = cst_search_updates_there(point) ? s->n_reservations : 0;
    struct cst_core_pool pools[CST_CORE_MAX_WORLD];
    struct cst_interleave machine = {0};

    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = reservation_of_each(s, point);

        list[i] = (struct cst_core_device_reservation){
            .engine = engine_of(s, i),
            .bytes = cst_search_stands_for(s, point) > 1 ? without_held(layout, bytes) : bytes,
            .lent = point->lends,
            .rank = point->lends ? i : 0};
    }
    cst_search_pools(s, point, layout, s->world, pools);
    cst_pipeline_describe(&machine, layout, list, n, pools, point->lends ? s->world : 1);
    cst_pipeline_rates(&machine, &s->rates, &s->rates.devices[s->accelerator]);
    *interleave =
        s->config->interleave_given ? s->config->interleave : cst_interleave_choose(&machine);
    return n;
}
