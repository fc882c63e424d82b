/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations: tensors, operators, and the index from names to numbers. */
#include "offload/layout/box.h"
#include "offload/layout/external.h"
#include "offload/layout/model_bytes.h"
#include "offload/layout/model_index.h"
#include "proto/muon.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ELEMS (1ull << 40)

static const char *tensor_name(const struct cst_model *model, uint32_t i)
{
    return model->tensors[i].name;
}

static const char *operator_name(const struct cst_model *model, uint32_t i)
{
    return model->operators[i].name;
}

/* Make room for one more entry of @size bytes after the @n entries in @v. Returns the array, or
 * NULL if there is no memory; @v is then unchanged. */
static void *reserve_entry(void *v, uint32_t *capacity, uint32_t n, size_t size)
{
    uint32_t grown = *capacity == 0 ? 16 : 2 * *capacity;
    void *moved;

    if (n < *capacity) {
        return v;
    }
    moved = realloc(v, grown * size);
    if (moved != NULL) {
        *capacity = grown;
    }
    return moved;
}

static int check_name(const char *what, const char *name, struct cst_err *err)
{
    size_t n = strnlen(name, CST_LAYOUT_NAME_BYTES);

    if (n == 0) {
        return cst_err_set(err, CST_EINVAL, "%s with an empty name", what);
    }
    if (n == CST_LAYOUT_NAME_BYTES) {
        return cst_err_set(err, CST_EINVAL, "name of %s '%.20s...' is longer than %d bytes", what,
                           name, CST_LAYOUT_NAME_BYTES - 1);
    }
    for (size_t i = 0; i < n; i++) {
        if (name[i] < 0x20 || name[i] > 0x7e) {
            return cst_err_set(err, CST_EINVAL, "name of %s: byte %zu (0x%02x) is not printable",
                               what, i, (unsigned)(uint8_t)name[i]);
        }
    }
    return CST_OK;
}

static int check_shape(const char *name, const int64_t *shape, uint32_t n_dims,
                       uint64_t *n_elems_out, struct cst_err *err)
{
    uint64_t n = 1;

    if (n_dims == 0 || n_dims > CST_LAYOUT_MAX_DIMS) {
        return cst_err_set(err, CST_EINVAL,
                           "tensor '%s' has %" PRIu32 " dimensions, 1..%d are allowed", name,
                           n_dims, CST_LAYOUT_MAX_DIMS);
    }
    for (uint32_t i = 0; i < n_dims; i++) {
        if (shape[i] < 1) {
            return cst_err_set(err, CST_EINVAL,
                               "tensor '%s': dimension %" PRIu32 " is %" PRId64
                               ", it must be at least 1",
                               name, i, shape[i]);
        }
        if ((uint64_t)shape[i] > MAX_ELEMS / n) {
            return cst_err_set(err, CST_EINVAL, "tensor '%s' has more than 2^40 elements", name);
        }
        n *= (uint64_t)shape[i];
    }
    *n_elems_out = n;
    return CST_OK;
}

static int check_box(const struct cst_tensor_words *words, struct cst_err *err)
{
    uint64_t whole = 1;
    int status =
        words->whole_name != NULL ? check_name("a whole tensor", words->whole_name, err) : CST_OK;

    if (status != CST_OK) {
        return status;
    }
    status = check_shape(words->name, words->whole, words->n_dims, &whole, err);
    if (status != CST_OK) {
        (void)cst_err_prefix(err, "the whole of which it is a box");
        return status;
    }
    return cst_box_check(words, err);
}

static int check_pattern(const struct cst_model *model, const struct cst_tensor_words *words,
                         struct cst_err *err)
{
    const struct cst_pattern *pattern = cst_pattern(words->pattern);
    const bool has_box = words->whole != NULL && words->first != NULL,
               has_any = words->whole != NULL || words->first != NULL || words->packed != NULL ||
                         words->whole_name != NULL;

