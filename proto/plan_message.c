/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/plan_message.h"

void cst_plan_message_fill(Cistern__JobPlan *msg, struct cst_saved_plan *plan)
{
    cistern__job_plan__init(msg);
#define FILL_required(member) msg->member = plan->member;
#define FILL_optional(member)                                                                      \
    msg->member = (__typeof__(msg->member))plan->member;                                           \
    msg->has_##member = plan->member != 0;
#define CST_PLAN_OPTION(member, path, names, presence) FILL_##presence(member)
#define CST_PLAN_MODEL(type, member) FILL_required(member)
#define CST_PLAN_CHOICE(type, member, names, presence) FILL_##presence(member)
#include "proto/saved_plan.def"
    msg->n_chunk_elems = plan->n_classes;
    msg->chunk_elems = plan->chunk_elems;
    msg->n_n_blocks = plan->n_classes;
    msg->n_blocks = plan->n_blocks;
    msg->step_seconds = plan->step_s;
}

int cst_plan_message_read(const Cistern__JobPlan *msg, struct cst_saved_plan *out,
                          struct cst_err *err)
{
    struct cst_saved_plan plan = {
#define CST_PLAN_OPTION(member, ...) .member = msg->member,
#define CST_PLAN_MODEL(type, member) .member = msg->member,
#define CST_PLAN_CHOICE(type, member, ...) .member = (type)msg->member,
#include "proto/saved_plan.def"
        .step_s = msg->step_seconds,
    };
    int rc;

    if (msg->n_chunk_elems != msg->n_n_blocks || msg->n_chunk_elems > CST_SAVED_PLAN_CLASSES) {
        return cst_err_set(err, CST_EINVAL, "a plan with %zu capacities and blocks of %zu classes",
                           msg->n_chunk_elems, msg->n_n_blocks);
    }
    plan.n_classes = (uint32_t)msg->n_chunk_elems;
    for (uint32_t i = 0; i < plan.n_classes; i++) {
        plan.chunk_elems[i] = msg->chunk_elems[i];
        plan.n_blocks[i] = msg->n_blocks[i];
    }
    rc = cst_saved_plan_check(&plan, err);
    if (rc == CST_OK) {
        *out = plan;
    }
    return rc;
}
