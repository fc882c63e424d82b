/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/declare.h"

#include "offload/layout/edge.h"
#include "offload/layout/model_bytes.h"
#include "proto/reason.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

enum { TRIM_BYTES = 4 << 20 };

/* Ranks that are named, and the lengths of their list and of the whole text: both have room for the
 * largest numbers of 32 bits, so that nothing is cut off. */
enum {
    NAMED_RANKS = 4,
    RANK_LIST_TEXT = NAMED_RANKS * (sizeof ", 4294967295" - 1) + 1,
    RANKS_TEXT = RANK_LIST_TEXT + sizeof "ranks  and 4294967295 more",
};

/* -- names of ranks in messages ------------------------------------------------------------- */

typedef bool (*did_fn)(const struct cstd_worker *worker, uint32_t i);

static bool did_group(const struct cstd_worker *worker, uint32_t i)
{
    return worker->n_groups >= i;
}

static bool did_edge(const struct cstd_worker *worker, uint32_t i)
{
    return worker->n_edges > i;
}

static bool did_tensor(const struct cstd_worker *worker, uint32_t i)
{
    return worker->n_tensors > i;
}

static bool did_operator(const struct cstd_worker *worker, uint32_t i)
{
    return worker->n_operators > i;
}

static bool did_commit(const struct cstd_worker *worker, uint32_t i)
{
    (void)i;
    return worker->commit != NULL;
}

/* Name the other present ranks for which @did is true for number @i: "rank 0", "ranks 0, 2" or
 * "ranks 0, 1, 2, 3 and 60 more". */
static const char *name_others(const struct cstd_worker *me, did_fn did, uint32_t i,
                               char out[RANKS_TEXT])
{
    const struct cstd_job *job = me->job;
    char list[RANK_LIST_TEXT] = "";
    uint32_t n = 0;
    size_t used = 0;

    for (uint32_t r = 0; r < job->world; r++) {
        if (r == me->rank || !job->workers[r].present || !did(&job->workers[r], i)) {
            continue;
        }
        if (n++ < NAMED_RANKS) {
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%u", n > 1 ? ", " : "", r);
        }
    }
    if (n == 0) {
        /* The ranks that declared it have left. */
        (void)snprintf(out, RANKS_TEXT, "the job");
    } else if (n <= NAMED_RANKS) {
        (void)snprintf(out, RANKS_TEXT, "rank%s %s", n > 1 ? "s" : "", list);
    } else {
        (void)snprintf(out, RANKS_TEXT, "ranks %s and %u more", list, n - NAMED_RANKS);
    }
    return out;
}

static const char *name_me(const struct cstd_worker *me, char out[RANKS_TEXT])
{
    (void)snprintf(out, RANKS_TEXT, "rank %u", me->rank);
    return out;
}

/* True if a rank has committed. The model must not grow then. */
static bool is_closed(const struct cstd_job *job)
{
    bool closed = job->state != CSTD_JOB_DECLARING;

    for (uint32_t r = 0; r < job->world; r++) {
        closed = closed || job->workers[r].commit != NULL;
    }
    return closed;
}

/* -- declarations --------------------------------------------------------------------------- */

/* True if the model of @job is made for another job, in a thread (daemon/revive/revive_job.c). That
 * job is charged when it gets the model. */
static bool is_draft(const struct cstd_job *job)
{
    return job->declared.budget == NULL;
}

/* Charge the owner of the job for a model of @bytes, of which the part that was not charged yet is
 * about to be declared. */
static int charge(struct cstd_worker *worker, uint64_t bytes, struct cst_err *err)
{
    struct cstd_job *job = worker->job;
    char what[96];

    if (is_draft(job)) {
        return CST_OK;
    }
    (void)snprintf(what, sizeof what, "a declaration of job '%s'", job->name);
    return cstd_charge_set(&job->declared, bytes, what, err);
}