    if (pattern == NULL) {
        return cst_err_set(err, CST_EINVAL,
                           "tensor '%s': pattern %" PRIu32 " is unknown (known: 0 to %d)",
                           words->name, words->pattern, CST_PATTERN_COUNT - 1);
    }
    if (words->group >= model->n_groups) {
        return cst_err_set(err, CST_EINVAL,
                           "tensor '%s' is of group %" PRIu32 ", only 0..%" PRIu32 " are declared",
                           words->name, words->group, model->n_groups - 1);
    }
    if ((pattern->wants_box && !has_box) || (!has_box && has_any) ||
        (has_box && !pattern->may_have_box)) {
        return cst_err_set(
            err, CST_EINVAL, "tensor '%s': pattern %s %s", words->name, pattern->name,
            !pattern->may_have_box ? "has no box"
            : pattern->wants_box
                ? "needs the shape of the whole tensor and where the box begins"
                : "needs both the shape of the whole tensor and where the box begins, or neither");
    }
    if (words->dtype != 0 && !cst_dtype_is_known(words->dtype)) {
        return cst_err_set(err, CST_EINVAL,
                           "tensor '%s': dtype %" PRIu32 " is unknown (known: %d bf16, %d fp32)",
                           words->name, words->dtype, CST_BF16, CST_FP32);
    }
    return has_box ? check_box(words, err) : CST_OK;
}

static int check_update(const struct cst_tensor_words *words, struct cst_err *err)
{
    uint32_t rows, columns;

    if (words->update >= CST_TENSOR_UPDATE_COUNT) {
        return cst_err_set(err, CST_EINVAL,
                           "tensor '%s': update %" PRIu32 " is unknown (known: 0 to %d)",
                           words->name, words->update, CST_TENSOR_UPDATE_COUNT - 1);
    }
    if (words->update == CST_TENSOR_UPDATE_MUON &&
        !cst_muon_shape(words->shape, words->n_dims, &rows, &columns)) {
        return cst_err_set(err, CST_EINVAL,
                           "tensor '%s' has %" PRIu32
                           " dimensions: Muon updates matrices, and stacks of them with three",
                           words->name, words->n_dims);
    }
    return CST_OK;
}

static int check_words(const struct cst_model *model, const struct cst_tensor_words *words,
                       uint64_t *n_elems_out, struct cst_err *err)
{
    int status = check_name("a tensor", words->name, err);

    if (status == CST_OK) {
        status = check_shape(words->name, words->shape, words->n_dims, n_elems_out, err);
    }
    if (status == CST_OK && (!isfinite(words->lr_scale) || !isfinite(words->decay_scale))) {
        status = cst_err_set(err, CST_EINVAL,
                             "tensor '%s': lr_scale and decay_scale must be finite", words->name);
    }
    if (status == CST_OK && words->param_group >= CST_TABLE_MAX_GROUPS) {
        status = cst_err_set(err, CST_EINVAL,
                             "tensor '%s': parameter group %" PRIu32 ", only 0 to %d are allowed",
                             words->name, words->param_group, CST_TABLE_MAX_GROUPS - 1);
    }
    if (status == CST_OK) {
        status = check_pattern(model, words, err);
    }
    if (status == CST_OK) {
        status = check_update(words, err);
    }
    if (status == CST_OK) {
        status = cst_external_check(words, err);
    }
    if (status == CST_OK && model->n_tensors == model->max_entries) {
        status = cst_err_set(err, CST_EINVAL, "tensor '%s': more than %" PRIu32 " tensors",
                             words->name, model->max_entries);
    }
    return status;
}

static struct cst_model_index *get_index(struct cst_model *model)
{
    if (model->index == NULL) {
        model->index = calloc(1, sizeof(struct cst_model_index));
    }
    return model->index;
}

void cst_model_init(struct cst_model *model)
{
    memset(model, 0, sizeof *model);
    model->n_groups = 1;
    model->max_entries = CST_LAYOUT_MAX_TENSORS;
}

