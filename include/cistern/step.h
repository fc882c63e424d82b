/* SPDX-License-Identifier: Apache-2.0 */
/* A training step: ranks wait for each other, run operators, and commit the step. cistern.h has the
 * terms, and what holds for all calls. */
#ifndef CISTERN_STEP_H
#define CISTERN_STEP_H

#include "cistern/job.h"
#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Wait until every rank has a worker, and every worker has called cst_sync. *step is the number of
 * committed steps, which is also the number of the step to do now, counted from 0. It is the same
 * for all ranks. @step may be NULL.
 *
 * A worker calls cst_sync once before its first step, and again after CST_EPEERDIED or CST_ESTALE.
 * These two statuses mean that the current step is void for all ranks. Nothing of the step is kept,
 * and it must be done again. A step with early updates is an exception: see cst_prepare_step.
 *
 * After the end of the daemon, or if it ends during the call, cst_sync waits up to timeout_ms (60 s
 * if it is 0) for its next process, opens the job again and maps a new pool. The addresses of the
 * old pool are not valid any more. cst_try_sync does the same without waiting for the daemon, but
 * it waits for the answers of the new process, and for the work on the rank's stream.
 *
 * If a rank calls cst_sync during a step, the step is void for all ranks. The others get
 * CST_EPEERDIED from the call in which they wait or from their next call, and must call cst_sync,
 * too. But if every rank has already called cst_step, the step is committed first.
 *
 * Statuses:
 *   - CST_ETIMEDOUT: ranks are missing after timeout_ms; the error names them.
 *   - CST_ECONN: the daemon was not started again in time.
 *   - CST_ELOST: the daemon was started again and does not have the job.
 *   - CST_ELOST: the daemon and an earlier process of this rank ended while that wrote states,
 * which were not written again (cst_tensor_write).
 *   - CST_EENGINE, CST_ELOST: the device of this rank's pool is lost. The error names the device
 *     and the cause. The step is void. Unless the error names chunks, the states are not lost, and
 *     can be read and written.
 *   - CST_EENGINE: the daemon gave up the engine of a NUMA node. All ranks get this status. All
 *     ranks then leave and open the job again, and the daemon starts the engine again.
 *   - CST_EBUDGET, CST_ENOMEM, CST_EGPU: the slots of an edge of this rank are elsewhere now, for
 *     example because a rank's device was lost, and can be mapped neither there nor, for slots in
 *     device memory, in host memory. The step is void. The next cst_sync tries again.
 *   - CST_EINVAL: the job is not committed.
 *   - CST_EBUSY: another call is pending.
 *
 * After the loss of its device, this worker leaves the job. Then it, or a new process, opens the
 * job as the same rank. The other ranks wait for that in cst_sync. The device is one of these:
 *   - the lost device, which the daemon then tries again;
 *   - "host";
 *   - a GPU that has a pool of this job.
 * The daemon makes a new pool of the same size there. */
int cst_sync(struct cst_job *job, uint64_t *step, struct cst_err *err);
int cst_try_sync(struct cst_job *job, uint64_t *step, struct cst_err *err);

enum cst_direction { CST_FORWARD, CST_BACKWARD };

/* One tensor of an operator that has begun. The pointers are valid from cst_op_begin to cst_op_end
 * of this operator. They are addresses in the memory of the rank's device. */
struct cst_io {
    /* Weights: n_elems elements of the tensor's type (cistern/dtype.h), row-major in the declared
     * shape, 128-byte aligned. The worker must not write them. */
    void *weight;
    /* Gradient: n_elems elements of the tensor's type, in the layout of the weights. NULL in
     * CST_FORWARD and for frozen tensors. */
    void *grad;
    /* How to write the gradient. False: its memory has undefined contents, and the worker must
     * overwrite all elements. True: an earlier use of the tensor in this micro-batch has written
     * the gradient, and the worker must add to it. */
    bool accumulate;
    uint64_t n_elems; /* Number of elements of the tensor. */
};