/* Charge @bytes, what the model takes now, or less than was charged. The heap keeps memory that
 * nobody is charged for any more: return it to the system, if it is much. */
static void settle(struct cstd_job *job, uint64_t bytes)
{
    const uint64_t before = job->declared.bytes;

    if (is_draft(job)) {
        return;
    }
    cstd_charge_force(&job->declared, bytes);
    if (before > bytes && before - bytes >= TRIM_BYTES) {
        (void)malloc_trim(0);
    }
}

void cstd_declare_charge(struct cstd_job *job)
{
    settle(job, cst_model_bytes(&job->model));
}

static int declare_group(struct cstd_worker *worker, const Cistern__GroupDecl *decl,
                         struct cst_err *err)
{
    struct cst_model *model = &worker->job->model;
    /* Group 0 is predefined: all ranks. */
    uint32_t i = worker->n_groups + 1;
    char mine[RANKS_TEXT], theirs[RANKS_TEXT];
    struct cst_set ranks;
    int rc = cst_model_ranks(i, decl->ranks, decl->n_ranks, worker->job->world, &ranks, err);

    if (rc == CST_OK && i < model->n_groups) {
        rc = cst_model_same_group(model, i, ranks, name_me(worker, mine),
                                  name_others(worker, did_group, i, theirs), err);
    } else if (rc == CST_OK && is_closed(worker->job)) {
        rc = cst_err_set(err, CST_EMISMATCH,
                         "rank %u declares group %u, but %s committed %u groups", worker->rank, i,
                         name_others(worker, did_commit, 0, theirs), model->n_groups - 1);
    } else if (rc == CST_OK) {
        rc = cst_model_group(model, ranks, err);
    }
    worker->n_groups += rc == CST_OK;
    return rc;
}

static int declare_edge(struct cstd_worker *worker, const Cistern__EdgeDecl *decl,
                        struct cst_err *err)
{
    const struct cst_edge_words words = {.name = decl->name,
                                         .from = decl->from,
                                         .to = decl->to,
                                         .slot_bytes = decl->slot_bytes,
                                         .n_slots = decl->n_slots,
                                         .on_device = decl->has_on_device && decl->on_device};
    struct cst_model *model = &worker->job->model;
    uint32_t i = worker->n_edges;
    char mine[RANKS_TEXT], theirs[RANKS_TEXT];
    int rc;

    if (i < model->n_edges) {
        rc = cst_model_same_edge(model, i, &words, name_me(worker, mine),
                                 name_others(worker, did_edge, i, theirs), err);
    } else if (is_closed(worker->job)) {
        rc = cst_err_set(err, CST_EMISMATCH,
                         "rank %u declares edge '%.63s' as number %u, but %s committed %u edges",
                         worker->rank, decl->name, i, name_others(worker, did_commit, 0, theirs),
                         model->n_edges);
    } else {
        rc = cst_model_edge(model, &words, worker->job->world, err);
    }
    worker->n_edges += rc == CST_OK;
    return rc;
}

/* Convert @decl; *out borrows its strings and arrays from @decl. The lengths of the box are checked
 * here, because the model reads n_dims elements of each. */