void cst_model_close(struct cst_model *model)
{
    struct cst_model_index *index = model->index;

    for (uint32_t i = 0; i < model->n_operators; i++) {
        free(model->operators[i].name);
        free(model->operators[i].tensors);
    }
    if (index != NULL) {
        cst_name_index_close(&index->tensors);
        cst_name_index_close(&index->operators);
        free(index->seen);
    }
    free(index);
    cst_external_close(model);
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        free(model->tensors[i].name);
        free(model->tensors[i].box);
        free(model->tensors[i].external);
    }
    free(model->operators);
    free(model->tensors);
    free(model->edges);
    free(model->groups);
    memset(model, 0, sizeof *model);
}

/* Make room for one more tensor, also in `seen`. */
static int reserve_tensor(struct cst_model *model, struct cst_model_index *index)
{
    uint32_t before = index->tensors_capacity;
    struct cst_layout_tensor *tensors;
    uint32_t *seen;

    if (cst_name_index_reserve(&index->tensors, 1) != CST_OK) {
        return CST_ENOMEM;
    }
    if (model->n_tensors == before) {
        uint32_t grown = before == 0 ? 16 : 2 * before;

        seen = realloc(index->seen, grown * sizeof *seen);
        if (seen == NULL) {
            return CST_ENOMEM;
        }
        memset(seen + before, 0, (grown - before) * sizeof *seen);
        index->seen = seen;
    }
    tensors = reserve_entry(model->tensors, &index->tensors_capacity, model->n_tensors,
                            sizeof *model->tensors);
    if (tensors == NULL) {
        return CST_ENOMEM;
    }
    model->tensors = tensors;
    return CST_OK;
}

static int reserve_operator(struct cst_model *model, struct cst_model_index *index)
{
    struct cst_layout_operator *operators;

    if (cst_name_index_reserve(&index->operators, 1) != CST_OK) {
        return CST_ENOMEM;
    }
    operators = reserve_entry(model->operators, &index->operators_capacity, model->n_operators,
                              sizeof *model->operators);
    if (operators == NULL) {
        return CST_ENOMEM;
    }
    model->operators = operators;
    return CST_OK;
}

int cst_model_ranks(uint32_t group, const uint32_t *ranks, size_t n, uint32_t world,
                    struct cst_set *out, struct cst_err *err)
{
    struct cst_set set = {{0}};

    for (size_t i = 0; i < n; i++) {
        if (ranks[i] >= world) {
            return cst_err_set(err, CST_EINVAL,
                               "group %" PRIu32 " has rank %" PRIu32 ", but the job has %" PRIu32
                               " ranks",
                               group, ranks[i], world);
        }
        if (cst_set_has(&set, ranks[i])) {
            return cst_err_set(err, CST_EINVAL, "group %" PRIu32 " names rank %" PRIu32 " twice",
                               group, ranks[i]);
        }
        cst_set_add(&set, ranks[i]);
    }
    *out = set;
    return CST_OK;
}

int cst_model_group(struct cst_model *model, struct cst_set ranks, struct cst_err *err)
{
    struct cst_set *groups;

    if (cst_set_none(&ranks)) {
        return cst_err_set(err, CST_EINVAL, "group %" PRIu32 " has no ranks", model->n_groups);
    }
    if (model->n_groups == CST_LAYOUT_MAX_GROUPS) {
        return cst_err_set(err, CST_EINVAL, "more than %d groups", CST_LAYOUT_MAX_GROUPS - 1);
    }
    groups = realloc(model->groups, model->n_groups * sizeof *groups);
    if (groups == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for group %" PRIu32, model->n_groups);
    }
    model->groups = groups;
    model->groups[model->n_groups++ - 1] = ranks;
    return CST_OK;
}

int cst_model_copy_groups(struct cst_model *model, const struct cst_model *from, uint32_t n)
{
    if (n == 1) {
        return CST_OK;
    }
    model->groups = malloc((n - 1) * sizeof *model->groups);
    if (model->groups == NULL) {
        return CST_ENOMEM;
    }
    memcpy(model->groups, from->groups, (n - 1) * sizeof *model->groups);
    model->n_groups = n;
    return CST_OK;
}

