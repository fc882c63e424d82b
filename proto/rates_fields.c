/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rates_fields.h"

const struct cst_rates_field cst_rates_device_fields[] = {
    {"up", offsetof(struct cst_rates_device, up), true},
    {"down", offsetof(struct cst_rates_device, down), true},
    {"up_both", offsetof(struct cst_rates_device, up_both), false},
    {"down_both", offsetof(struct cst_rates_device, down_both), false},
    {"peer", offsetof(struct cst_rates_device, peer), false},
    {"copy_latency_s", offsetof(struct cst_rates_device, copy_latency_s), false},
    {"flops", offsetof(struct cst_rates_device, flops), false},
    {"update", offsetof(struct cst_rates_device, update), false},
    {"memory", offsetof(struct cst_rates_device, memory), false},
    {"products", offsetof(struct cst_rates_device, products), false},
    {NULL, 0, false},
};

const struct cst_rates_field cst_rates_node_fields[] = {
    {"pass", offsetof(struct cst_rates_node, pass), false},
    {"update", offsetof(struct cst_rates_node, update), true},
    {"reduce", offsetof(struct cst_rates_node, reduce), false},
    {"copy", offsetof(struct cst_rates_node, copy), false},
    {"products", offsetof(struct cst_rates_node, products), false},
    {NULL, 0, false},
};

const struct cst_rates_field cst_rates_machine_fields[] = {
    {"disk_read", offsetof(struct cst_rates, disk_read), false},
    {"disk_write", offsetof(struct cst_rates, disk_write), false},
    {"disk_mixed", offsetof(struct cst_rates, disk_mixed), false},
    {"disk_flush_s", offsetof(struct cst_rates, disk_flush_s), false},
    {"request_s", offsetof(struct cst_rates, request_s), false},
    {"spread", offsetof(struct cst_rates, spread), false},
    {"busy_cores", offsetof(struct cst_rates, busy_cores), false},
    {NULL, 0, false},
};