static int read_tensor(const struct cstd_worker *worker, const Cistern__TensorDecl *decl,
                       struct cst_tensor_words *out, struct cst_err *err)
{
    if (!cst_dtype_is_known(decl->dtype)) {
        return cst_err_set(
            err, CST_EUNSUPPORTED,
            "tensor '%.255s': dtype %u is unknown, this version knows %d (bf16) and %d (fp32)",
            decl->name, decl->dtype, CST_BF16, CST_FP32);
    }
    if ((decl->n_whole_shape != 0 && decl->n_whole_shape != decl->n_shape) ||
        (decl->n_box_first != 0 && decl->n_box_first != decl->n_shape)) {
        return cst_err_set(
            err, CST_EINVAL,
            "tensor '%.255s' has %zu dimensions, but its whole shape has %zu and its "
            "first element %zu",
            decl->name, decl->n_shape, decl->n_whole_shape, decl->n_box_first);
    }
    if (decl->n_box_packed != 0 && decl->n_box_packed != decl->n_shape) {
        return cst_err_set(err, CST_EINVAL,
                           "tensor '%.255s' has %zu dimensions, and numbers of ranges of %zu",
                           decl->name, decl->n_shape, decl->n_box_packed);
    }
    if (decl->n_external_name != decl->n_external_rows) {
        return cst_err_set(err, CST_EINVAL,
                           "tensor '%.255s' has %zu external names and %zu numbers of rows",
                           decl->name, decl->n_external_name, decl->n_external_rows);
    }
    if (decl->group > worker->n_groups) {
        return cst_err_set(err, CST_EINVAL,
                           "tensor '%.255s' is of group %u, but rank %u has declared %u groups",
                           decl->name, decl->group, worker->rank, worker->n_groups);
    }
    *out = (struct cst_tensor_words){
        .name = decl->name,
        .dtype = decl->dtype,
        .shape = decl->shape,
        .n_dims = (uint32_t)decl->n_shape,
        .lr_scale = decl->lr_scale,
        .decay_scale = decl->decay_scale,
        .param_group = decl->param_group,
        .update = decl->update,
        .group = decl->group,
        .pattern = decl->pattern,
        .whole_name = decl->whole_name,
        .whole = decl->n_whole_shape > 0 ? decl->whole_shape : NULL,
        .first = decl->n_box_first > 0 ? decl->box_first : NULL,
        .packed = decl->n_box_packed > 0 ? decl->box_packed : NULL,
        .external_names = (const char *const *)decl->external_name,
        .external_rows = decl->external_rows,
        .n_external = (uint32_t)decl->n_external_name,
        .transposed = decl->transposed,
    };
    return CST_OK;
}

/* Compare a tensor with the one that another rank declared. It is declared into a temporary model
 * first, for the checks and the derived numbers. */
static int compare_tensor(const struct cstd_worker *worker, const struct cst_tensor_words *words,
                          struct cst_err *err)
{
    char mine[RANKS_TEXT], theirs[RANKS_TEXT];
    uint32_t i = worker->n_tensors;
    struct cst_model scratch;
    int rc;

    cst_model_init(&scratch);
    rc = cst_model_copy_groups(&scratch, &worker->job->model, worker->job->model.n_groups);
    rc = rc == CST_OK ? cst_model_tensor(&scratch, words, err)
                      : cst_err_set(err, rc, "no memory to compare tensor '%.255s'", words->name);
    if (rc == CST_OK) {
        rc = cst_model_same_tensor(&worker->job->model, i, &scratch.tensors[0],
                                   name_me(worker, mine),
                                   name_others(worker, did_tensor, i, theirs), err);
    }
    cst_model_close(&scratch);
    return rc;
}

static int declare_tensor(struct cstd_worker *worker, const Cistern__TensorDecl *decl,
                          struct cst_err *err)
{
    struct cst_model *model = &worker->job->model;
    uint32_t i = worker->n_tensors;
    char theirs[RANKS_TEXT];
    struct cst_tensor_words words;
    int rc = read_tensor(worker, decl, &words, err);

    if (rc == CST_OK && i < model->n_tensors) {
        rc = compare_tensor(worker, &words, err);
    } else if (rc == CST_OK && is_closed(worker->job)) {
        rc = cst_err_give_reason(
            err, CST_REASON_MODEL,
            cst_err_set(
                err, CST_EMISMATCH,
                "rank %u declares tensor '%.255s' as number %u, but %s committed %u tensors",
                worker->rank, decl->name, i, name_others(worker, did_commit, 0, theirs),
                model->n_tensors));
    } else if (rc == CST_OK) {
        rc = charge(worker, cst_model_bytes_with_tensor(model, &words), err);
        rc = rc == CST_OK ? cst_model_tensor(model, &words, err) : rc;
    }
    worker->n_tensors += rc == CST_OK;
    return rc;
}