struct cst_set cst_model_runners(const struct cst_model *model,
                                 const struct cst_layout_operator *op)
{
    struct cst_set ranks;

    if (op->group != CST_LAYOUT_MIXED) {
        return cst_model_group_ranks(model, op->group);
    }
    ranks = cst_set_range(0, CST_SET_MAX);
    for (uint32_t i = 0; i < op->n_tensors; i++) {
        ranks = cst_set_intersect(
            ranks, cst_model_group_ranks(model, model->tensors[op->tensors[i]].group));
    }
    return ranks;
}

static bool is_in_group(const struct cst_model *model, uint32_t group, uint32_t rank)
{
    return group == 0 || cst_set_has(&model->groups[group - 1], rank);
}

bool cst_model_runs(const struct cst_model *model, const struct cst_layout_operator *op,
                    uint32_t rank)
{
    bool runs = true;

    if (op->group != CST_LAYOUT_MIXED) {
        return is_in_group(model, op->group, rank);
    }
    for (uint32_t i = 0; i < op->n_tensors && runs; i++) {
        runs = is_in_group(model, model->tensors[op->tensors[i]].group, rank);
    }
    return runs;
}

static void add_tensor(struct cst_model *model, const struct cst_tensor_words *words,
                       uint64_t n_elems, char *name, struct cst_layout_box *box,
                       struct cst_layout_external *external)
{
    struct cst_model_index *index = model->index;
    struct cst_layout_tensor *t = &model->tensors[model->n_tensors];

    memset(t, 0, sizeof *t);
    t->name = name;
    memcpy(t->shape, words->shape, words->n_dims * sizeof *words->shape);
    t->n_dims = words->n_dims;
    t->n_elems = n_elems;
    t->lr_scale = words->lr_scale;
    t->decay_scale = words->decay_scale;
    t->param_group = words->param_group;
    t->update = (enum cst_tensor_update)words->update;
    t->group = words->group;
    t->pattern = (enum cst_pattern_kind)words->pattern;
    t->dtype = words->dtype == 0 ? CST_BF16 : (enum cst_dtype)words->dtype;
    t->box = box;
    t->external = external;
    cst_external_add(model);
    cst_name_index_add(&index->tensors, t->name);
    model->n_params += n_elems;
    model->weight_bytes += cst_dtype_bytes(t->dtype) * n_elems;
    model->n_tensors++;
    cst_model_count_tensor(model, words);
}

int cst_model_tensor(struct cst_model *model, const struct cst_tensor_words *words,
                     struct cst_err *err)
{
    struct cst_model_index *index = get_index(model);
    struct cst_layout_external *external = NULL;
    struct cst_layout_box *box = NULL;
    uint64_t n_elems = 0;
    char *name;
    int status = check_words(model, words, &n_elems, err);

    if (status != CST_OK) {
        return status;
    }
    if (index == NULL || reserve_tensor(model, index) != CST_OK ||
        cst_external_reserve(model, words) != CST_OK) {
        return cst_err_set(err, CST_ENOMEM, "tensor '%s': no memory for its declaration",
                           words->name);
    }
    if (cst_name_index_find(&index->tensors, model, tensor_name, words->name) != CST_NO_NAME) {
        return cst_err_set(err, CST_EEXIST, "tensor '%s' is declared already", words->name);
    }
    if (cst_external_check_names(model, words, err) != CST_OK) {
        return CST_EEXIST;
    }
    name = strdup(words->name);
    box = words->whole != NULL ? cst_box_make(words) : NULL;
    external = words->n_external > 0 ? cst_external_copy(words) : NULL;
    if (name == NULL || (words->whole != NULL && box == NULL) ||
        (words->n_external > 0 && external == NULL)) {
        free(name);
        free(box);
        free(external);
        return cst_err_set(err, CST_ENOMEM, "tensor '%s': no memory for its declaration",
                           words->name);
    }
    add_tensor(model, words, n_elems, name, box, external);
    return CST_OK;
}

