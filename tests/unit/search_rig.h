/* SPDX-License-Identifier: Apache-2.0 */
/* A model, a machine and a budget to plan for: what tests of the search share. */
#ifndef SEARCH_RIG_H
#define SEARCH_RIG_H

#include "offload/plan/plan.h"

struct search_rig {
    struct cst_model model;
    struct cst_plan_budget budget;
    struct cst_rates rates;
    struct cst_plan_config config; /* of the others */
    struct cst_plans plans;
};

extern struct search_rig f;

/* No tensors yet, an A100, no limit, a rank, a micro-batch. */
void search_rig_setup(void);
void search_rig_teardown(void);

/* A preset for so many ranks on A100s. */
void declare(const char *name, uint32_t world, uint32_t batch, bool recompute);

/* A search that must succeed. */
void search(void);

/* One that must fail so, saying so. */
void refuse(int status, const char *words);

/* With as many bytes more in *limit as are said to be short, it fits; with one less it does not. */
void one_byte(uint64_t *limit, int status);

#endif
