/* SPDX-License-Identifier: Apache-2.0 */
/* Speeds and sizes of a machine, as far as plans need them. Measured by `cistern probe` (engines
 * measure, the command writes a file), re-estimated by the daemon from the work of its engines, or
 * written by a person. A field with 0 is unknown; a plan that needs it reports that. Pure. */
#ifndef CST_RATES_H
#define CST_RATES_H

#include "cistern/status.h"

#include <stdint.h>

#define CST_RATES_MAX_DEVICES 16
#define CST_RATES_MAX_NODES 8

/* A device that a rank computes on, and its link to host memory. */
struct cst_rates_device {
    char name[64]; /* "host", or the GPU's name. */
    uint64_t memory_bytes;
    double up, down;           /* Link in bytes/s, with one direction in use. */
    double up_both, down_both; /* Link in bytes/s, with both directions in use. */
    double copy_latency_s;     /* Fixed time of a copy: that of a copy of one page. */
    /* Bytes/s between this device and another one of the node; 0: through host memory. */
    double peer;
    double flops;  /* bf16 matrix multiplication, flop/s that a training step reaches. */
    double update; /* AdamW, elements/s, with all rows on the device. */
    double memory; /* Bytes/s of a copy within the device, reads and writes counted. */
    /* Flop/s of the products of Muon in device updates; 0: cst_rates_products guesses. */
    double products;
};

/* A NUMA node with its engine. */
struct cst_rates_node {
    uint32_t cores;
    uint64_t memory_bytes;
    /* Bytes/s of the fastest pass over memory on all cores, reads and writes counted. */
    double pass;
    /* AdamW on all cores, elements/s: one pass, bf16 gradient in, bf16 weight out. */
    double update;
    double reduce; /* Elements/s of the sum of two contributions. */
    double copy;   /* Bytes/s of memcpy on all copy lanes, each byte counted once. */
    /* Flop/s of the products of Muon on all cores, with the normalisation before them; 0: no job
     * with Muon can be planned. */
    double products;
};

struct cst_rates {
    /* Hex digest of the machine's components, to detect rates of another machine. Empty: written by
     * hand. */
    char fingerprint[65];
    uint32_t n_devices;
    struct cst_rates_device devices[CST_RATES_MAX_DEVICES];
    uint32_t n_nodes;
    struct cst_rates_node nodes[CST_RATES_MAX_NODES];
    /* Bytes/s of one drive, with large requests: reads alone, writes alone, and both at the same
     * time, together. disk_mixed 0: cst_rates_mixed guesses. */
    double disk_read, disk_write, disk_mixed;
    /* Time in which a drive flushes what it was given, after writes with large requests; 0:
     * cst_rates_flush assumes one. */
    double disk_flush_s;
    double request_s; /* Round trip of a request that needs no copy. */
    /* Half the range of repeated measurements divided by their median, of the rate that varied
     * most; 0: unknown. */
    double spread;
    /* Average number of cores that other programs used during the measurement; 0: none, or
     * unknown. */
    double busy_cores;
};

/* CST_EINVAL, with the field's name: a field is negative, not finite, too long a time, or 0
 * although it is necessary (a device's link, a node's update). */
int cst_rates_check(const struct cst_rates *rates, struct cst_err *err);

/* Flop/s of the products of Muon on @device: as measured, or else a sixteenth of @device->flops,
 * which is the ratio of the peak of fp32 to that of bf16 on tensor cores (NVIDIA A100: 19.5 and 312
 * Tflop/s). 0: unknown. */
double cst_rates_products(const struct cst_rates_device *device);

/* Bytes/s that a drive reads and writes together: as measured, or else the less of what it reads
 * and what it writes alone, because a drive does not add them. 0: unknown. */
double cst_rates_mixed(const struct cst_rates *rates);

/* Time in which a drive flushes what it was given: as measured, or else 5 ms, which is much
 * for a drive with power-loss protection and usual for one without. */
double cst_rates_flush(const struct cst_rates *rates);

/* The A100-40GB machine of Elixir's own fits (16.3 n + 8.7 GB/s up and so on), with @n_devices
 * devices on one node. */
void cst_rates_a100(struct cst_rates *out, uint32_t n_devices);

#endif
