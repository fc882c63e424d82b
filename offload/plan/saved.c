/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/plan/saved.h"

#include "offload/layout/digest.h"

_Static_assert(CST_SAVED_PLAN_CLASSES == CST_LAYOUT_MAX_CLASSES, "a saved plan has all classes");

void cst_plan_saved_job(struct cst_saved_plan *out, const struct cst_model *model, uint32_t world,
                        uint32_t micro_batches, const struct cst_layout_states *states,
                        enum cst_overlap overlap)
{
    *out = (struct cst_saved_plan){.fingerprint = cst_model_digest(model, world),
                                   .n_params = model->n_params,
                                   .n_tensors = model->n_tensors,
                                   .n_operators = model->n_operators,
                                   .world = world,
                                   .micro_batches = micro_batches,
                                   .optimizer = (uint32_t)states->optimizer,
                                   .masters = (uint32_t)states->masters,
                                   .moments = (uint32_t)states->moments,
                                   .overlap = (uint32_t)overlap,
                                   .grad_over_weight = states->grad_over_weight};
}

/* Capacity of size class @i. */
static uint64_t class_elems(const struct cst_plan_choice *choice, uint32_t i)
{
    return i == 0 ? choice->layout.chunk_elems : choice->layout.class_elems[i - 1];
}

void cst_plan_saved_make(struct cst_saved_plan *out, const struct cst_plan_config *config,
                         const struct cst_plan_choice *choice)
{
    struct cst_saved_plan plan;

    cst_plan_saved_job(&plan, config->model, config->world, config->micro_batches, &config->states,
                       config->overlap);
    plan.n_classes = choice->n_classes;
    for (uint32_t i = 0; i < choice->n_classes; i++) {
        plan.chunk_elems[i] = class_elems(choice, i);
        plan.n_blocks[i] = choice->n_blocks[i];
    }
    plan.n_chunks = choice->n_chunks;
    plan.pool_bytes = choice->pool_bytes;
    plan.prefetch_depth = choice->prefetch_depth;
    plan.device_update_bytes = choice->device_update_bytes;
    plan.lent = choice->lends;
    plan.device_states = choice->device_states;
    plan.step_s = (double)choice->predicted.step_ns * 1e-9;
    *out = plan;
}

void cst_plan_saved_choice(const struct cst_saved_plan *plan, struct cst_plan_choice *out)
{
    struct cst_plan_choice choice = {
        .layout = {.chunk_elems = plan->chunk_elems[0], .world = plan->world},
        .n_classes = plan->n_classes,
        .prefetch_depth = plan->prefetch_depth,
        .n_chunks = plan->n_chunks,
        .pool_bytes = plan->pool_bytes,
        .device_update_bytes = plan->device_update_bytes,
        .lends = plan->lent != 0,
        .device_states = plan->device_states,
        .predicted = {.step_ns = (uint64_t)(plan->step_s * 1e9)},
        .binds = "unknown: the plan was made before",
    };

    for (uint32_t i = 0; i < plan->n_classes; i++) {
        choice.n_blocks[i] = plan->n_blocks[i];
        if (i > 0) {
            choice.layout.class_elems[i - 1] = plan->chunk_elems[i];
        }
    }
    *out = choice;
}
