/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/plan_message.h"

void cst_plan_message_fill(Cistern__JobPlan *msg, struct cst_saved_plan *plan)
{
    cistern__job_plan__init(msg);
    msg->fingerprint = plan->fingerprint;
    msg->n_params = plan->n_params;
    msg->n_tensors = plan->n_tensors;
    msg->n_operators = plan->n_operators;
    msg->world = plan->world;
    msg->micro_batches = plan->micro_batches;
    msg->optimizer = plan->optimizer;
    msg->moments = plan->moments;
    msg->has_masters = true;
    msg->masters = plan->masters;
    msg->overlap = plan->overlap;
    msg->grad_over_weight = plan->grad_over_weight;
    msg->n_chunk_elems = plan->n_classes;
    msg->chunk_elems = plan->chunk_elems;
    msg->n_n_blocks = plan->n_classes;
    msg->n_blocks = plan->n_blocks;
    msg->n_chunks = plan->n_chunks;
    msg->pool_bytes = plan->pool_bytes;
    msg->prefetch_depth = plan->prefetch_depth;
    msg->device_update_bytes = plan->device_update_bytes;
    msg->has_lent = plan->lent != 0;
    msg->lent = plan->lent != 0;
    msg->device_states = plan->device_states;
    msg->step_seconds = plan->step_s;
}
