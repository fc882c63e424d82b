/* SPDX-License-Identifier: Apache-2.0 */
/* The drives have the tiers after those of the ranks' devices and of the accelerators that update.
 * The time that drives hide under, with passes forward and backward:
 *
 *   commit           reads - what was read ahead <= read x forward, writes <= write x (forward +
 *                    backward): an update waits for the commit, and the next forward pass for it
 *   early            reads + writes <= mixed x (backward + forward)
 *   delayed          reads + writes <= mixed x step */
#include "offload/plan/drives.h"

#include "offload/layout/buffers.h"

#include <inttypes.h>

static uint32_t first_drive(const struct cst_search *s)
{
    uint32_t n_nodes = s->config->n_nodes == 0 ? 1 : s->config->n_nodes;
    uint32_t devices = s->host ? 0 : s->world;

    return n_nodes + (devices > s->n_reservations ? devices : s->n_reservations);
}

bool cst_drives_have(const struct cst_search *s, uint32_t tier)
{
    return s->config->n_drives > 0 && tier >= first_drive(s);
}

int cst_drives_check(const struct cst_search *s, struct cst_err *err)
{
    const struct cst_plan_config *c = s->config;

    if (c->n_drives == 0) {
        return CST_OK;
    }
    if (c->n_drives > CST_CORE_MAX_UPDATE_DEVICES ||
        c->n_drives + s->n_reservations > CST_CORE_MAX_UPDATE_DEVICES) {
        return cst_err_set(err, CST_EINVAL,
                           "states on %" PRIu32 " drives and updates on %" PRIu32
                           " accelerators: at most %d together",
                           c->n_drives, s->n_reservations, CST_CORE_MAX_UPDATE_DEVICES);
    }
    if (c->rates->disk_read <= 0 || c->rates->disk_write <= 0) {
        return cst_err_set(err, CST_EINVAL,
                           "rates: disk_read and disk_write, of the drives with states, are not "
                           "known: measure with cistern probe --disk");
    }
    if (c->states.grad_over_weight) {
        return cst_err_set(err, CST_EINVAL,
                           "states on drives (disk) cannot be combined with gradients in the place "
                           "of weights");
    }
    return CST_OK;
}

void cst_drives_devices(const struct cst_search *s, struct cst_layout_config *config)
{
    const struct cst_plan_config *c = s->config;

    for (uint32_t i = 0; i < c->n_drives; i++) {
        config->devices[config->n_devices++] =
            (struct cst_layout_device){.engine = first_drive(s) + i,
                                       .bytes = cst_layout_drive_bytes(c->drive_bytes, c->n_drives),
                                       .grain = CST_LAYOUT_ROW_ALIGN,
                                       .reservation_bytes = CST_LAYOUT_BUFFERS,
                                       .in_host = true};
    }
}

static uint64_t state_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk)
{
    uint64_t bytes = 0;

    for (int row = CST_ROW_MASTER; row < CST_ROW_COUNT; row++) {
        bytes += cst_layout_chunk_row_bytes(layout, chunk, row, chunk->n_elems);
    }
    return bytes;
}

/* The buffers of each drive; all 0: there is none. */
static struct cst_buffers_drives buffers_of(const struct cst_search *s,
                                            const struct cst_layout *layout)
{
    const struct cst_plan_config *c = s->config;
    struct cst_buffers_drives out = {.bytes = 0};

    if (c->n_drives > 0) {
        cst_buffers_drives(&out, layout, c->n_drives,
                           cst_layout_drive_bytes(c->drive_bytes, c->n_drives));
    }
    return out;
}

void cst_drives_fit(const struct cst_search *s, const struct cst_layout *layout,
                    struct cst_plan_point *point)
{
    const struct cst_buffers_drives buffers = buffers_of(s, layout);
    uint64_t most = cst_layout_drive_bytes(s->config->drive_bytes, 1);
    uint64_t there = cst_drives_bytes(s, layout);

