/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations of groups, edges, tensors and operators. The first rank that declares number i
 * defines it, and the declarations of the other ranks are compared with it. The cost hints of
 * operators are not compared; those of the first rank count.
 *
 * If two ranks disagree, the daemon cannot know which one is right. All ranks therefore get the
 * error, the model is dropped, and every rank declares again from its first tensor. After the job
 * is committed its model is fixed: a worker that attaches with another model gets the error alone.
 */
#ifndef CST_DECLARE_H
#define CST_DECLARE_H

#include "daemon/job/job.h"
#include "proto/cistern.pb-c.h"

/* Process a Declare @message of @worker. Declarations before the faulty one stay.
 * - CST_EMISMATCH: another rank declared something different; @err names the group, edge, tensor
 *   or operator, the difference, both values and the ranks. The caller must reply and then call
 *   cstd_commit_disagree.
 * - CST_EINVAL, CST_EEXIST: statuses of cst_model_group, cst_model_edge, cst_model_tensor and
 *   cst_model_operator, and a group with ranks that the job does not have.
 * - CST_EBUDGET: the budget of host memory, or the user's share of it, has no more for the model.
 * - CST_EUNSUPPORTED: this version does not support the dtype. */
int cstd_declare(struct cstd_worker *worker, const Cistern__Declare *message, struct cst_err *err);

/* Charge the owner of @job for its model, even beyond the limits: it was declared to an earlier
 * daemon. Loop thread only. */
void cstd_declare_charge(struct cstd_job *job);

/* Free the model of @job, which ends. */
void cstd_declare_close(struct cstd_job *job);

/* Check at a Commit that @worker has declared the complete model, with @n_tensors tensors and
 * @n_operators operators. CST_EINVAL: the numbers differ from the worker's declarations, or nothing
 * was declared. CST_EMISMATCH: another rank declared more; the caller proceeds as after
 * cstd_declare. */
int cstd_declare_check(const struct cstd_worker *worker, uint32_t n_tensors, uint32_t n_operators,
                       struct cst_err *err);

/* Drop the declarations of @worker, which has been told @why (a CST_EMISMATCH). @worker is NULL if
 * the disagreeing worker was not admitted to the job. If the job is not committed, the model is
 * dropped too: ranks that have not committed get @why at their next Declare or Commit. Returns true
 * then, and the caller must fail the waiting Commits with @why. */
bool cstd_declare_drop(struct cstd_job *job, struct cstd_worker *worker, const struct cst_err *why);

/* Copy the first declarations of @from, as many as @much says, into *out, which must not be
 * initialised, without the names of tensors in model files, which take most of the time and memory.
 * CST_ENOMEM: *out is closed. */
int cstd_declare_copy(struct cst_model *out, const struct cst_model *from,
                      const struct cst_model_extent *much, struct cst_err *err);

/* Forget the declarations of @worker, which detaches. If the job is not committed, groups, edges,
 * tensors and operators that only @worker declared are removed from the model. CST_EMISMATCH: the
 * job is in CSTD_JOB_DECLARING, an operator of another rank uses a tensor that only @worker
 * declared, and the model was dropped; the caller must fail the waiting Commits with @err
 * (cstd_commit_break). */
int cstd_declare_forget(struct cstd_worker *worker, struct cst_err *err);

#endif