struct cst_tensor_words cst_model_words(const struct cst_model *model, uint32_t i)
{
    const struct cst_layout_tensor *t = &model->tensors[i];

    return (struct cst_tensor_words){
        .name = t->name,
        .shape = t->shape,
        .n_dims = t->n_dims,
        .lr_scale = t->lr_scale,
        .decay_scale = t->decay_scale,
        .param_group = t->param_group,
        .update = t->update,
        .group = t->group,
        .pattern = t->pattern,
        .dtype = t->dtype,
        .whole_name = t->box != NULL && t->box->name[0] != '\0' ? t->box->name : NULL,
        .whole = t->box != NULL ? t->box->whole : NULL,
        .first = t->box != NULL ? t->box->first : NULL,
        .packed = cst_box_is_packed(t) ? t->box->packed : NULL,
        .external_names = t->external != NULL ? (const char *const *)t->external->names : NULL,
        .external_rows = t->external != NULL ? t->external->rows : NULL,
        .n_external = t->external != NULL ? t->external->n : 0,
        .transposed = t->external != NULL && t->external->transposed};
}

/* Check that every number is known and none comes twice. `seen` makes this linear; it is cleared
 * again, because the operator can still be refused. */
static int check_tensors(const struct cst_model *model, struct cst_model_index *index,
                         const char *name, const uint32_t *tensors, uint32_t n_tensors,
                         struct cst_err *err)
{
    uint32_t mark = model->n_operators + 1;
    uint32_t done;
    int status = CST_OK;

    for (done = 0; done < n_tensors && status == CST_OK; done++) {
        uint32_t t = tensors[done];

        if (t >= model->n_tensors) {
            status =
                cst_err_set(err, CST_EINVAL,
                            "operator '%s' uses tensor %" PRIu32 ", only %" PRIu32 " are declared",
                            name, t, model->n_tensors);
        } else if (index->seen[t] == mark) {
            status = cst_err_set(err, CST_EINVAL, "operator '%s' names tensor '%s' twice", name,
                                 model->tensors[t].name);
        } else {
            index->seen[t] = mark;
        }
    }
    for (uint32_t i = 0; i < done; i++) {
        if (tensors[i] < model->n_tensors) {
            index->seen[tensors[i]] = 0;
        }
    }
    return status;
}

static int check_hints(const char *name, const struct cst_operator_hints *hints,
                       struct cst_err *err)
{
    if (hints != NULL && !(hints->flops >= 0 && isfinite(hints->flops) &&
                           hints->expected_uses >= 0 && isfinite(hints->expected_uses))) {
        return cst_err_set(err, CST_EINVAL,
                           "operator '%s': flops and expected uses must be finite and not negative",
                           name);
    }
    return CST_OK;
}

static int check_operator(const struct cst_model *model, const char *name, uint32_t n_tensors,
                          const struct cst_operator_hints *hints, struct cst_err *err)
{
    uint32_t max_uses = model->max_entries * (CST_LAYOUT_MAX_USES / CST_LAYOUT_MAX_TENSORS);
    int status = check_name("an operator", name, err);

    if (status != CST_OK) {
        return status;
    }
    if (n_tensors == 0) {
        return cst_err_set(err, CST_EINVAL, "operator '%s' uses no tensor", name);
    }
    if (model->n_operators == model->max_entries) {
        return cst_err_set(err, CST_EINVAL, "operator '%s': more than %" PRIu32 " operators", name,
                           model->max_entries);
    }
    if (n_tensors > max_uses - model->n_uses) {
        return cst_err_set(err, CST_EINVAL,
                           "operator '%s' uses %" PRIu32 " tensors and those before it %" PRIu32
                           ": at most %" PRIu32 " together",
                           name, n_tensors, model->n_uses, max_uses);
    }
    return check_hints(name, hints, err);
}

