/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison of what two ranks declared. */
#include "offload/layout/external.h"
#include "proto/optimizers.h"
#include "proto/reason.h"

#include <inttypes.h>
#include <string.h>

static int same_box(const struct cst_layout_tensor *t, const struct cst_layout_tensor *other,
                    const char *mine, const char *theirs, struct cst_err *err)
{
    if (t->box == NULL && other->box == NULL) {
        return CST_OK;
    }
    if (t->box == NULL || other->box == NULL) {
        return cst_err_set(err, CST_EMISMATCH, "tensor '%s' is a part of a larger one in %s only",
                           t->name, t->box == NULL ? mine : theirs);
    }
    if (strcmp(t->box->name, other->box->name) != 0) {
        return cst_err_set(err, CST_EMISMATCH,
                           "tensor '%s': the whole is '%s' in %s and '%s' in %s", t->name,
                           other->box->name, mine, t->box->name, theirs);
    }
    for (uint32_t d = 0; d < t->n_dims; d++) {
        if (t->box->whole[d] != other->box->whole[d]) {
            return cst_err_set(err, CST_EMISMATCH,
                               "tensor '%s': dimension %" PRIu32 " of the whole is %" PRId64
                               " in %s and %" PRId64 " in %s",
                               t->name, d, other->box->whole[d], mine, t->box->whole[d], theirs);
        }
        if (t->box->first[d] != other->box->first[d]) {
            return cst_err_set(err, CST_EMISMATCH,
                               "tensor '%s': its box begins at %" PRId64 " of dimension %" PRIu32
                               " in %s and at %" PRId64 " in %s",
                               t->name, other->box->first[d], d, mine, t->box->first[d], theirs);
        }
        if (t->box->packed[d] != other->box->packed[d]) {
            return cst_err_set(err, CST_EMISMATCH,
                               "tensor '%s': its box has %" PRId64 " ranges of dimension %" PRIu32
                               " in %s and %" PRId64 " in %s",
                               t->name, other->box->packed[d], d, mine, t->box->packed[d], theirs);
        }
    }
    return CST_OK;
}

static int same_tensor(const struct cst_model *model, uint32_t i,
                       const struct cst_layout_tensor *other, const char *mine, const char *theirs,
                       struct cst_err *err)
{
    const struct cst_layout_tensor *t;

    if (i >= model->n_tensors) {
        return cst_err_set(err, CST_EMISMATCH,
                           "tensor %" PRIu32 " '%s' of %s: %s declared only %" PRIu32, i,
                           other->name, mine, theirs, model->n_tensors);
    }
    t = &model->tensors[i];
    if (strcmp(t->name, other->name) != 0) {
        return cst_err_set(err, CST_EMISMATCH, "tensor %" PRIu32 " is '%s' in %s and '%s' in %s", i,
                           other->name, mine, t->name, theirs);
    }
    if (t->n_dims != other->n_dims) {
        return cst_err_set(err, CST_EMISMATCH,
                           "tensor '%s' has %" PRIu32 " dimensions in %s and %" PRIu32 " in %s",
                           t->name, other->n_dims, mine, t->n_dims, theirs);
    }
    for (uint32_t d = 0; d < t->n_dims; d++) {
        if (t->shape[d] != other->shape[d]) {
            return cst_err_set(err, CST_EMISMATCH,
                               "tensor '%s': dimension %" PRIu32 " is %" PRId64
                               " in %s and %" PRId64 " in %s",
                               t->name, d, other->shape[d], mine, t->shape[d], theirs);
        }
    }
    if (t->group != other->group) {
        return cst_err_set(err, CST_EMISMATCH,
                           "tensor '%s' is of group %" PRIu32 " in %s and of group %" PRIu32
                           " in %s",
                           t->name, other->group, mine, t->group, theirs);
    }
    if (t->pattern != other->pattern) {
        return cst_err_give_reason(err, CST_REASON_PATTERN,
                                   cst_err_set(err, CST_EMISMATCH,
                                               "tensor '%s' is %s in %s and %s in %s", t->name,
                                               cst_pattern(other->pattern)->name, mine,
                                               cst_pattern(t->pattern)->name, theirs));
    }
    if (t->dtype != other->dtype) {
        return cst_err_give_reason(
            err, CST_REASON_DTYPE,
            cst_err_set(err, CST_EMISMATCH, "tensor '%s' is %s in %s and %s in %s", t->name,
                        cst_dtype_name(other->dtype), mine, cst_dtype_name(t->dtype), theirs));
    }
    if (same_box(t, other, mine, theirs, err) != CST_OK) {
        return err->status;
    }
    /* Compare the bits: ranks must agree exactly, not only numerically. */
    if (memcmp(&t->lr_scale, &other->lr_scale, sizeof t->lr_scale) != 0) {
        return cst_err_set(err, CST_EMISMATCH, "tensor '%s': lr_scale is %g in %s and %g in %s",
                           t->name, (double)other->lr_scale, mine, (double)t->lr_scale, theirs);
    }
    if (memcmp(&t->decay_scale, &other->decay_scale, sizeof t->decay_scale) != 0) {
        return cst_err_set(err, CST_EMISMATCH, "tensor '%s': decay_scale is %g in %s and %g in %s",
                           t->name, (double)other->decay_scale, mine, (double)t->decay_scale,
                           theirs);
    }
    if (t->param_group != other->param_group) {
        return cst_err_give_reason(err, CST_REASON_PARAM_GROUP,
                                   cst_err_set(err, CST_EMISMATCH,
                                               "tensor '%s': its parameter group is %" PRIu32
                                               " in %s and %" PRIu32 " in %s",
                                               t->name, other->param_group, mine, t->param_group,
                                               theirs));
    }
    if (t->update != other->update) {
        return cst_err_give_reason(err, CST_REASON_TENSOR_UPDATE,
                                   cst_err_set(err, CST_EMISMATCH,
                                               "tensor '%s': its update is %s in %s and %s in %s",
                                               t->name, cst_tensor_update_names[other->update],
                                               mine, cst_tensor_update_names[t->update], theirs));
    }
    return cst_external_same(t, other, mine, theirs, err);
}

