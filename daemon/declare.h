/* Declarations of tensors and operators: the first rank to declare number i fixes it, the others
 * are compared with it. */
#ifndef CST_DECLARE_H
#define CST_DECLARE_H

#include "daemon/job.h"
#include "proto/cistern.pb-c.h"

/* Take @message of @worker. CST_EMISMATCH: names the tensor or operator and what differs from what
 * another rank declared; CST_EINVAL, CST_EEXIST: as cst_model_tensor and cst_model_operator;
 * CST_EUNSUPPORTED: a dtype or group that this version lacks. What came before the culprit stays
 * declared. */
int cst_declare(struct cst_worker *worker, const Cistern__Declare *message, struct cst_err *err);

/* @worker has declared @n_tensors and @n_operators, and so has every other rank. CST_EINVAL: the
 * numbers are not those of its Declares, or nothing was declared; CST_EMISMATCH: another rank
 * declared more. */
int cst_declare_check(const struct cst_worker *worker, uint32_t n_tensors, uint32_t n_operators,
                      struct cst_err *err);

#endif
