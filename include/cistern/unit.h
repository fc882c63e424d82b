/* SPDX-License-Identifier: Apache-2.0 */
/* Models that are cut into stages. A unit is the pass of one stage over one micro-batch, and each
 * rank runs whatever unit is next. cistern.h has the terms, and what holds for all calls. */
#ifndef CISTERN_UNIT_H
#define CISTERN_UNIT_H

#include "cistern/job.h"
#include "cistern/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Cut the model into stages, in a job with micro_batches > 1: the operators that are declared from
 * now on are in a new stage. The first stage begins before the first operator. Which rank runs a
 * stage is not declared, but is decided during the step (cst_next). Returns the stage's number
 * (>= 0) or a negative status:
 *   - CST_EINVAL: operators were declared before the first stage.
 *   - CST_EINVAL: the last stage has no operator.
 *   - CST_EINVAL: there are more than 64 stages.
 *   - CST_EINVAL: the job is committed.
 *   - CST_EBUSY: a cst_try_commit is pending.
 *
 * cst_commit returns CST_EINVAL if a model with stages has a job with one micro-batch, with
 * CST_OVERLAP_EARLY, with tensors that some ranks do not hold whole, or with an edge from one rank
 * to another one; or if the last stage has no operator. The daemon searches for no plan for such a
 * model. Tensors that several stages use are allowed: the earlier stage then waits in its backward
 * pass until the later one has done all micro-batches. */
int cst_stage(struct cst_job *job);

/* What a unit is: the forward or the backward pass of one stage over one micro-batch. */
enum cst_unit_kind {
    CST_UNIT_FORWARD = 0,
    CST_UNIT_BACKWARD = 1,
    CST_UNIT_STEP = 2, /* All units of the step are done: the rank calls cst_step. */
};

struct cst_unit {
    enum cst_unit_kind kind;
    uint32_t stage; /* Number of the stage. CST_UNIT_STEP: 0. */
    /* Number of the micro-batch among those of this node, from 0. CST_UNIT_STEP: 0. */
    uint32_t micro_batch;
};

/* The rank has done the unit that it got last, if it got one: hand in its gradients, and wait for
 * the next unit. For models that are cut into stages (cst_stage). @loss is the loss of the
 * micro-batch if the unit was a backward pass of the last stage, and is ignored otherwise.
 *
 * Ranks are interchangeable. Each one calls cst_sync, then cst_next until it gets CST_UNIT_STEP,
 * then cst_step, and so on. Not all ranks need to be there: each does as much as it can. All ranks
 * commit once (cst_commit). Then a rank may leave or die at any time, and another process may join
 * in its place at any time, in the middle of a step too. What a rank had in hand when it ended is
 * given to another rank. cst_step waits for the ranks that have called cst_sync and are there. If
 * the connection of a rank ends but its process goes on for 2 s, the step is void, because the
 * process could still put arrays: the others do the step again without it, with new memory for the
 * edges.
 *
 * A unit of a stage:
 *   - CST_UNIT_FORWARD: take what the stage before has put, run the stage's operators forward, and
 *     put the result. The last stage has no such units.
 *   - CST_UNIT_BACKWARD: run the operators forward again, from what the stage before has put, and
 *     then backward, from the gradient that the stage after it has put. Put the gradient for the
 *     stage before. In the last stage the forward pass ends with the loss.
 *
 * Arrays go from unit to unit through edges of CST_ALL_RANKS, with the number of the micro-batch as
 * their number. Nothing is put or taken that another rank could be writing: a unit is given out
 * when all that it takes was put. Arrays stay until the step ends, because a unit may be done
 * again.
 *
 * The bits of the results depend neither on the number of ranks nor on when they come or go,
 * provided that a unit has the same results in every rank. The gradient of a tensor is the sum of
 * the units' gradients in a fixed order, each added in fp32. `loss` of struct cst_step_result is
 * the mean over the micro-batches.
 *
 * Rank blocks (block_ranks of struct cst_job_updates) have micro_batches each. On a node with
 * several rank blocks, micro-batch number b x micro_batches + i is the i-th one of rank block b of
 * the node, and an edge needs as many slots as the node has micro-batches. In the job, the rank
 * blocks are numbered node after node: the first one of a node is first_rank divided by the ranks
 * of a rank block. The gradients of each rank block are added first, and its losses are averaged
 * first. The sum of the gradients is not divided by the number of rank blocks: grad_scale is for
 * that. On several nodes, ranks come and go on each node as described above, and the step is void
 * when a node has no rank left.
 *
 * What is done stays done until the step ends or is void: the units that a rank has done before it
 * ended or called cst_sync, and also gradients of the unit that it had in hand. A rank that could
 * have other inputs than the others compares them before it does its first unit. The first unit of
 * a step is done before any other one is given out, so that an array that was put in it tells all
 * ranks with what the step began.
 *
 * What a rank has handed in when it asks for the next unit is the unit's contribution: a tensor of
 * the stage whose gradient it has not handed in gets none from this micro-batch.
 *
 * A rank keeps a stage for all micro-batches, if it can, so that the weights of the stage are
 * loaded once for all of them. cst_accumulate and cst_prepare_step are not used. Statuses:
 *   - CST_EINVAL: the model has no stages, an operator is begun, or cst_sync has not been called.
 *   - CST_ETIMEDOUT: there was no unit for this rank, and no rank has done one in timeout_ms. The
 *     error names the rank whose unit others wait for.
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync. The death of another rank is no
 *     reason for that, but a rank that disconnects and goes on is.
 *   - CST_EBUSY: another call is pending.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin. */
int cst_next(struct cst_job *job, double loss, struct cst_unit *unit, struct cst_err *err);
int cst_try_next(struct cst_job *job, double loss, struct cst_unit *unit, struct cst_err *err);

#ifdef __cplusplus
}
#endif

#endif