int cst_model_same_tensor(const struct cst_model *model, uint32_t i,
                          const struct cst_layout_tensor *other, const char *mine,
                          const char *theirs, struct cst_err *err)
{
    return cst_err_give_reason(err, CST_REASON_MODEL,
                               same_tensor(model, i, other, mine, theirs, err));
}

static int same_operator(const struct cst_model *model, uint32_t i,
                         const struct cst_layout_operator *other, const char *mine,
                         const char *theirs, struct cst_err *err)
{
    const struct cst_layout_operator *op;

    if (i >= model->n_operators) {
        return cst_err_set(err, CST_EMISMATCH,
                           "operator %" PRIu32 " '%s' of %s: %s declared only %" PRIu32, i,
                           other->name, mine, theirs, model->n_operators);
    }
    op = &model->operators[i];
    if (strcmp(op->name, other->name) != 0) {
        return cst_err_set(err, CST_EMISMATCH, "operator %" PRIu32 " is '%s' in %s and '%s' in %s",
                           i, other->name, mine, op->name, theirs);
    }
    if (op->n_tensors != other->n_tensors) {
        return cst_err_set(err, CST_EMISMATCH,
                           "operator '%s' uses %" PRIu32 " tensors in %s and %" PRIu32 " in %s",
                           op->name, other->n_tensors, mine, op->n_tensors, theirs);
    }
    for (uint32_t k = 0; k < op->n_tensors; k++) {
        if (op->tensors[k] != other->tensors[k]) {
            return cst_err_set(err, CST_EMISMATCH,
                               "operator '%s': its tensor %" PRIu32 " is number %" PRIu32
                               " in %s and %" PRIu32 " in %s",
                               op->name, k, other->tensors[k], mine, op->tensors[k], theirs);
        }
    }
    if (op->stage != other->stage) {
        return cst_err_set(err, CST_EMISMATCH,
                           "operator '%s' is in stage %" PRIu32 " in %s and in stage %" PRIu32
                           " in %s",
                           op->name, other->stage, mine, op->stage, theirs);
    }
    return CST_OK;
}

int cst_model_same_operator(const struct cst_model *model, uint32_t i,
                            const struct cst_layout_operator *other, const char *mine,
                            const char *theirs, struct cst_err *err)
{
    return cst_err_give_reason(err, CST_REASON_OPERATORS,
                               same_operator(model, i, other, mine, theirs, err));
}

int cst_model_same_group(const struct cst_model *model, uint32_t i, struct cst_set other,
                         const char *mine, const char *theirs, struct cst_err *err)
{
    struct cst_set own, more, fewer;

    if (i >= model->n_groups) {
        return cst_err_set(err, CST_EMISMATCH, "group %" PRIu32 " of %s: %s declared only %" PRIu32,
                           i, mine, theirs, model->n_groups - 1);
    }
    own = cst_model_group_ranks(model, i);
    more = cst_set_minus(other, own);
    fewer = cst_set_minus(own, other);
    if (!cst_set_none(&more) || !cst_set_none(&fewer)) {
        const bool first = cst_set_first(&more) < cst_set_first(&fewer);

        return cst_err_set(
            err, CST_EMISMATCH, "group %" PRIu32 " has rank %" PRIu32 " in %s and not in %s", i,
            cst_set_first(first ? &more : &fewer), first ? mine : theirs, first ? theirs : mine);
    }
    return CST_OK;
}
