/* SPDX-License-Identifier: Apache-2.0 */
/* How others choose, to compare plans with: a capacity that somebody names, and Elixir's threshold
 * rule as its code has it. Each fills in what a plan would say, so that cst_plan_replay can play
 * it. */
#ifndef PLAN_RULES_H
#define PLAN_RULES_H

#include "offload/plan/plan.h"

/* Size classes in the order of their numbers. */
extern const uint32_t rule_in_turn[CST_LAYOUT_MAX_CLASSES];

/* Chunks of @elems elements, larger tensors in classes of their own, and the whole device for
 * blocks: those that must be, then as many as fit of each class in @order (a permutation of the
 * class numbers). CST_EPOOL and the statuses of cst_layout_build where that cannot be. */
int rule_capacity(const struct cst_plan_config *config, uint64_t elems,
                  const uint32_t order[CST_LAYOUT_MAX_CLASSES], struct cst_plan_choice *out,
                  struct cst_err *err);

/* Elixir (hpcaitech/Elixir, 2023): one capacity C for all, from 32 MiB, doubled until the largest
 * parameter fits, up to three times that: the one with the least C x moves(C, B), moves being
 * Belady's loads of one step with B blocks; B = what the device holds, less two for overlap. Then a
 * byte of memory saves I seconds as a block, J as optimizer states:
 *
 *   I = e_p / up + e_p / down      J = n / r x (e_o / up + I + e_p / down + 1 / v_cpu - 1 / v_gpu)
 * e_p = 2, e_o = 4, r = 7
 *
 * I > J: B blocks first, then states of chunks in the order of first use. Else: max(4, region) + 2
 * blocks, states, and what is left for blocks, up to B. Rates are those of all n devices together.
 */
int rule_elixir(const struct cst_plan_config *config, struct cst_plan_choice *out,
                struct cst_err *err);

/* I and J of the rule, ns. */
void rule_elixir_worth(const struct cst_plan_config *config, double *block_ns, double *state_ns);

void rule_close(struct cst_plan_choice *choice);

#endif