static int compare_operator(const struct cstd_worker *worker, const Cistern__OperatorDecl *decl,
                            struct cst_err *err)
{
    char mine[RANKS_TEXT], theirs[RANKS_TEXT];
    uint32_t i = worker->n_operators;
    const struct cst_layout_operator other = {.name = decl->name,
                                              .tensors = decl->tensors,
                                              .n_tensors = (uint32_t)decl->n_tensors,
                                              .stage = decl->stage};

    if (decl->has_stage != (worker->job->model.n_stages > 0)) {
        return cst_err_give_reason(
            err, CST_REASON_OPERATORS,
            cst_err_set(
                err, CST_EMISMATCH, "operator '%.255s' is in %s stage in %s and in %s in %s",
                decl->name, decl->has_stage ? "a" : "no", name_me(worker, mine),
                decl->has_stage ? "none" : "one", name_others(worker, did_operator, i, theirs)));
    }
    return cst_model_same_operator(&worker->job->model, i, &other, name_me(worker, mine),
                                   name_others(worker, did_operator, i, theirs), err);
}

/* Begin the stage of @decl in @model, if the operator is the first one of a stage. */
static int begin_stage(struct cst_model *model, const Cistern__OperatorDecl *decl,
                       struct cst_err *err)
{
    if (decl->has_stage && decl->stage == model->n_stages) {
        return cst_model_stage(model, err);
    }
    if (decl->has_stage ? model->n_stages == 0 || decl->stage != model->n_stages - 1
                        : model->n_stages > 0) {
        return cst_err_set(err, CST_EINVAL,
                           "operator '%.255s': %s %u after stage %d; stages are declared in order, "
                           "and either all operators are in stages or none is",
                           decl->name, decl->has_stage ? "stage" : "no stage, but", decl->stage,
                           (int)model->n_stages - 1);
    }
    return CST_OK;
}

static int declare_operator(struct cstd_worker *worker, const Cistern__OperatorDecl *decl,
                            struct cst_err *err)
{
    struct cst_model *model = &worker->job->model;
    const struct cst_operator_hints hints = {.flops = decl->flops,
                                             .activation_bytes = decl->activation_bytes,
                                             .expected_uses = decl->expected_uses};
    uint32_t i = worker->n_operators;
    char theirs[RANKS_TEXT];
    int rc;

    if (i < model->n_operators) {
        rc = compare_operator(worker, decl, err);
    } else if (is_closed(worker->job)) {
        rc = cst_err_give_reason(
            err, CST_REASON_OPERATORS,
            cst_err_set(
                err, CST_EMISMATCH,
                "rank %u declares operator '%.255s' as number %u, but %s committed %u operators",
                worker->rank, decl->name, i, name_others(worker, did_commit, 0, theirs),
                model->n_operators));
    } else {
        rc = charge(worker,
                    cst_model_bytes_with_operator(model, decl->name, (uint32_t)decl->n_tensors),
                    err);
        rc = rc == CST_OK ? begin_stage(model, decl, err) : rc;
        rc = rc == CST_OK ? cst_model_operator(model, decl->name, decl->tensors,
                                               (uint32_t)decl->n_tensors, &hints, err)
                          : rc;
    }
    worker->n_operators += rc == CST_OK;
    return rc;
}

/* Report a disagreement that another rank found after this worker's last request. */
static int check_heard(const struct cstd_worker *worker, struct cst_err *err)
{
    const struct cst_err *why = &worker->job->disagreement;

    if (worker->unheard) {
        *err = *why;
    }
    return worker->unheard ? why->status : CST_OK;
}

