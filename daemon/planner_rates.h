/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of the machine when a job is planned: the file of [plan] rates; without one
 * conservative numbers and what engines were seen to do. */
#ifndef CST_PLANNER_RATES_H
#define CST_PLANNER_RATES_H

#include "offload/plan/rates.h"
#include "cistern/status.h"

struct cst_daemon;
struct cst_gpu;

/* The machine's rates, in the daemon. */
struct cst_planner {
    struct cst_rates rates; /* of the file; valid where has_file */
    bool has_file;
    char from[320]; /* which rates, for people */
};

/* Read the file of [plan] rates. One that was named and is not the usual one must be there:
 * CST_ENOTFOUND, and what cst_rates_read returns. */
int cst_planner_init(struct cst_planner *planner, const struct cst_daemon *daemon,
                     struct cst_err *err);

/* What is known of the machine, before a job has shown more: elements/s that the engines of all
 * nodes update together; and of @gpu (NULL: the host), by the file where it is named there. */
double cst_planner_node_update(const struct cst_daemon *daemon);
struct cst_rates_device cst_planner_device(const struct cst_daemon *daemon,
                                           const struct cst_gpu *gpu);

/* Fill in @out: the file's rates, or those of the nodes that are there; nodes update no faster than
 * they may. */
void cst_planner_rates_nodes(const struct cst_daemon *daemon, struct cst_rates *out);
/* What engines were seen to do, into @rates of a file. */
void cst_planner_rates_overlay(const struct cst_daemon *daemon, struct cst_rates *rates);
/* Number of @gpu (NULL: the host) in @rates, as it is there or guessed. */
uint32_t cst_planner_rates_add(const struct cst_daemon *daemon, struct cst_rates *rates,
                               const struct cst_gpu *gpu);
/* How fast @device, which is @gpu, updates, if that is not known; @node: the host's. */
void cst_planner_rates_guess_update(const struct cst_daemon *daemon,
                                    struct cst_rates_device *device, const struct cst_gpu *gpu,
                                    const struct cst_rates_node *node);

#endif
