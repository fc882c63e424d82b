/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine can do, in numbers that a plan needs. Measured by `cistern probe` (engines
 * measure, the CLI writes a file), re-estimated by the daemon from the work of its engines, or
 * written by a person. 0 in a field: not known; a plan that needs it says so. Pure. */
#ifndef CST_RATES_H
#define CST_RATES_H

#include "cistern/status.h"

#include <stdint.h>

#define CST_RATES_MAX_DEVICES 16
#define CST_RATES_MAX_NODES 8

/* A device that a rank computes on, and its link to host memory. */
struct cst_rates_device {
    char name[64]; /* "host", or the GPU's name */
    uint64_t memory_bytes;
    double up, down;           /* link, bytes/s, one direction alone */
    double up_both, down_both; /* both at once */
    double copy_latency_s;     /* of a copy of a page: what a copy costs beside its bytes */
    double peer;   /* bytes/s between this device and another of the node; 0: through host memory */
    double flops;  /* bf16 matmul, flop/s that a training step reaches */
    double update; /* AdamW, elements/s, all rows on the device */
    double memory; /* bytes/s of a copy within the device, read and write counted */
};

/* A NUMA node with its engine. */
struct cst_rates_node {
    uint32_t cores;
    uint64_t memory_bytes;
    double pass; /* bytes/s of the best plain pass over memory, read and write counted, all cores */
    double update; /* AdamW, elements/s, all cores: one pass, bf16 gradient in, bf16 weight out */
    double reduce; /* elements/s of the sum of two contributions */
    double copy;   /* bytes/s of memcpy, all copy lanes, bytes counted once */
};

struct cst_rates {
    char fingerprint[65]; /* hex digest of what the machine is made of; another one: measured
                             elsewhere. Empty: written by hand */
    uint32_t n_devices;
    struct cst_rates_device devices[CST_RATES_MAX_DEVICES];
    uint32_t n_nodes;
    struct cst_rates_node nodes[CST_RATES_MAX_NODES];
    double disk_read, disk_write; /* bytes/s */
    double request_s;             /* round trip of a request that needs no copy */
    double spread; /* half the range of repeated measurements, as a share of their median, of the
                      rate that varied most; 0: not known */
    double busy_cores; /* that other programs used, on average, while the rates were measured; 0:
                          none, or not known */
};

/* CST_EINVAL: a field that is negative, not finite, or missing where it must be there (a device's
 * link, a node's update): its name. */
int cst_rates_check(const struct cst_rates *rates, struct cst_err *err);

/* The A100-40GB box of Elixir's own fits (16.3 n + 8.7 GB/s up and so on), for @n_devices devices
 * on one node. */
void cst_rates_a100(struct cst_rates *out, uint32_t n_devices);

#endif
