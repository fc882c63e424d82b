/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's rates for plans: from the file of [plan] rates. Without a file they are what the
 * engines were seen to reach, and conservative numbers for the rest. Loop thread only. */
#ifndef CST_PLANNER_RATES_H
#define CST_PLANNER_RATES_H

#include "proto/rates.h"
#include "cistern/status.h"

struct cstd_daemon;
struct cstd_tier;

/* The machine's rates, part of struct cstd_daemon. */
struct cstd_planner {
    struct cst_rates rates; /* Contents of the file; valid if has_file. */
    bool has_file;
    char from[320]; /* Origin of the rates, for people: the file's path, or "built in". */
};

/* Read the file of [plan] rates. If the file is the default one it may be missing. CST_ENOTFOUND: a
 * file that the configuration names is missing. Other statuses are those of cst_rates_read and
 * cst_rates_check. */
int cstd_planner_init(struct cstd_planner *planner, const struct cstd_daemon *daemon,
                      struct cst_err *err);

/* Rates of @tier before a job has run. A device that the file does not name has
 * guessed rates. */
struct cst_rates_device cstd_planner_device(const struct cstd_tier *tier);

/* Fill in @out from the file or, without a file, from the nodes of this machine. Update rates are
 * at most what the configuration allows. */
void cstd_planner_rates_nodes(const struct cstd_daemon *daemon, struct cst_rates *out);
/* Replace the update and reduce rates of the nodes in @rates, which come from a file, by those that
 * the engines were seen to reach. */
void cstd_planner_rates_overlay(const struct cstd_daemon *daemon, struct cst_rates *rates);
/* Set the rates of drives in @rates to guesses if they are not known. Returns whether they are. */
bool cstd_planner_rates_drives(struct cst_rates *rates);
/* Return the index of @tier in the devices of @rates. A device that is missing is
 * added with guessed rates. */
uint32_t cstd_planner_rates_add(const struct cstd_tier *tier, struct cst_rates *rates);
/* Set the rates of updates and of products of @device, which is @tier, to guesses if they are not
 * known. @node: the rates of the host's node. */
void cstd_planner_rates_guess(const struct cstd_tier *tier, struct cst_rates_device *device,
                              const struct cst_rates_node *node);

#endif
