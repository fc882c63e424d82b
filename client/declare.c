#include "client/declare.h"

#include "proto/frame.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- names ------------------------------------------------------------------------------------ */

/* FNV-1a. */
static uint32_t hash(const char *name)
{
    uint32_t h = 2166136261u;

    for (; *name != '\0'; name++) {
        h = (h ^ (uint8_t)*name) * 16777619u;
    }
    return h;
}

/* The name of number @i: tensors and operators both begin with it, @stride bytes apart. */
static const char *name_at(const void *base, size_t stride, uint32_t i)
{
    return (const char *)base + stride * i;
}

static bool has_name(const struct cst_declare_names *names, const char *name, const void *base,
                     size_t stride)
{
    if (names->n_slots == 0) {
        return false;
    }
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

static void put_name(struct cst_declare_names *names, const char *name, uint32_t number)
{
    uint32_t at = hash(name);

    while (names->slots[at & (names->n_slots - 1)] != 0) {
        at++;
    }
    names->slots[at & (names->n_slots - 1)] = number + 1;
    names->n_used++;
}

/* Make room for one more name at a load of at most a half. */
static int grow_names(struct cst_declare_names *names, const void *base, size_t stride)
{
    struct cst_declare_names bigger = {.n_slots = names->n_slots == 0 ? 64 : 2 * names->n_slots};

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
    if (n >= CST_DECLARE_NAME_BYTES) {
        return cst_err_set(err, CST_EINVAL, "%s '%.32s...': name of %zu bytes, at most %d", what,
                           name, n, CST_DECLARE_NAME_BYTES - 1);
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

/* -- tensors and operators -------------------------------------------------------------------- */

void cst_declare_init(struct cst_declare *declare)
{
    *declare = (struct cst_declare){0};
}

void cst_declare_close(struct cst_declare *declare)
{
    for (uint32_t i = 0; i < declare->n_operators; i++) {
        free(declare->operators[i].tensors);
    }
    free(declare->tensors);
    free(declare->operators);
    free(declare->tensor_names.slots);
    free(declare->operator_names.slots);
    free(declare->stamp);
    cst_declare_init(declare);
}

/* Double @*array when @n fills @*capacity. */
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

static int count_elems(const char *name, uint32_t n_dims, const int64_t *shape, uint64_t *out,
                       struct cst_err *err)
{
    int64_t product = 1;

    if (shape == NULL || n_dims < 1 || n_dims > CST_DECLARE_MAX_DIMS) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': %u dimensions, 1 to %d are possible",
                           name, n_dims, CST_DECLARE_MAX_DIMS);
    }
    for (uint32_t i = 0; i < n_dims; i++) {
        if (shape[i] < 1) {
            return cst_err_set(err, CST_EINVAL, "tensor '%s': dimension %u is %lld, at least 1",
                               name, i, (long long)shape[i]);
        }
        if (shape[i] > CST_DECLARE_MAX_ELEMS / product) {
            return cst_err_set(err, CST_EINVAL, "tensor '%s': over %lld elements", name,
                               CST_DECLARE_MAX_ELEMS);
        }
        product *= shape[i];
    }
    *out = (uint64_t)product;
    return CST_OK;
}

static int append_tensor(struct cst_declare *declare, const struct cst_declare_tensor *tensor,
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

int cst_declare_add_tensor(struct cst_declare *declare, const char *name, uint32_t dtype,
                           uint32_t n_dims, const int64_t *shape, float lr_scale, float decay_scale,
                           struct cst_err *err)
{
    struct cst_declare_tensor tensor = {
        .n_dims = n_dims, .dtype = dtype, .lr_scale = lr_scale, .decay_scale = decay_scale};
    int rc = check_name("tensor", name, err);

    if (rc == CST_OK) {
        rc = count_elems(name, n_dims, shape, &tensor.n_elems, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    if (!isfinite(lr_scale) || !isfinite(decay_scale)) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': a scale that is not finite", name);
    }
    if (has_name(&declare->tensor_names, name, declare->tensors, sizeof tensor)) {
        return cst_err_set(err, CST_EEXIST, "tensor '%s' is declared already", name);
    }
    if (declare->n_tensors == CST_DECLARE_MAX_TENSORS) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': over %d tensors", name,
                           CST_DECLARE_MAX_TENSORS);
    }
    (void)snprintf(tensor.name, sizeof tensor.name, "%s", name);
    memcpy(tensor.shape, shape, n_dims * sizeof *shape);
    return append_tensor(declare, &tensor, err);
}

/* Stamps tell a repeat in O(1): an operator may name 65536 tensors. */
static int copy_tensors(struct cst_declare *declare, const char *name, const int *tensors,
                        uint32_t n_tensors, uint32_t *out, struct cst_err *err)
{
    uint32_t mine = declare->n_operators + 1;

    for (uint32_t i = 0; i < n_tensors; i++) {
        if (tensors[i] < 0 || (uint32_t)tensors[i] >= declare->n_tensors) {
            return cst_err_set(err, CST_EINVAL, "operator '%s': its tensor %u is number %d of %u",
                               name, i, tensors[i], declare->n_tensors);
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

static int grow_stamps(struct cst_declare *declare)
{
    uint32_t *moved;

    if (declare->n_stamps >= declare->n_tensors) {
        return CST_OK;
    }
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

/* A failed try leaves stamps behind that name the operator which comes next: wipe them. */
static void wipe_stamps(struct cst_declare *declare, const int *tensors, uint32_t n_tensors)
{
    for (uint32_t i = 0; i < n_tensors; i++) {
        if (tensors[i] >= 0 && (uint32_t)tensors[i] < declare->n_stamps) {
            declare->stamp[tensors[i]] = 0;
        }
    }
}

static int append_operator(struct cst_declare *declare, struct cst_declare_operator *op,
                           const int *tensors, struct cst_err *err)
{
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
    rc = copy_tensors(declare, op->name, tensors, op->n_tensors, op->tensors, err);
    if (rc != CST_OK) {
        wipe_stamps(declare, tensors, op->n_tensors);
        free(op->tensors);
        return rc;
    }
    declare->operators[declare->n_operators] = *op;
    put_name(&declare->operator_names, op->name, declare->n_operators++);
    return CST_OK;
}

int cst_declare_add_operator(struct cst_declare *declare, const char *name, const int *tensors,
                             uint32_t n_tensors, struct cst_err *err)
{
    struct cst_declare_operator op = {.n_tensors = n_tensors};
    int rc = check_name("operator", name, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (tensors == NULL || n_tensors == 0) {
        return cst_err_set(err, CST_EINVAL, "operator '%s' uses no tensors", name);
    }
    if (n_tensors > declare->n_tensors) {
        return cst_err_set(err, CST_EINVAL, "operator '%s' uses %u tensors, %u are declared", name,
                           n_tensors, declare->n_tensors);
    }
    if (has_name(&declare->operator_names, name, declare->operators, sizeof op)) {
        return cst_err_set(err, CST_EEXIST, "operator '%s' is declared already", name);
    }
    if (declare->n_operators == CST_DECLARE_MAX_OPERATORS) {
        return cst_err_set(err, CST_EINVAL, "operator '%s': over %d operators", name,
                           CST_DECLARE_MAX_OPERATORS);
    }
    (void)snprintf(op.name, sizeof op.name, "%s", name);
    return append_operator(declare, &op, tensors, err);
}

/* -- messages --------------------------------------------------------------------------------- */

/* Bytes that a declaration takes in a message at most: tags and lengths of at most 5 bytes each,
 * varints of at most 10 or 3. */
static size_t tensor_bytes(const struct cst_declare_tensor *tensor)
{
    return 64 + strlen(tensor->name) + 10 * (size_t)tensor->n_dims;
}

static size_t operator_bytes(const struct cst_declare_operator *op)
{
    return 32 + strlen(op->name) + 3 * (size_t)op->n_tensors;
}

/* Messages borrow names, shapes and lists from the declaration; they own only themselves. */
static Cistern__TensorDecl *make_tensor(const struct cst_declare_tensor *tensor)
{
    Cistern__TensorDecl *msg = malloc(sizeof *msg);

    if (msg != NULL) {
        cistern__tensor_decl__init(msg);
        msg->name = (char *)(uintptr_t)tensor->name;
        msg->dtype = tensor->dtype;
        msg->n_shape = tensor->n_dims;
        msg->shape = (int64_t *)(uintptr_t)tensor->shape;
        msg->has_lr_scale = true;
        msg->lr_scale = tensor->lr_scale;
        msg->has_decay_scale = true;
        msg->decay_scale = tensor->decay_scale;
    }
    return msg;
}

static Cistern__OperatorDecl *make_operator(const struct cst_declare_operator *op)
{
    Cistern__OperatorDecl *msg = malloc(sizeof *msg);

    if (msg != NULL) {
        cistern__operator_decl__init(msg);
        msg->name = (char *)(uintptr_t)op->name;
        msg->n_tensors = op->n_tensors;
        msg->tensors = op->tensors;
    }
    return msg;
}

/* How many from @first on fit into @room bytes; what is used is taken off @room. */
static uint32_t fit_tensors(const struct cst_declare *declare, uint32_t first, size_t *room)
{
    uint32_t n = 0;

    while (first + n < declare->n_tensors && tensor_bytes(&declare->tensors[first + n]) <= *room) {
        *room -= tensor_bytes(&declare->tensors[first + n++]);
    }
    return n;
}

static uint32_t fit_operators(const struct cst_declare *declare, uint32_t first, size_t *room)
{
    uint32_t n = 0;

    while (first + n < declare->n_operators &&
           operator_bytes(&declare->operators[first + n]) <= *room) {
        *room -= operator_bytes(&declare->operators[first + n++]);
    }
    return n;
}

static int fill_message(const struct cst_declare *declare, struct cst_declare_cursor *cursor,
                        uint32_t n_tensors, uint32_t n_operators, Cistern__Declare *msg)
{
    msg->tensors = calloc((size_t)n_tensors + 1, sizeof *msg->tensors);
    msg->operators = calloc((size_t)n_operators + 1, sizeof *msg->operators);
    if (msg->tensors == NULL || msg->operators == NULL) {
        return CST_ENOMEM;
    }
    for (; msg->n_tensors < n_tensors; msg->n_tensors++) {
        msg->tensors[msg->n_tensors] = make_tensor(&declare->tensors[cursor->tensor]);
        if (msg->tensors[msg->n_tensors] == NULL) {
            return CST_ENOMEM;
        }
        cursor->tensor++;
    }
    for (; msg->n_operators < n_operators; msg->n_operators++) {
        msg->operators[msg->n_operators] = make_operator(&declare->operators[cursor->op]);
        if (msg->operators[msg->n_operators] == NULL) {
            return CST_ENOMEM;
        }
        cursor->op++;
    }
    return CST_OK;
}

int cst_declare_message(const struct cst_declare *declare, struct cst_declare_cursor *cursor,
                        Cistern__Declare **out, struct cst_err *err)
{
    size_t room = CST_FRAME_MAX_BODY;
    uint32_t n_tensors = fit_tensors(declare, cursor->tensor, &room), n_operators = 0;
    Cistern__Declare *msg;

    if (cursor->tensor + n_tensors == declare->n_tensors) {
        n_operators = fit_operators(declare, cursor->op, &room);
    }
    if (n_tensors == 0 && n_operators == 0) {
        if (cursor->op < declare->n_operators) {
            const struct cst_declare_operator *op = &declare->operators[cursor->op];

            return cst_err_set(err, CST_EINVAL, "operator '%s': %u tensors do not fit a message",
                               op->name, op->n_tensors);
        }
        *out = NULL;
        return CST_OK;
    }
    msg = malloc(sizeof *msg);
    if (msg == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a declaration");
    }
    cistern__declare__init(msg);
    if (fill_message(declare, cursor, n_tensors, n_operators, msg) != CST_OK) {
        cst_declare_free_message(msg);
        return cst_err_set(err, CST_ENOMEM, "no memory for a declaration");
    }
    *out = msg;
    return CST_OK;
}

void cst_declare_free_message(Cistern__Declare *msg)
{
    if (msg == NULL) {
        return;
    }
    for (size_t i = 0; i < msg->n_tensors; i++) {
        free(msg->tensors[i]);
    }
    for (size_t i = 0; i < msg->n_operators; i++) {
        free(msg->operators[i]);
    }
    free(msg->tensors);
    free(msg->operators);
    free(msg);
}