/* Find the group of the ranks that hold all of @tensors, which must be known. */
static int find_group(const struct cst_model *model, const char *name, const uint32_t *tensors,
                      uint32_t n_tensors, uint32_t *group_out, struct cst_err *err)
{
    struct cst_set ranks = cst_set_range(0, CST_SET_MAX);
    uint32_t found = 0;

    for (uint32_t i = 0; i < n_tensors; i++) {
        const uint32_t group = model->tensors[tensors[i]].group;
        const struct cst_set theirs = cst_model_group_ranks(model, group);

        if (group == found || cst_set_within(&ranks, &theirs)) {
            continue;
        }
        found = cst_set_within(&theirs, &ranks) ? group : CST_LAYOUT_MIXED;
        ranks = cst_set_intersect(ranks, theirs);
        if (cst_set_none(&ranks)) {
            return cst_err_set(err, CST_EINVAL,
                               "operator '%s': no rank holds tensor '%s' and all those before it",
                               name, model->tensors[tensors[i]].name);
        }
    }
    *group_out = found;
    return CST_OK;
}

static void add_operator(struct cst_model *model, char *name, uint32_t *tensors, uint32_t n_tensors,
                         uint32_t group, const struct cst_operator_hints *hints)
{
    struct cst_model_index *index = model->index;
    struct cst_layout_operator *op = &model->operators[model->n_operators];

    memset(op, 0, sizeof *op);
    op->name = name;
    op->tensors = tensors;
    op->n_tensors = n_tensors;
    op->group = group;
    op->stage = model->n_stages > 0 ? model->n_stages - 1 : 0;
    op->expected_uses = 1;
    if (hints != NULL) {
        op->flops = hints->flops;
        op->activation_bytes = hints->activation_bytes;
        op->expected_uses = hints->expected_uses > 0 ? hints->expected_uses : 1;
        op->out_bytes = hints->out_bytes;
        op->sum_bytes = hints->sum_bytes;
    }
    for (uint32_t i = 0; i < n_tensors; i++) {
        model->tensors[tensors[i]].n_uses++;
    }
    cst_name_index_add(&index->operators, op->name);
    model->n_uses += n_tensors;
    model->n_operators++;
    cst_model_count_operator(model, name, n_tensors);
}

int cst_model_operator(struct cst_model *model, const char *name, const uint32_t *tensors,
                       uint32_t n_tensors, const struct cst_operator_hints *hints,
                       struct cst_err *err)
{
    struct cst_model_index *index = get_index(model);
    uint32_t group = 0;
    char *own_name;
    uint32_t *copy;
    int status = check_operator(model, name, n_tensors, hints, err);

    if (status != CST_OK) {
        return status;
    }
    if (index == NULL || reserve_operator(model, index) != CST_OK) {
        return cst_err_set(err, CST_ENOMEM, "operator '%s': no memory for its declaration", name);
    }
    if (cst_name_index_find(&index->operators, model, operator_name, name) != CST_NO_NAME) {
        return cst_err_set(err, CST_EEXIST, "operator '%s' is declared already", name);
    }
    status = check_tensors(model, index, name, tensors, n_tensors, err);
    if (status == CST_OK) {
        status = find_group(model, name, tensors, n_tensors, &group, err);
    }
    if (status != CST_OK) {
        return status;
    }
    own_name = strdup(name);
    copy = malloc(n_tensors * sizeof *copy);
    if (own_name == NULL || copy == NULL) {
        free(own_name);
        free(copy);
        return cst_err_set(err, CST_ENOMEM, "operator '%s': no memory for its declaration", name);
    }
    memcpy(copy, tensors, n_tensors * sizeof *copy);
    add_operator(model, own_name, copy, n_tensors, group, hints);
    return CST_OK;
}

uint32_t cst_model_find(const struct cst_model *model, const char *name)
{
    const struct cst_model_index *index = model->index;

    if (index == NULL) {
        return UINT32_MAX;
    }
    return cst_name_index_find(&index->tensors, model, tensor_name, name);
}
