/* SPDX-License-Identifier: Apache-2.0 */
/* Packs a worker's declarations into Declare messages: first edges and groups, then tensors, then
 * operators. */
#ifndef CST_DECLARE_MESSAGE_H
#define CST_DECLARE_MESSAGE_H

#include "offload/layout/layout.h"
#include "proto/cistern.pb-c.h"

/* Progress of packing. Begins with zeros. */
struct cstc_declare_cursor {
    uint32_t edge;   /* Number of edges that are packed. */
    uint32_t group;  /* Number of groups that are packed, without group 0. */
    uint32_t tensor; /* Number of tensors that are packed. Tensors follow the groups. */
    uint32_t op;     /* Number of operators that are packed. Operators follow the tensors. */
};

/* Make the next Declare message, with as many declarations of @model as are sure to fit into a
 * frame, and advance @cursor. *out belongs to the caller, who frees it with
 * cstc_declare_free_message; it borrows from @model. *out is NULL if all declarations are packed.
 * CST_EINVAL: an operator is too large for a message; CST_ENOMEM. After a failure @cursor is
 * undefined. */
int cstc_declare_message(const struct cst_model *model, struct cstc_declare_cursor *cursor,
                         Cistern__Declare **out, struct cst_err *err);
void cstc_declare_free_message(Cistern__Declare *msg);

#endif
