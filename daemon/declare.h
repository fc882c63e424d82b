/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations of groups, tensors and operators: the first rank to declare number i fixes it, the
 * others are compared with it. What an operator costs is no word of the model: the first rank's
 * hints count.
 *
 * Nobody knows which of two ranks that disagree is right. So all of them hear of it, the model is
 * dropped, and each declares anew from its first tensor on. Once the job is committed its model
 * stands: a worker that comes back with another one is alone with the error. */
#ifndef CST_DECLARE_H
#define CST_DECLARE_H

#include "daemon/job.h"
#include "proto/cistern.pb-c.h"

/* Take @message of @worker. CST_EMISMATCH: names the group, tensor or operator, what differs from
 * what other ranks declared, both values and the ranks; it is for the caller to reply, and then to
 * call cst_declare_disagree; CST_EINVAL, CST_EEXIST: as cst_model_group, cst_model_tensor_as and
 * cst_model_operator_as; a group with ranks that the job lacks; CST_EUNSUPPORTED: a dtype that this
 * version lacks. What came before the culprit stays declared. */
int cst_declare(struct cst_worker *worker, const Cistern__Declare *message, struct cst_err *err);

/* @worker has declared @n_tensors and @n_operators, and so has every other rank. CST_EINVAL: the
 * numbers are not those of its Declares, or nothing was declared; CST_EMISMATCH: another rank
 * declared more; as for cst_declare. */
int cst_declare_check(const struct cst_worker *worker, uint32_t n_tensors, uint32_t n_operators,
                      struct cst_err *err);

/* @worker has been told of @why, CST_EMISMATCH (NULL: one that was not let in has). It declares
 * anew. While the job is not committed, the others do so too: a Commit that waits fails with @why
 * at once, who has not committed hears it at its next Declare or Commit. */
void cst_declare_disagree(struct cst_job *job, struct cst_worker *worker,
                          const struct cst_err *why);

/* @worker goes. What it alone declared goes with it while the job is not committed. */
void cst_declare_forget(struct cst_worker *worker);

#endif
