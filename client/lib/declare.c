/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/declare.h"

#include "proto/patterns.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- names ------------------------------------------------------------------------------------ */

/* FNV-1a hash. */
static uint32_t hash(const char *name)
{
    uint32_t h = 2166136261u;

    for (; *name != '\0'; name++) {
        h = (h ^ (uint8_t)*name) * 16777619u;
    }
    return h;
}

/* Return the name of tensor or operator @i. Both structs begin with their name, and have a size of
 * @stride bytes. */
static const char *name_at(const void *base, size_t stride, uint32_t i)
{
    return (const char *)base + stride * i;
}

static bool has_name(const struct cstc_declare_names *names, const char *name, const void *base,
                     size_t stride)
{
    if (names->n_slots == 0) {
        return false;
    }
    /* The loop ends, because at least half of the slots are free. */
    for (uint32_t at = hash(name);; at++) {
        uint32_t slot = names->slots[at & (names->n_slots - 1)];

        if (slot == 0) {
            return false;
        }
        if (strcmp(name_at(base, stride, slot - 1), name) == 0) {
            return true;
        }
    }
}

static void put_name(struct cstc_declare_names *names, const char *name, uint32_t number)
{
    uint32_t at = hash(name);

    while (names->slots[at & (names->n_slots - 1)] != 0) {
        at++;
    }
    names->slots[at & (names->n_slots - 1)] = number + 1;
    names->n_used++;
}

/* Make space for one more name, so that at most half of the slots are used. */
static int grow_names(struct cstc_declare_names *names, const void *base, size_t stride)
{
    struct cstc_declare_names bigger = {.n_slots = names->n_slots == 0 ? 64 : 2 * names->n_slots};

    if (2 * (names->n_used + 1) <= names->n_slots) {
        return CST_OK;
    }
    bigger.slots = calloc(bigger.n_slots, sizeof *bigger.slots);
    if (bigger.slots == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t i = 0; i < names->n_used; i++) {
        put_name(&bigger, name_at(base, stride, i), i);
    }
    free(names->slots);
    *names = bigger;
    return CST_OK;
}

static int check_name(const char *what, const char *name, struct cst_err *err)
{
    size_t n;

    if (name == NULL || name[0] == '\0') {
        return cst_err_set(err, CST_EINVAL, "%s without a name", what);
    }
    n = strlen(name);
    if (n >= CSTC_DECLARE_NAME_BYTES) {
        return cst_err_set(err, CST_EINVAL, "%s '%.32s...': name of %zu bytes, at most %d", what,
                           name, n, CSTC_DECLARE_NAME_BYTES - 1);
    }
    for (size_t i = 0; i < n; i++) {
        if (name[i] < 0x20 || name[i] > 0x7e) {
            return cst_err_set(err, CST_EINVAL,
                               "%s: byte 0x%02x in its name is not printable ASCII", what,
                               (uint8_t)name[i]);
        }
    }
    return CST_OK;
}

/* -- life ------------------------------------------------------------------------------------- */

void cstc_declare_init(struct cstc_declare *declare, uint32_t rank, uint32_t world)
{
    *declare = (struct cstc_declare){.rank = rank, .world = world, .n_groups = 1};
    declare->groups[0] = UINT64_MAX >> (64 - world);
}

void cstc_declare_close(struct cstc_declare *declare)
{
    for (uint32_t i = 0; i < declare->n_operators; i++) {
        free(declare->operators[i].tensors);
    }
    for (uint32_t i = 0; i < declare->n_tensors; i++) {
        free(declare->tensors[i].box);
    }
    free(declare->tensors);
    free(declare->operators);
    free(declare->tensor_names.slots);
    free(declare->operator_names.slots);
    free(declare->stamp);
    cstc_declare_init(declare, declare->rank, declare->world);
}

/* Double the allocated size of *array if its @n entries fill *capacity. */
static int grow(void **array, uint32_t n, uint32_t *capacity, size_t size)
{
    uint32_t bigger = *capacity == 0 ? 16 : 2 * *capacity;
    void *moved;

    if (n < *capacity) {
        return CST_OK;
    }
    moved = realloc(*array, bigger * size);
    if (moved == NULL) {
        return CST_ENOMEM;
    }
    *array = moved;
    *capacity = bigger;
    return CST_OK;
}

/* -- groups ----------------------------------------------------------------------------------- */

int cstc_declare_add_group(struct cstc_declare *declare, const uint32_t *ranks, uint32_t n_ranks,
                           struct cst_err *err)
{
    uint64_t group = 0;

