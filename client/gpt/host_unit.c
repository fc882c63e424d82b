/* SPDX-License-Identifier: Apache-2.0 */
/* Units of a model that is cut into stages. A stage's input is the residual stream before its first
 * block. The backward pass computes the stage's activations again from it.
 *
 *   forward of stage s    input from edge s - 1 -> blocks -> output to edge s
 *   backward of stage s   input from edge s - 1 -> blocks -> gradient from edge stages - 1 + s
 *                         -> blocks backward -> gradient to edge stages - 1 + s - 1 */
#include "client/gpt/pass_host.h"

struct unit_run {
    struct gpt_pass_host *p;
    struct gpt_store *store;
    const struct cst_unit *unit;
    uint32_t first, last; /* The stage's operators: [first, last). */
    uint64_t bytes;       /* Of the residual stream of the micro-batch. */
};

static void find_operators(struct unit_run *run)
{
    const struct gpt_model *model = run->p->head.model;

    run->first = run->last = 0;
    while (gpt_model_stage(model, &model->operators[run->first]) < run->unit->stage) {
        run->first++;
    }
    for (run->last = run->first;
         run->last < model->n_operators &&
         gpt_model_stage(model, &model->operators[run->last]) == run->unit->stage;) {
        run->last++;
    }
}

static bool is_last(const struct unit_run *run)
{
    return run->unit->stage + 1 == run->p->head.model->stages;
}

/* The residual stream after the stage, which is not the last one. */
static float *output_of(const struct unit_run *run)
{
    return gpt_host_block_out(run->p, run->p->head.model->operators[run->last - 1].layer);
}

static int run_forward(const struct unit_run *run, struct cst_err *err)
{
    struct gpt_pass_host *p = run->p;
    const struct cst_unit *unit = run->unit;
    const uint32_t block = p->head.model->operators[run->first].layer;
    int rc = unit->stage == 0
                 ? 0
                 : run->store->ops->take(run->store, unit->stage - 1, unit->micro_batch,
                                         p->blocks[block].x, run->bytes, err);

    for (uint32_t i = run->first; rc == 0 && i < run->last; i++) {
        rc = gpt_pass_step(&p->head, run->store, i, CST_FORWARD, err);
    }
    return rc;
}

static int run_backward(const struct unit_run *run, struct cst_err *err)
{
    struct gpt_pass_host *p = run->p;
    const struct cst_unit *unit = run->unit;
    const struct gpt_store_ops *ops = run->store->ops;
    const uint32_t back = p->head.model->stages - 1 + unit->stage;
    int rc = 0;

    if (is_last(run)) {
        gpt_host_loss(p);
    } else {
        rc = ops->take(run->store, back, unit->micro_batch, p->dx, run->bytes, err);
    }
    for (uint32_t i = run->last; rc == 0 && i-- > run->first;) {
        rc = gpt_pass_step(&p->head, run->store, i, CST_BACKWARD, err);
    }
    return rc == 0 && unit->stage > 0
               ? ops->put(run->store, back - 1, unit->micro_batch, p->dx, run->bytes, err)
               : rc;
}

int gpt_host_unit(struct gpt_pass *pass, struct gpt_store *store, const struct cst_unit *unit,
                  size_t n_seqs, struct cst_err *err)
{
    struct unit_run run = {.p = (struct gpt_pass_host *)(void *)pass, .store = store, .unit = unit};
    int rc;

    gpt_host_begin(run.p, n_seqs);
    run.bytes = (uint64_t)run.p->rows * pass->model->width * sizeof(float);
    find_operators(&run);
    rc = run_forward(&run, err);
    if (rc == 0 && unit->kind == CST_UNIT_BACKWARD) {
        rc = run_backward(&run, err);
    } else if (rc == 0) {
        rc =
            store->ops->put(store, unit->stage, unit->micro_batch, output_of(&run), run.bytes, err);
    }
    return rc;
}
