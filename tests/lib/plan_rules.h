/* SPDX-License-Identifier: Apache-2.0 */
/* Plans by the rules of other systems, for comparison with the planner: a given capacity, and
 * Elixir's choice of a capacity as Elixir's code makes it. Each function fills in a struct
 * cst_plan_choice that cst_plan_replay can replay. */
#ifndef PLAN_RULES_H
#define PLAN_RULES_H

#include "offload/plan/plan.h"

/* The numbers of the size classes in ascending order. */
extern const uint32_t rule_in_turn[CST_LAYOUT_MAX_CLASSES];

/* Plan with chunks of @elems elements and further size classes for larger tensors. The whole device
 * is used for blocks: first the blocks that are required, then as many as fit of each class in
 * @order, a permutation of the class numbers. Returns CST_EPOOL if the required blocks do not fit,
 * and the statuses of cst_layout_build. */
int rule_capacity(const struct cst_plan_config *config, uint64_t elems,
                  const uint32_t order[CST_LAYOUT_MAX_CLASSES], struct cst_plan_choice *out,
                  struct cst_err *err);

/* Plan by the rule of Elixir (hpcaitech/Elixir, 2023). All chunks have one capacity C. Candidates
 * begin at 32 MiB, doubled until the largest parameter fits, and end at three times that. The rule
 * takes the C with the least C x moves(C, B), where moves is the number of Belady's loads in one
 * step with B blocks, and B is what the device holds less two blocks for overlap. */
int rule_elixir(const struct cst_plan_config *config, struct cst_plan_choice *out,
                struct cst_err *err);

#endif
