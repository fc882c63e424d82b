#include "daemon/declare.h"

#include <stdio.h>
#include <string.h>

enum { DTYPE_BF16 = 1, GROUP_ALL = 0 };

static int check_kind(const Cistern__TensorDecl *decl, struct cst_err *err)
{
    if (decl->dtype != DTYPE_BF16) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "tensor '%.63s': dtype %u, this version has 1 (bf16)", decl->name,
                           decl->dtype);
    }
    if (decl->has_group && decl->group != GROUP_ALL) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "tensor '%.63s': group %u, this version has 0 (all ranks)", decl->name,
                           decl->group);
    }
    return CST_OK;
}

/* Declared into a model of its own, it is checked as the first one was and has its numbers to
 * compare. */
static int compare_tensor(const struct cst_model *model, uint32_t i,
                          const Cistern__TensorDecl *decl, struct cst_err *err)
{
    struct cst_model scratch;
    int rc;

    cst_model_init(&scratch);
    rc = cst_model_tensor(&scratch, decl->name, decl->shape, (uint32_t)decl->n_shape,
                          decl->lr_scale, decl->decay_scale, err);
    if (rc == CST_OK) {
        rc = cst_model_same_tensor(model, i, &scratch.tensors[0], err);
    }
    cst_model_close(&scratch);
    return rc;
}

static int declare_tensor(struct cst_worker *worker, const Cistern__TensorDecl *decl,
                          struct cst_err *err)
{
    struct cst_model *model = &worker->job->model;
    uint32_t i = worker->n_tensors;
    int rc = check_kind(decl, err);

    if (rc == CST_OK && i < model->n_tensors) {
        rc = compare_tensor(model, i, decl, err);
    } else if (rc == CST_OK && worker->job->model_closed) {
        rc = cst_err_set(err, CST_EMISMATCH,
                         "rank %u declares tensor '%.63s' as number %u, another rank has %u in all",
                         worker->rank, decl->name, i, model->n_tensors);
    } else if (rc == CST_OK) {
        rc = cst_model_tensor(model, decl->name, decl->shape, (uint32_t)decl->n_shape,
                              decl->lr_scale, decl->decay_scale, err);
    }
    worker->n_tensors += rc == CST_OK;
    return rc;
}

static int compare_operator(const struct cst_model *model, uint32_t i,
                            const Cistern__OperatorDecl *decl, struct cst_err *err)
{
    struct cst_layout_operator other = {.tensors = decl->tensors,
                                        .n_tensors = (uint32_t)decl->n_tensors};

    (void)snprintf(other.name, sizeof other.name, "%s", decl->name);
    return cst_model_same_operator(model, i, &other, err);
}

static int declare_operator(struct cst_worker *worker, const Cistern__OperatorDecl *decl,
                            struct cst_err *err)
{
    struct cst_model *model = &worker->job->model;
    uint32_t i = worker->n_operators;
    int rc;

    if (i < model->n_operators) {
        rc = compare_operator(model, i, decl, err);
    } else if (worker->job->model_closed) {
        rc = cst_err_set(
            err, CST_EMISMATCH,
            "rank %u declares operator '%.63s' as number %u, another rank has %u in all",
            worker->rank, decl->name, i, model->n_operators);
    } else {
        rc = cst_model_operator(model, decl->name, decl->tensors, (uint32_t)decl->n_tensors, err);
    }
    worker->n_operators += rc == CST_OK;
    return rc;
}

int cst_declare(struct cst_worker *worker, const Cistern__Declare *message, struct cst_err *err)
{
    int rc = CST_OK;

    for (size_t i = 0; i < message->n_tensors && rc == CST_OK; i++) {
        rc = declare_tensor(worker, message->tensors[i], err);
    }
    for (size_t i = 0; i < message->n_operators && rc == CST_OK; i++) {
        rc = declare_operator(worker, message->operators[i], err);
    }
    return rc;
}

int cst_declare_check(const struct cst_worker *worker, uint32_t n_tensors, uint32_t n_operators,
                      struct cst_err *err)
{
    const struct cst_model *model = &worker->job->model;

    if (n_tensors != worker->n_tensors || n_operators != worker->n_operators) {
        return cst_err_set(
            err, CST_EINVAL,
            "commit of %u tensors and %u operators, but %u and %u were declared by this rank",
            n_tensors, n_operators, worker->n_tensors, worker->n_operators);
    }
    if (n_tensors == 0 || n_operators == 0) {
        return cst_err_set(err, CST_EINVAL, "a model of %u tensors and %u operators", n_tensors,
                           n_operators);
    }
    if (n_tensors < model->n_tensors) {
        return cst_err_set(
            err, CST_EMISMATCH, "rank %u declared %u tensors, another rank %u: '%s' is missing",
            worker->rank, n_tensors, model->n_tensors, model->tensors[n_tensors].name);
    }
    if (n_operators < model->n_operators) {
        return cst_err_set(
            err, CST_EMISMATCH, "rank %u declared %u operators, another rank %u: '%s' is missing",
            worker->rank, n_operators, model->n_operators, model->operators[n_operators].name);
    }
    return CST_OK;
}
