/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a replay share: errors, timers, efforts, and the devices of the model machine.
 */
#include "offload/simulate/simulate.h"

#include <string.h>

void cst_sim_fail(struct cst_sim *sim, const struct cst_err *err)
{
    if (sim->status == CST_OK) {
        sim->status = err->status;
        sim->err = *err;
    }
}

void cst_sim_out_of_memory(struct cst_sim *sim)
{
    struct cst_err err;

    (void)cst_err_set(&err, CST_ENOMEM, "no memory for a replay");
    cst_sim_fail(sim, &err);
}

void cst_sim_timer(struct cst_sim *sim, uint64_t delay, enum cst_sim_timer kind, uint64_t arg)
{
    if (cst_timers_set(&sim->timers, sim->now + delay, kind, arg) != CST_OK) {
        cst_sim_out_of_memory(sim);
    }
}

void cst_sim_start(struct cst_sim *sim, struct cst_effort *effort)
{
    if (cst_shared_rates_start(&sim->machine, effort) != CST_OK) {
        cst_sim_out_of_memory(sim);
    }
}

void cst_sim_interval(struct cst_sim *sim, enum cst_lane_kind lane, uint32_t number, uint32_t what,
                      bool backward, uint64_t begin)
{
    const struct cst_interval interval = {.lane = lane,
                                          .number = number,
                                          .what = what,
                                          .backward = backward,
                                          .step = (uint32_t)sim->n_commits,
                                          .begin = begin,
                                          .end = sim->now};

    if (sim->config->interval != NULL) {
        sim->config->interval(sim->config->arg, &interval);
    }
}

static bool is_host(const struct cst_rates_device *device)
{
    return strcmp(device->name, "host") == 0;
}

/* Find the rates of a GPU: the devices that are not called "host", in order; the last one also
 * stands for all further GPUs. */
static uint32_t find_device(const struct cst_rates *rates, uint32_t device)
{
    uint32_t found = 0, n = 0;

    for (uint32_t i = 0; i < rates->n_devices; i++) {
        bool host = is_host(&rates->devices[i]);

        if (device == CST_NONE && host) {
            return i;
        }
        if (device != CST_NONE && !host && n++ <= device) {
            found = i;
        }
    }
    return found;
}

const struct cst_rates_device *cst_sim_device(const struct cst_sim *sim, uint32_t device)
{
    if (device != CST_NONE && sim->n_nodes + device >= sim->n_engines - sim->n_drives) {
        return &sim->drive;
    }
    return &sim->config->rates->devices[find_device(sim->config->rates, device)];
}