    point->window_bytes = s->config->n_drives * buffers.bytes;
    point->drive_asked = buffers.fit_bytes < most ? buffers.fit_bytes : most;
    point->drive_lacks = point->drive_asked > there ? point->drive_asked - there : 0;
    point->drive_stays = buffers.stay_bytes < most - point->drive_asked ? buffers.stay_bytes
                                                                        : most - point->drive_asked;
}

uint64_t cst_drives_bytes(const struct cst_search *s, const struct cst_layout *layout)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < layout->n_segments; i++) {
        bytes += cst_drives_have(s, layout->segments[i].tier) ? layout->segments[i].bytes : 0;
    }
    return bytes;
}

uint64_t cst_drives_window_bytes(const struct cst_search *s, const struct cst_layout *layout)
{
    return s->config->n_drives * buffers_of(s, layout).bytes;
}

uint32_t cst_drives_list(const struct cst_search *s, const struct cst_layout *layout,
                         struct cst_core_device_reservation *list)
{
    for (uint32_t i = 0; i < s->config->n_drives; i++) {
        list[i] = (struct cst_core_device_reservation){.engine = CST_TIER_HOST,
                                                       .home = first_drive(s) + i,
                                                       .bytes = buffers_of(s, layout).bytes};
    }
    return s->config->n_drives;
}

/* -- the answer ----------------------------------------------------------------------------- */

/* No drive can move more bytes than it does in the best of the three ways that were measured. */
double cst_drives_least_s(const struct cst_search *s, const struct cst_layout *layout)
{
    const struct cst_rates *rates = &s->rates;
    double best = rates->disk_read > rates->disk_write ? rates->disk_read : rates->disk_write;
    uint64_t bytes = 0;

    if (s->config->n_drives == 0) {
        return 0;
    }
    best = cst_rates_mixed(rates) > best ? cst_rates_mixed(rates) : best;
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        bytes += cst_drives_have(s, chunk->tier) ? state_bytes(layout, chunk) : 0;
    }
    return 2.0 * (double)bytes / (best * s->config->n_drives);
}

void cst_drives_describe(const struct cst_search *s, const struct cst_layout *layout,
                         struct cst_plan_choice *choice)
{
    choice->n_drives = s->config->n_drives;
    choice->drive_bytes = cst_drives_bytes(s, layout);
    choice->window_bytes = cst_drives_window_bytes(s, layout);
    choice->n_stay_in_host = buffers_of(s, layout).n_stay;
    choice->stay_bytes = buffers_of(s, layout).stay_bytes;
    choice->rows_bytes = cst_layout_host_bytes(layout) + choice->window_bytes;
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        choice->n_on_drives += cst_drives_have(s, layout->chunks[c].tier);
    }
}

struct cst_plan_drives cst_plan_drives_times(const struct cst_plan_config *config,
                                             const struct cst_plan_choice *choice)
{
    const struct cst_replay_result *p = &choice->predicted;
    const struct cst_rates *rates = config->rates;
    double n = choice->n_drives, compute_s = (double)p->compute_ns * 1e-9;
    double step_s = (double)p->step_ns * 1e-9;
    struct cst_plan_drives out = {.disk_s = (double)(p->disk_read + p->disk_written) /
                                            (n * cst_rates_mixed(rates)),
                                  .wear = step_s > 0 ? (double)p->disk_written / n / step_s : 0};

    if (config->states.durable) {
        out.seal_s = cst_replay_seal_s(rates, choice->n_chunks);
        out.record_bytes = cst_replay_seal_bytes(choice->n_chunks);
        out.wear += step_s > 0 ? (double)out.record_bytes / step_s : 0;
    }

    if (config->overlap != CST_OVERLAP_COMMIT) {
        out.write_s = out.disk_s;
        out.write_under_s = config->overlap == CST_OVERLAP_EARLY ? compute_s : step_s;
        return out;
    }
    out.read_s = (double)(p->disk_read - p->disk_ahead) / (n * rates->disk_read);
    out.read_under_s = compute_s / ((config->recompute ? 4 : 3) * config->micro_batches);
    out.write_s = (double)p->disk_written / (n * rates->disk_write);
    out.write_under_s = compute_s;
    return out;
}