/* Begin the operator @op: wait until the weights of all its tensors are in the pool. @io has @n_io
 * entries, as many as the operator has tensors. io[i] receives the i-th tensor of the declaration.
 * Only one operator can be begun at a time. In CST_BACKWARD the worker must write every io[i].grad
 * that is not NULL before cst_op_end.
 *
 * An operator may be begun with CST_FORWARD any number of times in a micro-batch, and also between
 * operators that are begun with CST_BACKWARD: to compute it again, to use its weights for the
 * gradient of an input, or to evaluate the model between two steps. Statuses:
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync.
 *   - CST_EINVAL: a gradient of the operator was already handed in during this micro-batch.
 *   - CST_EINVAL: there is no such operator, or this rank does not run it.
 *   - CST_EINVAL: another operator is begun.
 *   - CST_EINVAL: @n_io is wrong.
 *   - CST_EINVAL: cst_sync has not been called yet.
 *   - CST_EPOOL: the pool has too few blocks, because operators run in another order than declared.
 *   - CST_EBUSY: another call is pending.
 *   - CST_EENGINE, CST_ELOST: the daemon gave up an engine. If it is the engine of this rank's
 *     device, cst_sync does not help. The worker must leave and open the job again, as described at
 *     cst_sync. */
int cst_op_begin(struct cst_job *job, int op, enum cst_direction direction, struct cst_io *io,
                 uint32_t n_io, struct cst_err *err);
int cst_try_op_begin(struct cst_job *job, int op, enum cst_direction direction, struct cst_io *io,
                     uint32_t n_io, struct cst_err *err);

/* End the operator @op. In CST_BACKWARD, the gradients of a chunk are handed in when the last
 * operator of the micro-batch that uses the chunk ends. Never waits. Statuses:
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin.
 *   - CST_EINVAL: the operator is not begun.
 *   - CST_EINVAL: CISTERN_DEBUG has the word poison (libcistern(3)), and an element of a gradient
 *     was not written. The error names the tensor and the first such element. The operator stays
 *     begun. */
int cst_op_end(struct cst_job *job, int op, struct cst_err *err);

/* Check whether gradients can be handed in now although their operator @op is not the next one in
 * the reverse order of declaration: the pool has blocks for its backward pass, for the forward pass
 * of any operator after it, and then for the backward passes of all other operators that have had
 * none in this micro-batch, in the reverse order of declaration.
 *
 * This is for workers that compute in another order than they declare. Such a worker keeps
 * gradients in memory of its own until this function returns CST_OK, and begins operators in
 * CST_BACKWARD only to hand them in. At the end of the micro-batch it hands in all that are left,
 * in the reverse order of declaration, and zeros for operators that it has not used. Then no call
 * of cst_op_begin returns CST_EPOOL. Not for models that are cut into stages: their units run in
 * the order of declaration. Never waits. Statuses:
 *   - CST_EPOOL: the gradients cannot be handed in yet. The text is the same for all operators.
 *   - CST_EINVAL: there is no such operator, this rank does not run it, or an operator is begun.
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin. */
int cst_op_fits(struct cst_job *job, int op, struct cst_err *err);

enum cst_hint {
    CST_PREFETCH = 1, /* Weights are wanted soon: fetch them, if a block can be spared. */
    CST_EVICT = 2,    /* Weights are not wanted soon: other weights may take their blocks. */
};

/* Tell the daemon whether this rank will want the weights of the operator @op, or of one tensor,
 * soon. Hints can change when weights are copied. They never change a result. A hint applies to
 * whole chunks, and therefore also to other tensors in the same chunks. Hints are useful if earlier
 * steps do not show what comes next. Examples are an evaluation between two steps, and a part of
 * the model that some steps leave out. The functions may be called at any time after cst_sync, even
 * while an operator is begun. They never wait.
 *
 * The daemon ignores a hint in these cases:
 *   - CST_PREFETCH: the weights are in the pool already, fetches wait for blocks, or the worker
 *     copies weights itself (cistern/device.h).
 *   - CST_EVICT: the weights are not in the pool, or their copy to the pool is under way.
 * Evicted weights come back when they are used, or earlier, if the daemon expects their use.
 *
 * Statuses:
 *   - CST_EBUSY: CST_EVICT was given for weights of a chunk that the current operator uses, or a
 *     cst_try_... call is pending.
 *   - CST_EINVAL: there is no such operator, tensor or hint; or this rank does not run the operator
 *     or any operator that uses the tensor.
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin. */
int cst_hint(struct cst_job *job, int op, enum cst_hint hint, struct cst_err *err);
int cst_hint_tensor(struct cst_job *job, int tensor, enum cst_hint hint, struct cst_err *err);

