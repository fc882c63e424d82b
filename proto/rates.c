/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rates.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MOST_SECONDS 60 /* Maximum time of a message or of the start of a copy. */

enum must { MAY_LACK, MUST_HAVE };

static int check(const char *where, unsigned i, const char *field, double v, enum must must,
                 struct cst_err *err)
{
    if (!isfinite(v) || v < 0) {
        return cst_err_set(err, CST_EINVAL, "rates: %s[%u].%s cannot be %g", where, i, field, v);
    }
    if (must == MUST_HAVE && v == 0) {
        return cst_err_set(err, CST_EINVAL, "rates: %s[%u].%s is not known", where, i, field);
    }
    return CST_OK;
}

struct field {
    const char *name;
    double value;
    enum must must;
};

static int check_all(const char *where, unsigned i, const struct field *fields, unsigned n,
                     struct cst_err *err)
{
    int rc = CST_OK;

    for (unsigned k = 0; k < n && rc == CST_OK; k++) {
        rc = check(where, i, fields[k].name, fields[k].value, fields[k].must, err);
    }
    return rc;
}

static int check_device(const struct cst_rates_device *d, unsigned i, struct cst_err *err)
{
    const struct field fields[] = {
        {"up", d->up, MUST_HAVE},
        {"down", d->down, MUST_HAVE},
        {"up_both", d->up_both, MAY_LACK},
        {"down_both", d->down_both, MAY_LACK},
        {"copy_latency_s", d->copy_latency_s, MAY_LACK},
        {"peer", d->peer, MAY_LACK},
        {"flops", d->flops, MAY_LACK},
        {"update", d->update, MAY_LACK},
        {"memory", d->memory, MAY_LACK},
    };

    return check_all("devices", i, fields, sizeof fields / sizeof fields[0], err);
}

static int check_node(const struct cst_rates_node *n, unsigned i, struct cst_err *err)
{
    const struct field fields[] = {
        {"pass", n->pass, MAY_LACK},
        {"update", n->update, MUST_HAVE},
        {"reduce", n->reduce, MAY_LACK},
        {"copy", n->copy, MAY_LACK},
    };

    return check_all("nodes", i, fields, sizeof fields / sizeof fields[0], err);
}

/* Longer times do not fit the clocks, which count nanoseconds. */
static int check_seconds(const char *field, double v, struct cst_err *err)
{
    return v <= MOST_SECONDS ? CST_OK
                             : cst_err_set(err, CST_EINVAL, "rates: %s cannot be %g s", field, v);
}

int cst_rates_check(const struct cst_rates *rates, struct cst_err *err)
{
    const struct field fields[] = {{"disk_read", rates->disk_read, MAY_LACK},
                                   {"disk_write", rates->disk_write, MAY_LACK},
                                   {"request_s", rates->request_s, MAY_LACK},
                                   {"spread", rates->spread, MAY_LACK},
                                   {"busy_cores", rates->busy_cores, MAY_LACK}};
    int rc = CST_OK;

    if (rates->n_devices == 0 || rates->n_devices > CST_RATES_MAX_DEVICES || rates->n_nodes == 0 ||
        rates->n_nodes > CST_RATES_MAX_NODES) {
        return cst_err_set(err, CST_EINVAL, "rates of %u devices and %u nodes: 1..%d and 1..%d",
                           rates->n_devices, rates->n_nodes, CST_RATES_MAX_DEVICES,
                           CST_RATES_MAX_NODES);
    }
    for (unsigned i = 0; i < rates->n_devices && rc == CST_OK; i++) {
        rc = check_device(&rates->devices[i], i, err);
        if (rc == CST_OK) {
            rc = check_seconds("copy_latency_s", rates->devices[i].copy_latency_s, err);
        }
    }
    for (unsigned i = 0; i < rates->n_nodes && rc == CST_OK; i++) {
        rc = check_node(&rates->nodes[i], i, err);
    }
    if (rc == CST_OK) {
        rc = check_all("machine", 0, fields, sizeof fields / sizeof *fields, err);
    }
    return rc == CST_OK ? check_seconds("request_s", rates->request_s, err) : rc;
}

/* Elixir's fits give GB/s and G elements/s of all n devices together: up 16.3 n + 8.7, down 15.8 n
 * + 2.3, AdamW 50 n on the devices and 1.66 ln n + 5.15 on the host. */
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
    };
    out->request_s = 50e-6;
}
