/* SPDX-License-Identifier: Apache-2.0 */
/* The states of tensors: weights, gradients, master weights and moments, as a worker reads and
 * writes them. cistern.h has the terms, and what holds for all calls. */
#ifndef CISTERN_STATE_H
#define CISTERN_STATE_H

#include "cistern/job.h"
#include "cistern/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The states of a tensor, and the type in which they are read and written. */
enum cst_state {
    /* The tensor's type. A write of a trained bf16 tensor's weights lasts until its next update,
     * which computes the weights from the master weights: to change a model, write these. */
    CST_STATE_WEIGHT = 0,
    /* The tensor's type. The last gradient, summed over the ranks. With micro-batches it is their
     * fp32 sum, rounded if the tensor is bf16. Read only. */
    CST_STATE_GRAD = 1,
    /* fp32. Of fp32 tensors it is the weights. A write also sets the weights. Before the first
     * cst_sync of a job's life it clears both moments, because it begins the tensor; afterwards
     * moments stay. */
    CST_STATE_MASTER = 2,
    /* fp32, whatever the format of the moments. With 8-bit moments, 32 elements have an exponent in
     * common: a write of some of them can round the others again. */
    CST_STATE_EXP_AVG = 3,
    /* fp32, whatever the format of the moments. CST_EUNSUPPORTED: the optimizer has one moment. */
    CST_STATE_EXP_AVG_SQ = 4,
};

/* Copy the elements [first, first + n_elems) of a tensor's state from the job's memory to @data
 * (cst_tensor_read), or from @data to the job's memory (cst_tensor_write). @data belongs to the
 * caller and has @n_elems elements of the state's type, in host memory. The job must be committed.
 * Reads are possible at any time, and see the updates of all committed steps. Writes are possible
 * only between steps. No other rank is needed.
 *
 * Statuses of both:
 *   - CST_EINVAL: the tensor, the state or the range does not exist, @data is NULL, or the job is
 *     not committed.
 *   - CST_EUNSUPPORTED: the tensor is frozen and the state is not the weight. Exception: a write of
 *     a frozen tensor's master weights sets its weights.
 *   - CST_EBUSY: a cst_try_... call is pending.
 *   - CST_EBUDGET: there is no memory for the transfer, which takes 64 KiB to 4 MiB of the daemon's
 *     memory, in addition to that of the job, until this client disconnects.
 *   - CST_ELOST, CST_EENGINE: the chunk or the engine is lost.
 *   - CST_ECONN: the daemon has ended, and is not started again or has not kept the job, as before
 *     the first cst_sync of a job's life.
 *
 * If the daemon ends during a call and is started again with the job, the call goes on: it reads or
 * writes everything again. If the process of the worker ends, too, what it was writing may be torn:
 * the job stays, but states of the same chunk cannot be read, nor the job be saved or reshaped
 * (CST_EBUSY), and cst_sync of that rank returns CST_ELOST, until the same range of the same state
 * is written again.
 *
 * Statuses of writes:
 *   - CST_EBUSY: a step is under way.
 *   - CST_EINVAL: a gradient was to be written.
 *   - CST_EDENIED: the tensor belongs to this job's base job.
 *   - CST_EBUSY: the tensor is frozen, and another job uses this job as its base.
 *
 * A gradient cannot be read while its sum is incomplete (CST_EBUSY).
 *
 * With grad_over_weight, for bf16 tensors:
 *   - A gradient can be read from the end of its sum to its update (else CST_EUNSUPPORTED).
 *   - Weights cannot be written (CST_EUNSUPPORTED); write the master weights.
 *   - Master weights cannot be written while a gradient of an interrupted attempt is still being
 *     copied to the place of the weights (CST_EBUSY).
 *
 * With early updates, from a step's first update to its commit, even between attempts:
 *   - Master weights and moments of updated chunks cannot be read (CST_EBUSY).
 *   - No state can be written (CST_EBUSY).
 * With early updates, a gradient of a bf16 tensor that was summed by its own update was never
 * stored. It cannot be read at any time (CST_EUNSUPPORTED). Which chunks are updated that way
 * depends on times, and may change from step to step.
 *
 * With delayed updates, a write of weights or master weights suspends the delay for one step: the
 * next step reads the results of all updates so far. */
int cst_tensor_read(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                    uint64_t n_elems, void *data, struct cst_err *err);
int cst_tensor_write(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                     uint64_t n_elems, const void *data, struct cst_err *err);

/* Say which step the job is at, for states that cst_tensor_write has written: @steps are committed,
 * and @n_skipped of them have changed nothing. The bias corrections of the optimizer count the
 * others. @missed says how many of these each tensor was skipped in, in the order of declaration
 * (CST_UNUSED_SKIP); NULL: none in any. One rank calls this, after it has written the states and
 * before cst_sync of all ranks, from which the others learn it. The job then has states: later
 * writes of master weights leave moments alone. Statuses:
 *   - CST_EINVAL: @n_skipped is larger than @steps, a number of @missed is larger than the
 *     difference of the two or, in a job that skips no tensors, not 0; or the job is not committed.
 *   - CST_EBUSY: a step is under way, or a cst_try_... call is pending.
 *   - CST_ELOST, CST_EENGINE: states are lost. */
int cst_set_steps(struct cst_job *job, uint64_t steps, uint64_t n_skipped, const uint64_t *missed,
                  struct cst_err *err);

/* Get the numbers @missed of cst_set_steps, one for each tensor of the job, as of the last
 * committed step. CST_EINVAL: the job is not committed; CST_EBUSY: a cst_try_... call is pending.
 */
int cst_missed_steps(struct cst_job *job, uint64_t *missed, struct cst_err *err);

#ifdef __cplusplus
}
#endif

#endif
