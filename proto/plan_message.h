/* SPDX-License-Identifier: Apache-2.0 */
/* A saved plan as a message of cistern.proto. */
#ifndef CST_PLAN_MESSAGE_H
#define CST_PLAN_MESSAGE_H

#include "proto/cistern.pb-c.h"
#include "proto/saved_plan.h"

/* Fill @msg with @plan. The message points into @plan. */
void cst_plan_message_fill(Cistern__JobPlan *msg, struct cst_saved_plan *plan);

/* Read the plan in @msg. CST_EINVAL: it has impossible numbers; @out is unchanged. */
int cst_plan_message_read(const Cistern__JobPlan *msg, struct cst_saved_plan *out,
                          struct cst_err *err);

#endif
