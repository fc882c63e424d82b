/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/unit.h"

struct unit_run {
    struct gpt_pass *pass;
    struct gpt_store *store;
    const struct cst_unit *unit;
    uint32_t first, last;             /* The stage's operators: [first, last). */
    uint32_t first_block, last_block; /* Its blocks: [first_block, last_block]. */
    uint64_t bytes;                   /* Of the residual stream of the micro-batch. */
};

static void find_operators(struct unit_run *run)
{
    const struct gpt_model *model = run->pass->model;

    while (gpt_model_stage(model, &model->operators[run->first]) < run->unit->stage) {
        run->first++;
    }
    for (run->last = run->first;
         run->last < model->n_operators &&
         gpt_model_stage(model, &model->operators[run->last]) == run->unit->stage;) {
        run->last++;
    }
    run->first_block = model->operators[run->first].layer;
    run->last_block = run->first_block;
    for (uint32_t i = run->first; i < run->last; i++) {
        if (model->operators[i].kind != GPT_OP_HEAD) {
            run->last_block = model->operators[i].layer;
        }
    }
}

static bool is_last(const struct unit_run *run)
{
    return run->unit->stage + 1 == run->pass->model->stages;
}

static int run_forward(const struct unit_run *run, struct cst_err *err)
{
    const struct cst_unit *unit = run->unit;
    int rc = unit->stage == 0
                 ? 0
                 : run->store->ops->take(run->store, unit->stage - 1, unit->micro_batch,
                                         run->pass->ops->units->input(run->pass, run->first_block),
                                         run->bytes, err);

    for (uint32_t i = run->first; rc == 0 && i < run->last; i++) {
        rc = gpt_pass_step(run->pass, run->store, i, CST_FORWARD, err);
    }
    return rc;
}

/* Put the result of a forward pass, of a stage that is not the last one. */
static int put_output(const struct unit_run *run, struct cst_err *err)
{
    const struct cst_unit *unit = run->unit;
    void *out;
    int rc = run->pass->ops->units->output(run->pass, run->last_block, &out, err);

    return rc != 0 ? rc
                   : run->store->ops->put(run->store, unit->stage, unit->micro_batch, out,
                                          run->bytes, err);
}

static int run_backward(const struct unit_run *run, struct cst_err *err)
{
    const struct gpt_unit_ops *ops = run->pass->ops->units;
    const struct cst_unit *unit = run->unit;
    const uint32_t back = run->pass->model->stages - 1 + unit->stage;
    void *const grad = ops->grad(run->pass);
    int rc;

    if (is_last(run)) {
        rc = ops->loss(run->pass, err);
    } else {
        rc = run->store->ops->take(run->store, back, unit->micro_batch, grad, run->bytes, err);
        rc = rc == 0 ? ops->grad_taken(run->pass, err) : rc;
    }
    for (uint32_t i = run->last; rc == 0 && i-- > run->first;) {
        rc = gpt_pass_step(run->pass, run->store, i, CST_BACKWARD, err);
    }
    return rc == 0 && unit->stage > 0
               ? run->store->ops->put(run->store, back - 1, unit->micro_batch, grad, run->bytes,
                                      err)
               : rc;
}

int gpt_unit_run(struct gpt_pass *pass, struct gpt_store *store, const struct cst_unit *unit,
                 size_t n_seqs, struct cst_err *err)
{
    struct unit_run run = {
        .pass = pass,
        .store = store,
        .unit = unit,
        .bytes = (uint64_t)n_seqs * pass->model->context * pass->model->width * sizeof(float),
    };
    int rc;

    find_operators(&run);
    rc = pass->ops->units->begin(pass, n_seqs, run.first_block, run.last_block, err);
    if (rc == 0) {
        rc = run_forward(&run, err);
    }
    if (rc == 0) {
        rc = unit->kind == CST_UNIT_BACKWARD ? run_backward(&run, err) : put_output(&run, err);
    }
    return rc;
}
