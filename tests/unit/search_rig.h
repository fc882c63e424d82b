/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of the planner's search: a model, a machine and a budget. */
#ifndef SEARCH_RIG_H
#define SEARCH_RIG_H

#include "offload/plan/plan.h"

/* The input and output of a search for plans. */
struct search_rig {
    struct cst_model model;
    struct cst_plan_budget budget;
    struct cst_rates rates;
    struct cst_plan_config config; /* refers to the other fields */
    struct cst_plans plans;
};

/* The rig of the current test. */
extern struct search_rig f;

/* Fixture. The model has no tensors, the machine is one A100 without limits of memory, one rank
 * runs one micro-batch. */
void search_rig_setup(void);
void search_rig_teardown(void);

/* Declare the preset @name for @world ranks on A100s. */
void declare(const char *name, uint32_t world, uint32_t batch, bool recompute);

/* Declare GPT-2 on @world A100s with 8 GB whose processors update slowly, so that updates take
 * long. */
void declare_slow(uint32_t world);

/* Search for plans. Fails the test if the search fails. */
void search(void);

/* Search for plans. Returns the predicted time of a step with the best one. */
uint64_t search_ns(void);

/* Build the layout of the best plan. */
struct cst_layout build_best(void);

/* Check that a replay of the best plan takes as long as the plan promises, and not less than its
 * bound. */
void check_promise(void);

/* Search for plans, and check that the search fails with @status and a message that contains
 * @words. */
void refuse(int status, const char *words);

/* Check that the search fails with @status and says how many bytes are missing, that it succeeds
 * when *@limit is raised by these bytes, and that it fails when one byte less is added. */
void one_byte(uint64_t *limit, int status);

#endif
