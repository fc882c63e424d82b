/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/pass.h"

static int step_expert(struct gpt_pass *pass, struct gpt_store *store, uint32_t number,
                       enum cst_direction direction, struct cst_err *err)
{
    const struct gpt_operator *op = &pass->model->operators[number];
    const uint32_t last = pass->model->experts - 1;
    int rc = 0;

    if (op->expert == (direction == CST_FORWARD ? 0 : last)) {
        rc = pass->ops->send_rows(pass, op->layer, direction, err);
    }
    if (rc == 0 && pass->ops->runs(pass, op)) {
        rc = pass->ops->run(pass, store, number, direction, err);
    }
    if (rc == 0 && op->expert == (direction == CST_FORWARD ? last : 0)) {
        rc = pass->ops->combine(pass, op->layer, direction, err);
    }
    return rc;
}

int gpt_pass_step(struct gpt_pass *pass, struct gpt_store *store, uint32_t number,
                  enum cst_direction direction, struct cst_err *err)
{
    const struct gpt_operator *op = &pass->model->operators[number];

    if (op->kind == GPT_OP_EMBED && pass->model->lora > 0 && direction == CST_BACKWARD) {
        return 0; /* The embedding is frozen, and no operator needs a gradient from it. */
    }
    return op->kind == GPT_OP_EXPERT ? step_expert(pass, store, number, direction, err)
                                     : pass->ops->run(pass, store, number, direction, err);
}