int cstd_declare(struct cstd_worker *worker, const Cistern__Declare *message, struct cst_err *err)
{
    int rc = check_heard(worker, err);

    for (size_t i = 0; i < message->n_groups && rc == CST_OK; i++) {
        rc = declare_group(worker, message->groups[i], err);
    }
    for (size_t i = 0; i < message->n_edges && rc == CST_OK; i++) {
        rc = declare_edge(worker, message->edges[i], err);
    }
    for (size_t i = 0; i < message->n_tensors && rc == CST_OK; i++) {
        rc = declare_tensor(worker, message->tensors[i], err);
    }
    for (size_t i = 0; i < message->n_operators && rc == CST_OK; i++) {
        rc = declare_operator(worker, message->operators[i], err);
    }
    settle(worker->job, cst_model_bytes(&worker->job->model));
    return rc;
}

int cstd_declare_check(const struct cstd_worker *worker, uint32_t n_tensors, uint32_t n_operators,
                       struct cst_err *err)
{
    const struct cst_model *model = &worker->job->model;
    char theirs[RANKS_TEXT];

    if (check_heard(worker, err) != CST_OK) {
        return err->status;
    }
    if (n_tensors != worker->n_tensors || n_operators != worker->n_operators) {
        return cst_err_set(
            err, CST_EINVAL,
            "commit of %u tensors and %u operators, but %u and %u were declared by this rank",
            n_tensors, n_operators, worker->n_tensors, worker->n_operators);
    }
    if (n_tensors == 0 || n_operators == 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "a model needs a tensor and an operator, this one has %u tensors and %u operators",
            n_tensors, n_operators);
    }
    if (worker->n_groups + 1 < model->n_groups) {
        return cst_err_set(err, CST_EMISMATCH, "rank %u declared %u groups, but %s declared %u",
                           worker->rank, worker->n_groups,
                           name_others(worker, did_group, worker->n_groups + 1, theirs),
                           model->n_groups - 1);
    }
    if (worker->n_edges < model->n_edges) {
        return cst_err_set(
            err, CST_EMISMATCH,
            "rank %u declared %u edges, but %s declared %u: '%s' is missing in rank %u",
            worker->rank, worker->n_edges, name_others(worker, did_edge, worker->n_edges, theirs),
            model->n_edges, model->edges[worker->n_edges].name, worker->rank);
    }
    if (n_tensors < model->n_tensors) {
        return cst_err_give_reason(
            err, CST_REASON_MODEL,
            cst_err_set(
                err, CST_EMISMATCH,
                "rank %u declared %u tensors, but %s declared %u: '%s' is missing in rank %u",
                worker->rank, n_tensors, name_others(worker, did_tensor, n_tensors, theirs),
                model->n_tensors, model->tensors[n_tensors].name, worker->rank));
    }
    if (n_operators < model->n_operators) {
        return cst_err_give_reason(
            err, CST_REASON_OPERATORS,
            cst_err_set(
                err, CST_EMISMATCH,
                "rank %u declared %u operators, but %s declared %u: '%s' is missing in rank %u",
                worker->rank, n_operators, name_others(worker, did_operator, n_operators, theirs),
                model->n_operators, model->operators[n_operators].name, worker->rank));
    }
    return CST_OK;
}

void cstd_declare_close(struct cstd_job *job)
{
    cst_model_close(&job->model);
    settle(job, 0);
}

/* -- disagreements -------------------------------------------------------------------------- */

/* Returns the largest numbers that attached ranks have declared. */
static struct cst_model_extent declared(const struct cstd_job *job)
{
    struct cst_model_extent most = {0};

    for (uint32_t r = 0; r < job->world; r++) {
        const struct cstd_worker *w = &job->workers[r];

        most.n_groups = w->n_groups > most.n_groups ? w->n_groups : most.n_groups;
        most.n_edges = w->n_edges > most.n_edges ? w->n_edges : most.n_edges;
        most.n_tensors = w->n_tensors > most.n_tensors ? w->n_tensors : most.n_tensors;
        most.n_operators = w->n_operators > most.n_operators ? w->n_operators : most.n_operators;
    }
    return most;
}