/* End a micro-batch that is not the last one of its step. Its gradients are added, in fp32, to
 * those of the step's earlier micro-batches. Afterwards the forward pass of the next micro-batch
 * can begin. In a job with micro_batches = M, a step has at most M - 1 calls of cst_accumulate; its
 * last micro-batch ends with cst_step. The order of the sums is fixed: by micro-batch, and within a
 * micro-batch by rank. Never waits. Statuses:
 *   - CST_EINVAL: the M-th call in a step, or an operator is begun.
 *   - CST_EBUSY: a cst_try_... call is pending.
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin. */
int cst_accumulate(struct cst_job *job, struct cst_err *err);

/* Parameters of a step's update. What follows from them, such as 1 - beta1, is computed in double;
 * the update itself computes in fp32. Every field except lr is 0 for its default. Every field
 * except loss must be finite, and not negative unless its comment says otherwise. lr, eps,
 * weight_decay and grad_scale must also be below FLT_MAX, and an eps or grad_scale that is given
 * must be at least FLT_MIN, because smaller ones could be 0 in fp32. (CST_EINVAL: the error names
 * the field, its value and its range.) */
struct cst_hyper_params {
    double lr; /* Learning rate. */
    /* Below 1. If beta1 and beta2 are both 0, beta1 is 0.9. If only beta1 is 0, it stays 0. With
     * SGD, beta1 is the momentum, and a negative beta1 means no momentum. */
    double beta1;
    double beta2;        /* Below 1. 0: 0.99 for Lion, 0.999 for the other optimizers. */
    double eps;          /* 0: 1e-8. */
    double weight_decay; /* 0: no decay. */
    double clip_norm;    /* Largest L2 norm of all gradients together. 0: no clipping. */
    double grad_scale;   /* Factor on the gradients after their sum over the ranks. 0: 1. */
    /* Loss of this rank, for reports. Any value, NaN too; ranks may differ. 0: it has none, such as
     * a stage of a pipeline that is not the last one. */
    double loss;
    uint64_t tokens; /* Tokens of the step, of all ranks together, for reports. 0: not known. */
};

/* Factors of a parameter group: the update of its tensors multiplies `lr` and `weight_decay` of
 * struct cst_hyper_params with them, and with lr_scale and decay_scale of the tensor. Not
 * negative, and below FLT_MAX. */
struct cst_param_group {
    double lr;
    double weight_decay;
};

/* Set the factors of the parameter groups 0 to @n - 1, of which each tensor is in one (param_group
 * of struct cst_tensor_spec), for this rank's later calls of cst_prepare_step and cst_step. The
 * factors of other groups, and of all groups at first and with @n 0, are 1. In a step all ranks
 * give the same @n and the same factors (else CST_EMISMATCH from cst_step). @groups is copied. May
 * be called at any time after cst_job_open. Never waits. Statuses:
 *   - CST_EINVAL: there are more than CST_MAX_PARAM_GROUPS groups, or a factor is out of range.
 *   - CST_EBUSY: a cst_try_... call is pending. */
int cst_param_groups(struct cst_job *job, const struct cst_param_group *groups, uint32_t n,
                     struct cst_err *err);

