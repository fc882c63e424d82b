/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies pipeline schedules of any origin: that every micro-batch goes through every stage once,
 * that the ranks' messages pair, and that no rank waits for ever. Pure; only allocates memory. */
#ifndef CST_SCHEDULE_CHECK_H
#define CST_SCHEDULE_CHECK_H

#include "offload/parallel/schedule.h"

/* Verify @schedule. A legal schedule has these properties:
 *
 *   - Each rank has a stage, and all actions of a stage are in the list of its rank.
 *   - Each stage has, for each micro-batch, one F and either one B, or one I and one W after it.
 * The backward pass is after F. There may be one R, between the two.
 *   - On each way from one rank to another one, activations arrive in the order in which they are
 *     used, and gradients do, too. Each message is sent when its action ends and waits at its
 *     destination.
 *   - If each rank does its list in order, no rank waits for ever.
 *
 * CST_EINVAL: it is none; the words name the rank and the action. CST_ENOMEM. */
int cst_schedule_check(const struct cst_schedule *schedule, struct cst_err *err);

/* Write to @in_flight, for each stage, the largest number of micro-batches whose forward pass has
 * begun and whose last backward action has not ended; and to @restored, if it is not NULL, the
 * largest number of those whose backward pass, or whose recompute action, has begun. @schedule is
 * legal. CST_ENOMEM. */
int cst_schedule_in_flight(const struct cst_schedule *schedule, uint32_t *in_flight,
                           uint32_t *restored, struct cst_err *err);

#define CST_STAGE_ACTION_WORDS 32 /* Bytes of the words for an action, including the final 0. */

/* Write @action as "2F0": stage, kind, micro-batch. Returns @out. */
const char *cst_stage_action_words(struct cst_stage_action action,
                                   char out[CST_STAGE_ACTION_WORDS]);

/* True if @action needs a message from another stage: *needed is the stage, whose forward pass (if
 * @action is one) or backward pass of the same micro-batch comes before it. */
bool cst_stage_action_needs(const struct cst_schedule *schedule, struct cst_stage_action action,
                            uint32_t *needed);

/* Do all actions in an order that each rank's list and the messages allow: @visit is called for
 * each rank and number of an action, and what an action needs is visited before it. Statuses:
 *   - CST_EINVAL: some actions wait for each other; the words name one of them.
 *   - CST_ENOMEM. */
int cst_schedule_run(const struct cst_schedule *schedule,
                     void (*visit)(void *arg, uint32_t rank, uint32_t action), void *arg,
                     struct cst_err *err);

#endif