static void forget(struct cstd_worker *worker)
{
    worker->unheard = false;
    worker->n_groups = worker->n_edges = worker->n_tensors = worker->n_operators = 0;
}

static void drop_model(struct cstd_job *job, const struct cst_err *why)
{
    job->disagreement = *why;
    for (uint32_t r = 0; r < job->world; r++) {
        struct cstd_worker *worker = &job->workers[r];

        /* Ranks that have committed get the error from the caller. */
        worker->unheard = worker->unheard || (worker->present && worker->commit == NULL);
        worker->n_groups = worker->n_edges = worker->n_tensors = worker->n_operators = 0;
    }
    cst_model_close(&job->model);
    cst_model_init(&job->model);
    settle(job, cst_model_bytes(&job->model));
}

bool cstd_declare_drop(struct cstd_job *job, struct cstd_worker *worker, const struct cst_err *why)
{
    /* Otherwise the model was dropped already, and @worker learns it only now. */
    bool drops = job->state == CSTD_JOB_DECLARING && (worker == NULL || !worker->unheard);

    if (drops) {
        drop_model(job, why);
    }
    if (worker != NULL) {
        forget(worker);
    }
    return drops;
}

int cstd_declare_copy(struct cst_model *out, const struct cst_model *from,
                      const struct cst_model_extent *much, struct cst_err *err)
{
    int rc;

    cst_model_init(out);
    rc = cst_model_copy_groups(out, from, much->n_groups + 1);
    rc = rc == CST_OK ? cst_model_copy_edges(out, from, much->n_edges, err)
                      : cst_err_set(err, rc, "no memory for a copy of the declarations");
    for (uint32_t i = 0; i < much->n_tensors && rc == CST_OK; i++) {
        struct cst_tensor_words words = cst_model_words(from, i);

        /* The names of wholes would be names in files, too, which others might have. */
        words.whole_name = NULL;
        words.n_external = 0;
        words.transposed = false;
        rc = cst_model_tensor(out, &words, err);
    }
    for (uint32_t i = 0; i < much->n_operators && rc == CST_OK; i++) {
        const struct cst_layout_operator *op = &from->operators[i];
        const struct cst_operator_hints hints = {.flops = op->flops,
                                                 .activation_bytes = op->activation_bytes,
                                                 .expected_uses = op->expected_uses};

        if (from->n_stages > 0 && op->stage == out->n_stages) {
            rc = cst_model_stage(out, err);
        }
        rc = rc != CST_OK
                 ? rc
                 : cst_model_operator(out, op->name, op->tensors, op->n_tensors, &hints, err);
    }
    if (rc != CST_OK) {
        cst_model_close(out);
    }
    return rc;
}

int cstd_declare_forget(struct cstd_worker *worker, struct cst_err *err)
{
    struct cstd_job *job = worker->job;
    struct cst_model_extent much;

    forget(worker);
    much = declared(job);
    if (job->state != CSTD_JOB_DECLARING ||
        (much.n_groups + 1 == job->model.n_groups && much.n_edges == job->model.n_edges &&
         much.n_tensors == job->model.n_tensors && much.n_operators == job->model.n_operators)) {
        return CST_OK;
    }
    /* The next worker of this rank may come with another model, which only has to agree with the
     * remaining ranks. */
    if (cst_model_forget(&job->model, &much, err) != CST_OK) {
        /* The whole model is dropped, as after a disagreement. */
        (void)cst_err_prefix(err, "removing the declarations of rank %u from the model",
                             worker->rank);
        err->status = CST_EMISMATCH;
        drop_model(job, err);
        return CST_EMISMATCH;
    }
    settle(job, cst_model_bytes(&job->model));
    return CST_OK;
}