    if (declare->n_groups == CSTC_DECLARE_MAX_GROUPS) {
        return cst_err_set(err, CST_EINVAL, "over %d groups", CSTC_DECLARE_MAX_GROUPS);
    }
    if (ranks == NULL || n_ranks == 0) {
        return cst_err_set(err, CST_EINVAL, "group %u without ranks", declare->n_groups);
    }
    for (uint32_t i = 0; i < n_ranks; i++) {
        if (ranks[i] >= declare->world) {
            return cst_err_set(err, CST_EINVAL, "group %u has rank %u, but the job has %u ranks",
                               declare->n_groups, ranks[i], declare->world);
        }
        if ((group >> ranks[i] & 1) != 0) {
            return cst_err_set(err, CST_EINVAL, "group %u names rank %u twice", declare->n_groups,
                               ranks[i]);
        }
        group |= UINT64_C(1) << ranks[i];
    }
    declare->groups[declare->n_groups++] = group;
    return CST_OK;
}

/* -- tensors ---------------------------------------------------------------------------------- */

static int count_elems(const char *name, uint32_t n_dims, const int64_t *shape, uint64_t *out,
                       struct cst_err *err)
{
    int64_t product = 1;

    if (shape == NULL || n_dims < 1 || n_dims > CSTC_DECLARE_MAX_DIMS) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': %u dimensions, 1 to %d are possible",
                           name, n_dims, CSTC_DECLARE_MAX_DIMS);
    }
    for (uint32_t i = 0; i < n_dims; i++) {
        if (shape[i] < 1) {
            return cst_err_set(err, CST_EINVAL, "tensor '%s': dimension %u is %lld, at least 1",
                               name, i, (long long)shape[i]);
        }
        /* Compared without a multiplication, which could overflow. */
        if (shape[i] > CSTC_DECLARE_MAX_ELEMS / product) {
            return cst_err_set(err, CST_EINVAL, "tensor '%s': over %lld elements", name,
                               CSTC_DECLARE_MAX_ELEMS);
        }
        product *= shape[i];
    }
    *out = (uint64_t)product;
    return CST_OK;
}

static int append_tensor(struct cstc_declare *declare, const struct cstc_declare_tensor *tensor,
                         struct cst_err *err)
{
    void *array = declare->tensors;
    int rc = grow(&array, declare->n_tensors, &declare->tensor_capacity, sizeof *tensor);

    declare->tensors = array;
    if (rc == CST_OK) {
        rc = grow_names(&declare->tensor_names, declare->tensors, sizeof *tensor);
    }
    if (rc != CST_OK) {
        return cst_err_set(err, rc, "tensor '%s': no memory to declare it", tensor->name);
    }
    declare->tensors[declare->n_tensors] = *tensor;
    put_name(&declare->tensor_names, tensor->name, declare->n_tensors++);
    return CST_OK;
}

bool cstc_declare_trains(enum cst_pattern_kind pattern)
{
    return cst_pattern(pattern)->has_states;
}

static int check_kind(const struct cstc_declare *declare, const struct cst_tensor_spec *spec,
                      struct cst_err *err)
{
    if (spec->dtype != CST_BF16) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': dtype %d; only CST_BF16 exists",
                           spec->name, (int)spec->dtype);
    }
    if (spec->group < 0 || (uint32_t)spec->group >= declare->n_groups) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': group %d is not declared (%u groups are)",
                           spec->name, spec->group, declare->n_groups);
    }
    if ((unsigned)spec->pattern >= CST_PATTERN_COUNT) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': pattern %u is unknown (there are %d)",
                           spec->name, (unsigned)spec->pattern, CST_PATTERN_COUNT);
    }
    if (!isfinite(spec->lr_scale) || !isfinite(spec->decay_scale)) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': lr_scale and decay_scale must be finite",
                           spec->name);
    }
    return CST_OK;
}

/* Check the box of a tensor whose shape has been checked. */
static int check_box(const struct cst_tensor_spec *spec, struct cst_err *err)
{
    const char *name = cst_pattern(spec->pattern)->name;
    bool wanted = cst_pattern(spec->pattern)->wants_box;

    if ((spec->whole_shape != NULL) != wanted || (spec->first != NULL) != wanted) {
        return cst_err_set(err, CST_EINVAL,
                           wanted ? "tensor '%s': pattern %s takes whole_shape and first"
                                  : "tensor '%s': pattern %s takes no whole_shape and first",
                           spec->name, name);
    }
    for (uint32_t i = 0; wanted && i < spec->n_dims; i++) {
        if (spec->first[i] < 0 || spec->whole_shape[i] < 1 ||
            spec->whole_shape[i] > CSTC_DECLARE_MAX_ELEMS ||
            spec->first[i] > spec->whole_shape[i] - spec->shape[i]) {
            return cst_err_set(err, CST_EINVAL,
                               "tensor '%s': in dimension %u its box has %lld elements from %lld "
                               "on, but the whole tensor has %lld",
                               spec->name, i, (long long)spec->shape[i], (long long)spec->first[i],
                               (long long)spec->whole_shape[i]);
        }
    }
    return CST_OK;
}

