/* SPDX-License-Identifier: Apache-2.0 */
/* Stages, into which the operators of a model are cut. */
#include "offload/layout/layout.h"

#include <inttypes.h>

int cst_model_check_stage(const struct cst_model *model, struct cst_err *err)
{
    const uint32_t n = model->n_stages;

    if (n > 0 &&
        (model->n_operators == 0 || model->operators[model->n_operators - 1].stage != n - 1)) {
        return cst_err_set(err, CST_EINVAL, "stage %" PRIu32 " has no operator", n - 1);
    }
    return CST_OK;
}

int cst_model_stage(struct cst_model *model, struct cst_err *err)
{
    const uint32_t n = model->n_stages;

    if (n == 0 && model->n_operators > 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "operator '%s' was declared before the first stage; either all operators "
            "are in stages or none is",
            model->operators[0].name);
    }
    if (cst_model_check_stage(model, err) != CST_OK) {
        return err->status;
    }
    if (n == CST_LAYOUT_MAX_STAGES) {
        return cst_err_set(err, CST_EINVAL, "more than %d stages", CST_LAYOUT_MAX_STAGES);
    }
    model->n_stages++;
    return CST_OK;
}
