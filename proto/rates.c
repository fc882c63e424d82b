/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rates.h"

#include "proto/rates_fields.h"

#include <math.h>
#include <string.h>

#define MOST_SECONDS 60 /* Maximum time of a message or of the start of a copy. */

/* Check the numbers of @fields in @rates, which is number @i of the list @where. */
static int check_all(const char *where, unsigned i, const struct cst_rates_field *fields,
                     const void *rates, struct cst_err *err)
{
    for (; fields->name != NULL; fields++) {
        double v = cst_rates_get(rates, fields);

        if (!isfinite(v) || v < 0) {
            return cst_err_set(err, CST_EINVAL, "rates: %s[%u].%s cannot be %g", where, i,
                               fields->name, v);
        }
        if (fields->required && v == 0) {
            return cst_err_set(err, CST_EINVAL, "rates: %s[%u].%s is not known", where, i,
                               fields->name);
        }
    }
    return CST_OK;
}

/* Longer times do not fit the clocks, which count nanoseconds. */
static int check_seconds(const char *field, double v, struct cst_err *err)
{
    return v <= MOST_SECONDS ? CST_OK
                             : cst_err_set(err, CST_EINVAL, "rates: %s cannot be %g s", field, v);
}

int cst_rates_check(const struct cst_rates *rates, struct cst_err *err)
{
    int rc = CST_OK;

    if (rates->n_devices == 0 || rates->n_devices > CST_RATES_MAX_DEVICES || rates->n_nodes == 0 ||
        rates->n_nodes > CST_RATES_MAX_NODES) {
        return cst_err_set(err, CST_EINVAL, "rates of %u devices and %u nodes: 1..%d and 1..%d",
                           rates->n_devices, rates->n_nodes, CST_RATES_MAX_DEVICES,
                           CST_RATES_MAX_NODES);
    }
    for (unsigned i = 0; i < rates->n_devices && rc == CST_OK; i++) {
        rc = check_all("devices", i, cst_rates_device_fields, &rates->devices[i], err);
        if (rc == CST_OK) {
            rc = check_seconds("copy_latency_s", rates->devices[i].copy_latency_s, err);
        }
    }
    for (unsigned i = 0; i < rates->n_nodes && rc == CST_OK; i++) {
        rc = check_all("nodes", i, cst_rates_node_fields, &rates->nodes[i], err);
    }
    if (rc == CST_OK) {
        rc = check_all("machine", 0, cst_rates_machine_fields, rates, err);
    }
    rc = rc == CST_OK ? check_seconds("disk_flush_s", rates->disk_flush_s, err) : rc;
    return rc == CST_OK ? check_seconds("request_s", rates->request_s, err) : rc;
}

double cst_rates_products(const struct cst_rates_device *device)
{
    return device->products > 0 ? device->products : device->flops / 16;
}

double cst_rates_mixed(const struct cst_rates *rates)
{
    return rates->disk_mixed > 0 ? rates->disk_mixed : fmin(rates->disk_read, rates->disk_write);
}

double cst_rates_flush(const struct cst_rates *rates)
{
    return rates->disk_flush_s > 0 ? rates->disk_flush_s : 5e-3;
}

/* Elixir's fits give GB/s and G elements/s of all n devices together: up 16.3 n + 8.7, down 15.8 n
 * + 2.3, AdamW 50 n on the devices and 1.66 ln n + 5.15 on the host. The rate of products is that
 * of 64 cores of a Zen 3 with AVX2, in proportion to two of them. */
void cst_rates_a100(struct cst_rates *out, uint32_t n_devices)
{
    double n = n_devices == 0 ? 1 : n_devices;
    struct cst_rates_device device = {
        .name = "A100-40GB",
        .memory_bytes = 40ull << 30,
        .up = (16.3 * n + 8.7) / n * 1e9,
        .down = (15.8 * n + 2.3) / n * 1e9,
        .copy_latency_s = 10e-6,
        .peer = 235e9,
        .flops = 156e12,
        .update = 50e9,
        .memory = 1300e9,
    };

    memset(out, 0, sizeof *out);
    device.up_both = 0.85 * device.up;
    device.down_both = 0.85 * device.down;
    out->n_devices = n_devices < CST_RATES_MAX_DEVICES ? n_devices : CST_RATES_MAX_DEVICES;
    for (unsigned i = 0; i < out->n_devices; i++) {
        out->devices[i] = device;
    }
    out->n_nodes = 1;
    out->nodes[0] = (struct cst_rates_node){
        .cores = 64,
        .memory_bytes = 512ull << 30,
        .pass = 260e9,
        .update = (1.66 * log(n) + 5.15) * 1e9,
        .reduce = 20e9,
        .copy = 40e9,
        .products = 2.5e12,
    };
    out->request_s = 50e-6;
}
