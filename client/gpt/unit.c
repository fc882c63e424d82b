/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/unit.h"

struct unit_run {
    struct gpt_pass *pass;
    struct gpt_store *store;
    const struct gpt_unit *unit;
    uint32_t first, last;             /* The stage's operators: [first, last). */
    uint32_t first_block, last_block; /* Its blocks: [first_block, last_block]. */
    uint64_t bytes;                   /* Of the residual stream of the micro-batch. */
};

static struct unit_run run_of(struct gpt_pass *pass, struct gpt_store *store,
                              const struct gpt_unit *unit)
{
    const struct gpt_model *model = pass->model;
    struct unit_run run = {
        .pass = pass,
        .store = store,
        .unit = unit,
        .bytes = (uint64_t)unit->n_seqs * model->context * model->width * sizeof(float),
    };

    while (gpt_model_stage(model, &model->operators[run.first]) < unit->stage) {
        run.first++;
    }
    for (run.last = run.first;
         run.last < model->n_operators &&
         gpt_model_stage(model, &model->operators[run.last]) == unit->stage;) {
        run.last++;
    }
    run.first_block = model->operators[run.first].layer;
    run.last_block = run.first_block;
    for (uint32_t i = run.first; i < run.last; i++) {
        if (model->operators[i].kind != GPT_OP_HEAD) {
            run.last_block = model->operators[i].layer;
        }
    }
    return run;
}

static bool is_last(const struct unit_run *run)
{
    return run->unit->stage + 1 == run->pass->model->stages;
}

/* Edge through which the gradient comes back to @stage. */
static uint32_t gradient_edge(const struct unit_run *run, uint32_t stage)
{
    return run->pass->model->stages - 1 + stage;
}

static void *input_of(const struct unit_run *run)
{
    return run->pass->ops->units->input(run->pass, run->first_block);
}

/* Begin the pass, with the stage's input from edge @edge. */
static int begin(const struct unit_run *run, uint32_t edge, struct cst_err *err)
{
    const struct gpt_unit *unit = run->unit;
    int rc = run->pass->ops->units->begin(run->pass, unit->n_seqs, run->first_block,
                                          run->last_block, err);

    return rc == 0 && unit->stage > 0 ? run->store->ops->take(run->store, edge, unit->micro_batch,
                                                              input_of(run), run->bytes, err)
                                      : rc;
}

static int run_forward(const struct unit_run *run, struct cst_err *err)
{
    int rc = 0;

    for (uint32_t i = run->first; rc == 0 && i < run->last; i++) {
        rc = gpt_pass_step(run->pass, run->store, i, CST_FORWARD, err);
    }
    return rc;
}

static int put(const struct unit_run *run, uint32_t edge, const void *data, struct cst_err *err)
{
    return run->store->ops->put(run->store, edge, run->unit->micro_batch, data, run->bytes, err);
}

int gpt_unit_forward(struct gpt_pass *pass, struct gpt_store *store, const struct gpt_unit *unit,
                     struct cst_err *err)
{
    const struct unit_run run = run_of(pass, store, unit);
    void *out;
    int rc = begin(&run, unit->stage - 1, err);

    if (rc == 0 && unit->stage > 0 && unit->kept != unit->stage - 1) {
        rc = put(&run, unit->kept, input_of(&run), err);
    }
    if (rc != 0 || is_last(&run)) {
        return rc;
    }
    rc = run_forward(&run, err);
    rc = rc == 0 ? pass->ops->units->output(pass, run.last_block, &out, err) : rc;
    return rc == 0 ? put(&run, unit->stage, out, err) : rc;
}

int gpt_unit_restore(struct gpt_pass *pass, struct gpt_store *store, const struct gpt_unit *unit,
                     struct cst_err *err)
{
    const struct unit_run run = run_of(pass, store, unit);
    int rc = begin(&run, unit->kept, err);

    return rc == 0 ? run_forward(&run, err) : rc;
}

/* Get the gradient of the residual stream from edge @edge. */
static int take_gradient(const struct unit_run *run, uint32_t edge, struct cst_err *err)
{
    const struct gpt_unit_ops *ops = run->pass->ops->units;
    int rc = run->store->ops->take(run->store, edge, run->unit->micro_batch, ops->grad(run->pass),
                                   run->bytes, err);

    return rc == 0 ? ops->grad_taken(run->pass, err) : rc;
}

int gpt_unit_backward(struct gpt_pass *pass, struct gpt_store *store, const struct gpt_unit *unit,
                      struct cst_err *err)
{
    const struct unit_run run = run_of(pass, store, unit);
    const bool embeds_later = unit->stage == 0 && unit->embed != GPT_UNIT_NO_EDGE;
    const uint32_t first = run.first + embeds_later;
    int rc = is_last(&run) ? pass->ops->units->loss(pass, err)
                           : take_gradient(&run, gradient_edge(&run, unit->stage), err);

    for (uint32_t i = run.last; rc == 0 && i-- > first;) {
        rc = gpt_pass_step(pass, store, i, CST_BACKWARD, err);
    }
    if (rc != 0 || (unit->stage == 0 && !embeds_later)) {
        return rc;
    }
    return put(&run, embeds_later ? unit->embed : gradient_edge(&run, unit->stage - 1),
               pass->ops->units->grad(pass), err);
}

int gpt_unit_embed(struct gpt_pass *pass, struct gpt_store *store, const struct gpt_unit *unit,
                   struct cst_err *err)
{
    const struct unit_run run = run_of(pass, store, unit);
    int rc = begin(&run, unit->kept, err);

    rc = rc == 0 ? take_gradient(&run, unit->embed, err) : rc;
    return rc == 0 ? gpt_pass_step(pass, store, run.first, CST_BACKWARD, err) : rc;
}