/* Give the parameters of this step's cst_step in advance, before the first backward pass. With
 * CST_OVERLAP_EARLY and without clipping, each chunk is then updated as soon as its gradient is
 * complete. With any other overlap the call has no effect. Never waits.
 *
 * An update treats a chunk in tiles, which are pieces of 4096 elements. If a gradient is not finite
 * or too large, an early update leaves out the tiles that have such gradients. The step is not
 * skipped as a whole. Its result then has `overflow`, not `skipped`.
 *
 * If a step is interrupted after its first update, it can only be finished, not undone:
 *   - The ranks must give the parameters with which the step was begun. Otherwise this call or a
 *     later one returns CST_EMISMATCH. The error has both values.
 *   - Gradients that are handed in again for chunks that were already updated are ignored.
 *     (`cistern job` shows how many these were.) Therefore each rank should compute the same batch
 *     again.
 *   - The alternative is to remove the job (cst_job_remove), and to begin again from states that
 *     the program saved itself (cst_tensor_read).
 *
 * Statuses:
 *   - CST_EINVAL: a parameter is out of range, or the call was made before in this step with other
 *     parameters.
 *   - CST_EBUSY: a cst_try_... call is pending.
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync. */
int cst_prepare_step(struct cst_job *job, const struct cst_hyper_params *params,
                     struct cst_err *err);

struct cst_step_result {
    uint64_t step; /* Number of committed steps, including this one. */
    /* The step counts, but its update was skipped, and the states did not change. The reason is
     * that the norm of the gradients, after scaling and clipping, was NaN, infinite or too large.
     * Too large means larger than 2^63, so that the square cannot be summed in fp32. */
    bool skipped;
    double grad_norm;   /* L2 norm of all gradients, after grad_scale, before clipping. */
    float clip;         /* Factor by which clipping scaled the gradients; 1: no clipping. */
    double loss;        /* Mean of the losses that ranks have given, in the order of the ranks. */
    uint64_t n_skipped; /* Number of skipped steps since the job began. */
    /* The norm was NaN, infinite or too large. A dynamic loss scale should use this field, because
     * it covers two cases:
     *   - Without early updates, the step was skipped.
     *   - With early updates, the tiles whose own norm is NaN, infinite or too large were left out.
     *     There may be no such tile. */
    bool overflow;
};

/* Say that this rank has no gradient of @tensor in this step, although it was written. Only in a
 * job with CST_UNUSED_SKIP. The step skips the tensor if no rank of its group has one.
 *   - With @discard false, what was written are zeros, which are added to the gradients of other
 *     ranks.
 *   - With @discard true, what was written in the whole step so far is discarded. All ranks that
 *     have a gradient of the tensor must discard it (else CST_EMISMATCH from cst_step). It adds
 *     nothing to the norm of the gradients.
 * A backward pass that writes the gradient again takes the word back. Never waits. Statuses:
 *   - CST_EINVAL: there is no such tensor, it is frozen, or the job does not skip tensors.
 *   - CST_EBUSY: a cst_try_... call is pending.
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync. */
int cst_no_gradient(struct cst_job *job, int tensor, bool discard, struct cst_err *err);

/* Commit the step. Hands in all gradients that are left. A tensor whose gradient no rank has
 * written in this step is skipped or has a gradient of zeros, as the job's `unused` says. Waits
 * until every rank has called cst_step with equal parameters and the norm is known. After CST_OK
 * the step cannot be lost. Updates run at the time that the job's `overlap` says. @result may be
 * NULL. Statuses:
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync. Its *step is one more than before
 *     if the daemon ended after it had committed the step and before it could say so.
 *   - CST_EMISMATCH: the parameters differ between ranks.
 *   - CST_ETIMEDOUT: not all ranks have called cst_step in timeout_ms.
 *   - CST_EINVAL: a parameter is out of range, or an operator is begun.
 *   - CST_EBUSY: another call is pending.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin. */
int cst_step(struct cst_job *job, const struct cst_hyper_params *params,
             struct cst_step_result *result, struct cst_err *err);
int cst_try_step(struct cst_job *job, const struct cst_hyper_params *params,
                 struct cst_step_result *result, struct cst_err *err);

#ifdef __cplusplus
}
#endif

#endif
