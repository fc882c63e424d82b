/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/planner_rates.h"

#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "proto/fingerprint.h"
#include "proto/rates_json.h"
#include "daemon/engine/engines.h"
#include "daemon/job/planner.h"
#include "daemon/settings/settings.h"
#include "daemon/memory/tiers/tier.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DRIVE_RATE 2e9     /* Assumed rate of a drive that was not measured, bytes/s. */
#define CORE_PRODUCTS 30e9 /* Assumed rate of products of a core that was not measured, flop/s. */

int cstd_planner_init(struct cstd_planner *planner, const struct cstd_daemon *daemon,
                      struct cst_err *err)
{
    static const char standard[] = "/var/lib/cistern/rates.json";
    const char *path = daemon->config->rates[0] != '\0' ? daemon->config->rates : standard;
    char own[CST_FINGERPRINT_BYTES];
    int rc;

    *planner = (struct cstd_planner){.from = "built in"};
    if (strcmp(path, standard) == 0 && access(path, R_OK) != 0) {
        return CST_OK;
    }
    rc = cst_rates_read(&planner->rates, path, err);
    if (rc == CST_OK) {
        rc = cst_rates_check(&planner->rates, err);
    }
    if (rc != CST_OK) {
        return cst_err_prefix(err, "[plan] rates");
    }
    planner->has_file = true;
    (void)snprintf(planner->from, sizeof planner->from, "%s", path);
    cst_fingerprint(NULL, 0, own);
    if (planner->rates.fingerprint[0] != '\0' &&
        !cst_fingerprint_same_host(planner->rates.fingerprint, own)) {
        cstd_log(CSTD_LOG_WARNING, "%s: measured on another machine", path);
    }
    return CST_OK;
}

static double seen_or(const struct cstd_rates_median *median, double otherwise)
{
    double seen = cstd_rates_median_get(median);

    return seen > 0 ? seen : otherwise;
}

/* Use what was seen of each engine, and conservative numbers for the rest. */
static void build_nodes(const struct cstd_daemon *daemon, struct cst_rates *out)
{
    const struct cstd_engines *engines = daemon->engines;

    out->n_nodes = engines->n_nodes < CST_RATES_MAX_NODES ? engines->n_nodes : CST_RATES_MAX_NODES;
    for (uint32_t i = 0; i < out->n_nodes; i++) {
        const struct cstd_engine *engine = &engines->v[i];
        uint32_t cores = engine->threads > 0 ? engine->threads : 1;

        out->nodes[i] = (struct cst_rates_node){
            .cores = cores,
            .memory_bytes = daemon->config->memory_bytes / out->n_nodes,
            .pass = 5e9 * cores < 50e9 ? 5e9 * cores : 50e9,
            .update = seen_or(&engine->seen.update, 150e6 * cores),
            .reduce = seen_or(&engine->seen.reduce, 500e6 * cores),
            .copy = seen_or(&engine->seen.copy, 4e9),
            .products = seen_or(&engine->seen.products, CORE_PRODUCTS * cores),
        };
    }
}

void cstd_planner_rates_overlay(const struct cstd_daemon *daemon, struct cst_rates *rates)
{
    for (uint32_t i = 0; i < rates->n_nodes && i < daemon->engines->n_nodes; i++) {
        const struct cstd_rates_seen *seen = &daemon->engines->v[i].seen;

        rates->nodes[i].update = seen_or(&seen->update, rates->nodes[i].update);
        rates->nodes[i].reduce = seen_or(&seen->reduce, rates->nodes[i].reduce);
        rates->nodes[i].products = seen_or(&seen->products, rates->nodes[i].products);
    }
}

bool cstd_planner_rates_drives(struct cst_rates *rates)
{
    bool known = rates->disk_read > 0 && rates->disk_write > 0;

    if (!known) {
        rates->disk_read = rates->disk_write = DRIVE_RATE;
        rates->disk_mixed = 0;
    }
    return known;
}

static uint32_t find_device(const struct cst_rates *rates, const char *name)
{
    uint32_t i = 0;

    while (i < rates->n_devices && strcmp(rates->devices[i].name, name) != 0) {
        i++;
    }
    return i;
}

void cstd_planner_rates_nodes(const struct cstd_daemon *daemon, struct cst_rates *out)
{
    double limit = (double)daemon->config->update_rate;

    if (daemon->planner->has_file) {
        *out = daemon->planner->rates;
    } else {
        build_nodes(daemon, out);
    }
    for (uint32_t i = 0; i < out->n_nodes; i++) {
        struct cst_rates_node *node = &out->nodes[i];

        node->update = limit > 0 && node->update > limit ? limit : node->update;
        /* A file that was measured by an earlier version does not have it. */
        node->products = node->products > 0 ? node->products
                                            : CORE_PRODUCTS * (node->cores > 0 ? node->cores : 1);
    }
}

static struct cst_rates_device guess_device(const struct cstd_tier *tier,
                                            const struct cst_rates_node *node)
{
    struct cst_rates_device out;

    tier->kind->rates(tier, node, &out);
    return out;
}

struct cst_rates_device cstd_planner_device(const struct cstd_tier *tier)
{
    struct cst_rates rates = {0};
    uint32_t i;

    cstd_planner_rates_nodes(tier->daemon, &rates);
    i = find_device(&rates, tier->product);
    return i < rates.n_devices && rates.devices[i].update > 0 ? rates.devices[i]
                                                              : guess_device(tier, &rates.nodes[0]);
}

uint32_t cstd_planner_rates_add(const struct cstd_tier *tier, struct cst_rates *rates)
{
    uint32_t i = find_device(rates, tier->product);

    /* If the list is full, its last device is replaced; the search needs only this one. */
    if (i == rates->n_devices) {
        i = i < CST_RATES_MAX_DEVICES ? i : CST_RATES_MAX_DEVICES - 1;
        rates->devices[i] = guess_device(tier, &rates->nodes[0]);
        rates->n_devices = i + 1;
    }
    return i;
}

void cstd_planner_rates_guess(const struct cstd_tier *tier, struct cst_rates_device *device,
                              const struct cst_rates_node *node)
{
    const struct cst_rates_device guess = guess_device(tier, node);

    device->update = device->update > 0 ? device->update : guess.update;
    if (cst_rates_products(device) <= 0) {
        device->products = guess.products;
    }
}
