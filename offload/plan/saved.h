/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion between plans of a search and saved plans. Pure. */
#ifndef CST_PLAN_SAVED_H
#define CST_PLAN_SAVED_H

#include "offload/plan/plan.h"
#include "proto/saved_plan.h"

/* Fill in the fields of *out that describe the job for which a plan is made; clears the others. */
void cst_plan_saved_job(struct cst_saved_plan *out, const struct cst_model *model, uint32_t world,
                        uint32_t micro_batches, const struct cst_layout_states *states,
                        enum cst_overlap overlap);

/* Convert @choice, the best of a search for @config, to a plan for jobs. */
void cst_plan_saved_make(struct cst_saved_plan *out, const struct cst_plan_config *config,
                         const struct cst_plan_choice *choice);

/* Convert @plan to the result of a search, without rows. Its layout lacks what the machine and the
 * job add: nodes, formats of states, accelerators. */
void cst_plan_saved_choice(const struct cst_saved_plan *plan, struct cst_plan_choice *out);

#endif