static int copy_box(const struct cst_tensor_spec *spec, struct cstc_declare_tensor *tensor,
                    struct cst_err *err)
{
    if (spec->whole_shape == NULL) {
        return CST_OK;
    }
    tensor->box = calloc(1, sizeof *tensor->box);
    if (tensor->box == NULL) {
        return cst_err_set(err, CST_ENOMEM, "tensor '%s': no memory to declare it", spec->name);
    }
    memcpy(tensor->box->whole, spec->whole_shape, spec->n_dims * sizeof *spec->whole_shape);
    memcpy(tensor->box->first, spec->first, spec->n_dims * sizeof *spec->first);
    return CST_OK;
}

static int check_tensor(const struct cstc_declare *declare, const struct cst_tensor_spec *spec,
                        uint64_t *n_elems, struct cst_err *err)
{
    int rc = check_name("tensor", spec->name, err);

    if (rc == CST_OK) {
        rc = count_elems(spec->name, spec->n_dims, spec->shape, n_elems, err);
    }
    if (rc == CST_OK) {
        rc = check_kind(declare, spec, err);
    }
    if (rc == CST_OK) {
        rc = check_box(spec, err);
    }
    if (rc == CST_OK &&
        has_name(&declare->tensor_names, spec->name, declare->tensors, sizeof *declare->tensors)) {
        rc = cst_err_set(err, CST_EEXIST, "tensor '%s' is declared already", spec->name);
    }
    if (rc == CST_OK && declare->n_tensors == CSTC_DECLARE_MAX_TENSORS) {
        rc = cst_err_set(err, CST_EINVAL, "tensor '%s': over %d tensors", spec->name,
                         CSTC_DECLARE_MAX_TENSORS);
    }
    return rc;
}

int cstc_declare_add_tensor(struct cstc_declare *declare, const struct cst_tensor_spec *spec,
                            struct cst_err *err)
{
    struct cstc_declare_tensor tensor = {.n_dims = spec->n_dims,
                                         .dtype = spec->dtype,
                                         .lr_scale = spec->lr_scale,
                                         .decay_scale = spec->decay_scale,
                                         .group = (uint32_t)spec->group,
                                         .pattern = spec->pattern};
    int rc = check_tensor(declare, spec, &tensor.n_elems, err);

