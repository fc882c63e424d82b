/* SPDX-License-Identifier: Apache-2.0 */
/* Between plans of a search and plans in files. Pure. */
#ifndef CST_PLAN_SAVED_H
#define CST_PLAN_SAVED_H

#include "offload/plan/plan.h"
#include "proto/saved_plan.h"

/* What a job with these is, as a plan for it says so: fills in the first group of @out's fields. */
void cst_plan_saved_job(struct cst_saved_plan *out, const struct cst_model *model, uint32_t world,
                        uint32_t micro_batches, const struct cst_layout_states *states,
                        enum cst_overlap overlap);

/* @choice, the best of a search for @config, as a plan that a job can be given. CST_EUNSUPPORTED:
 * jobs cannot have what it chose, which a search with `runtime_only` would not have. */
int cst_plan_saved_make(struct cst_saved_plan *out, const struct cst_plan_config *config,
                        const struct cst_plan_choice *choice, struct cst_err *err);

/* What @plan decides, as a search would say it, without rows. Its layout lacks
 * what the machine and the job add: nodes, formats of states, accelerators. */
void cst_plan_saved_choice(const struct cst_saved_plan *plan, struct cst_plan_choice *out);

#endif