    if (rc == CST_OK) {
        rc = copy_box(spec, &tensor, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    (void)snprintf(tensor.name, sizeof tensor.name, "%s", spec->name);
    memcpy(tensor.shape, spec->shape, spec->n_dims * sizeof *spec->shape);
    rc = append_tensor(declare, &tensor, err);
    if (rc != CST_OK) {
        free(tensor.box);
    }
    return rc;
}

/* -- operators -------------------------------------------------------------------------------- */

/* Copy the list of tensors. Stamps find a repeated tensor in O(1), because an operator may have
 * 65536 tensors. */
static int copy_tensors(struct cstc_declare *declare, const char *name, const int *tensors,
                        uint32_t n_tensors, uint32_t *out, struct cst_err *err)
{
    uint32_t mine = declare->n_operators + 1;

    for (uint32_t i = 0; i < n_tensors; i++) {
        if (tensors[i] < 0 || (uint32_t)tensors[i] >= declare->n_tensors) {
            return cst_err_set(
                err, CST_EINVAL,
                "operator '%s': its tensor %u has number %d, but only %u are declared", name, i,
                tensors[i], declare->n_tensors);
        }
        out[i] = (uint32_t)tensors[i];
        if (declare->stamp[out[i]] == mine) {
            return cst_err_set(err, CST_EINVAL, "operator '%s' names tensor '%s' twice", name,
                               declare->tensors[out[i]].name);
        }
        declare->stamp[out[i]] = mine;
    }
    return CST_OK;
}

static int grow_stamps(struct cstc_declare *declare)
{
    uint32_t *moved;

    if (declare->n_stamps >= declare->n_tensors) {
        return CST_OK;
    }
    /* Grows with the capacity of the tensors, hence rarely. */
    moved = realloc(declare->stamp, declare->tensor_capacity * sizeof *moved);
    if (moved == NULL) {
        return CST_ENOMEM;
    }
    memset(moved + declare->n_stamps, 0,
           (declare->tensor_capacity - declare->n_stamps) * sizeof *moved);
    declare->stamp = moved;
    declare->n_stamps = declare->tensor_capacity;
    return CST_OK;
}

/* Clear the stamps of an operator that was not added: the next operator will have the same
 * number. */
static void wipe_stamps(struct cstc_declare *declare, const int *tensors, uint32_t n_tensors)
{
    for (uint32_t i = 0; i < n_tensors; i++) {
        if (tensors[i] >= 0 && (uint32_t)tensors[i] < declare->n_stamps) {
            declare->stamp[tensors[i]] = 0;
        }
    }
}

/* Return the ranks that are in the groups of all tensors of @op. */
static uint64_t ranks_of(const struct cstc_declare *declare, const struct cstc_declare_operator *op)
{
    uint64_t ranks = declare->groups[0];

    for (uint32_t i = 0; i < op->n_tensors; i++) {
        ranks &= declare->groups[declare->tensors[op->tensors[i]].group];
    }
    return ranks;
}

/* Fill in the tensors of @op, and whether this rank runs it. */
static int fill_operator(struct cstc_declare *declare, struct cstc_declare_operator *op,
                         const int *tensors, struct cst_err *err)
{
    uint64_t ranks;
    int rc = copy_tensors(declare, op->name, tensors, op->n_tensors, op->tensors, err);

    if (rc != CST_OK) {
        return rc;
    }
    ranks = ranks_of(declare, op);
    op->runs = (ranks >> declare->rank & 1) != 0;
    return ranks != 0 ? CST_OK
                      : cst_err_set(err, CST_EINVAL,
                                    "operator '%s': no rank is in the groups of all its tensors",
                                    op->name);
}

static int append_operator(struct cstc_declare *declare, struct cstc_declare_operator *op,
                           const int *tensors, struct cst_err *err)
{
    /* Everything is allocated before the list is checked, so that a valid operator is always
     * added. */
    void *array = declare->operators;
    int rc = grow(&array, declare->n_operators, &declare->operator_capacity, sizeof *op);

    declare->operators = array;
    if (rc == CST_OK) {
        rc = grow_names(&declare->operator_names, declare->operators, sizeof *op);
    }
    if (rc == CST_OK) {
        rc = grow_stamps(declare);
    }
    op->tensors = rc == CST_OK ? malloc(op->n_tensors * sizeof *op->tensors) : NULL;
    if (op->tensors == NULL) {
        return cst_err_set(err, CST_ENOMEM, "operator '%s': no memory to declare it", op->name);
    }
    rc = fill_operator(declare, op, tensors, err);
    if (rc != CST_OK) {
        wipe_stamps(declare, tensors, op->n_tensors);
        free(op->tensors);
        return rc;
    }
    declare->operators[declare->n_operators] = *op;
    put_name(&declare->operator_names, op->name, declare->n_operators++);
    return CST_OK;
}

static int check_cost(const char *name, const struct cst_operator_cost *cost, struct cst_err *err)
{
    if (isfinite(cost->flops) && cost->flops >= 0 && isfinite(cost->expected_uses) &&
        cost->expected_uses >= 0) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EINVAL,
                       "operator '%s': %g flops, %g expected uses: hints are 0 or more", name,
                       cost->flops, (double)cost->expected_uses);
}

int cstc_declare_add_operator(struct cstc_declare *declare, const char *name, const int *tensors,
                              uint32_t n_tensors, const struct cst_operator_cost *cost,
                              struct cst_err *err)
{
    struct cstc_declare_operator op = {.n_tensors = n_tensors};
    int rc = check_name("operator", name, err);

    if (rc == CST_OK && cost != NULL) {
        op.cost = *cost;
        rc = check_cost(name, cost, err);
    }

    if (rc != CST_OK) {
        return rc;
    }
    if (tensors == NULL || n_tensors == 0) {
        return cst_err_set(err, CST_EINVAL, "operator '%s' uses no tensors", name);
    }
    if (n_tensors > declare->n_tensors) {
        return cst_err_set(err, CST_EINVAL,
                           "operator '%s' uses %u tensors, but only %u are declared", name,
                           n_tensors, declare->n_tensors);
    }
    if (has_name(&declare->operator_names, name, declare->operators, sizeof op)) {
        return cst_err_set(err, CST_EEXIST, "operator '%s' is declared already", name);
    }
    if (declare->n_operators == CSTC_DECLARE_MAX_OPERATORS) {
        return cst_err_set(err, CST_EINVAL, "operator '%s': over %d operators", name,
                           CSTC_DECLARE_MAX_OPERATORS);
    }
    (void)snprintf(op.name, sizeof op.name, "%s", name);
    return append_operator(declare, &op, tensors, err);
}
