/* Declarations: tensors, operators, and the index from names to numbers. */
#include "offload/layout.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ELEMS (1ull << 40)
#define NO_NUMBER UINT32_MAX

/* Open addressing over the numbers of what is named; at most half full. */
struct names {
    uint32_t *slots;    /* number of the entry, NO_NUMBER: empty; owned */
    uint32_t n_slots;   /* power of two, 0 before the first name */
    uint32_t n_entries; /* names in it */
};

struct index {
    struct names tensors;
    struct names operators;
    uint32_t tensors_capacity;   /* entries that model->tensors has room for */
    uint32_t operators_capacity; /* same, model->operators */
    uint32_t *seen;              /* per tensor: 1 + the last operator that named it; owned */
};

/* The name of entry @i, of either kind. */
typedef const char *(*name_fn)(const struct cst_model *model, uint32_t i);

static const char *tensor_name(const struct cst_model *model, uint32_t i)
{
    return model->tensors[i].name;
}

static const char *operator_name(const struct cst_model *model, uint32_t i)
{
    return model->operators[i].name;
}

/* FNV-1a. */
static uint32_t hash_name(const char *name)
{
    uint32_t h = 2166136261u;

    for (; *name != '\0'; name++) {
        h = (h ^ (uint8_t)*name) * 16777619u;
    }
    return h;
}

/* The slot that holds @name, or the empty one where it would go. */
static uint32_t find_slot(const struct names *names, const struct cst_model *model, name_fn name_of,
                          const char *name)
{
    uint32_t mask = names->n_slots - 1;
    uint32_t at = hash_name(name) & mask;

    while (names->slots[at] != NO_NUMBER && strcmp(name_of(model, names->slots[at]), name) != 0) {
        at = (at + 1) & mask;
    }
    return at;
}

static uint32_t find_name(const struct names *names, const struct cst_model *model, name_fn name_of,
                          const char *name)
{
    if (names->n_slots == 0) {
        return NO_NUMBER;
    }
    return names->slots[find_slot(names, model, name_of, name)];
}

static int reserve_name(struct names *names, const struct cst_model *model, name_fn name_of)
{
    struct names grown = {.n_slots = names->n_slots == 0 ? 64 : 2 * names->n_slots,
                          .n_entries = names->n_entries};

    if (2 * (names->n_entries + 1) <= names->n_slots) {
        return CST_OK;
    }
    grown.slots = malloc(grown.n_slots * sizeof *grown.slots);
    if (grown.slots == NULL) {
        return CST_ENOMEM;
    }
    memset(grown.slots, 0xff, grown.n_slots * sizeof *grown.slots);
    for (uint32_t i = 0; i < names->n_entries; i++) {
        grown.slots[find_slot(&grown, model, name_of, name_of(model, i))] = i;
    }
    free(names->slots);
    *names = grown;
    return CST_OK;
}

/* Room for one more entry of @size bytes behind the @n in @v: where the array is now, or NULL and
 * @v is as it was. */
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

static struct index *get_index(struct cst_model *model)
{
    if (model->index == NULL) {
        model->index = calloc(1, sizeof(struct index));
    }
    return model->index;
}

void cst_model_init(struct cst_model *model)
{
    memset(model, 0, sizeof *model);
    model->groups[0] = UINT64_MAX;
    model->n_groups = 1;
}

void cst_model_close(struct cst_model *model)
{
    struct index *index = model->index;

    for (uint32_t i = 0; i < model->n_operators; i++) {
        free(model->operators[i].tensors);
    }
    if (index != NULL) {
        free(index->tensors.slots);
        free(index->operators.slots);
        free(index->seen);
    }
    free(index);
    free(model->operators);
    free(model->tensors);
    memset(model, 0, sizeof *model);
}

/* `seen` has one entry for each tensor that there is room for. */
static int reserve_tensor(struct cst_model *model, struct index *index)
{
    uint32_t before = index->tensors_capacity;
    struct cst_layout_tensor *tensors;
    uint32_t *seen;

    if (reserve_name(&index->tensors, model, tensor_name) != CST_OK) {
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

static int reserve_operator(struct cst_model *model, struct index *index)
{
    struct cst_layout_operator *operators;

    if (reserve_name(&index->operators, model, operator_name) != CST_OK) {
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

int cst_model_tensor(struct cst_model *model, const char *name, const int64_t *shape,
                     uint32_t n_dims, float lr_scale, float decay_scale, struct cst_err *err)
{
    struct index *index = get_index(model);
    struct cst_layout_tensor *t;
    uint64_t n_elems = 0;
    int status = check_name("a tensor", name, err);

    if (status == CST_OK) {
        status = check_shape(name, shape, n_dims, &n_elems, err);
    }
    if (status != CST_OK) {
        return status;
    }
    if (!isfinite(lr_scale) || !isfinite(decay_scale)) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': lr_scale and decay_scale must be finite",
                           name);
    }
    if (model->n_tensors == CST_LAYOUT_MAX_TENSORS) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': more than %d tensors", name,
                           CST_LAYOUT_MAX_TENSORS);
    }
    if (index == NULL || reserve_tensor(model, index) != CST_OK) {
        return cst_err_set(err, CST_ENOMEM, "tensor '%s': no memory for its declaration", name);
    }
    if (find_name(&index->tensors, model, tensor_name, name) != NO_NUMBER) {
        return cst_err_set(err, CST_EEXIST, "tensor '%s' is declared already", name);
    }
    t = &model->tensors[model->n_tensors];
    memset(t, 0, sizeof *t);
    memcpy(t->name, name, strlen(name));
    memcpy(t->shape, shape, n_dims * sizeof *shape);
    t->n_dims = n_dims;
    t->n_elems = n_elems;
    t->lr_scale = lr_scale;
    t->decay_scale = decay_scale;
    index->tensors.slots[find_slot(&index->tensors, model, tensor_name, name)] = model->n_tensors;
    index->tensors.n_entries++;
    model->n_params += n_elems;
    model->n_tensors++;
    return CST_OK;
}

/* Every number known and none twice. `seen` keeps this linear; what a refused operator left in it
 * is cleared. */
static int check_tensors(const struct cst_model *model, struct index *index, const char *name,
                         const uint32_t *tensors, uint32_t n_tensors, struct cst_err *err)
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

int cst_model_operator(struct cst_model *model, const char *name, const uint32_t *tensors,
                       uint32_t n_tensors, struct cst_err *err)
{
    struct index *index = get_index(model);
    struct cst_layout_operator *op;
    uint32_t *copy;
    int status = check_name("an operator", name, err);

    if (status != CST_OK) {
        return status;
    }
    if (n_tensors == 0) {
        return cst_err_set(err, CST_EINVAL, "operator '%s' uses no tensor", name);
    }
    if (model->n_operators == CST_LAYOUT_MAX_OPERATORS) {
        return cst_err_set(err, CST_EINVAL, "operator '%s': more than %d operators", name,
                           CST_LAYOUT_MAX_OPERATORS);
    }
    if (n_tensors > CST_LAYOUT_MAX_USES - model->n_uses) {
        return cst_err_set(err, CST_EINVAL,
                           "operator '%s' uses %" PRIu32 " tensors and those before it %" PRIu32
                           ": at most %d together",
                           name, n_tensors, model->n_uses, CST_LAYOUT_MAX_USES);
    }
    if (index == NULL || reserve_operator(model, index) != CST_OK) {
        return cst_err_set(err, CST_ENOMEM, "operator '%s': no memory for its declaration", name);
    }
    if (find_name(&index->operators, model, operator_name, name) != NO_NUMBER) {
        return cst_err_set(err, CST_EEXIST, "operator '%s' is declared already", name);
    }
    status = check_tensors(model, index, name, tensors, n_tensors, err);
    if (status != CST_OK) {
        return status;
    }
    copy = malloc(n_tensors * sizeof *copy);
    if (copy == NULL) {
        return cst_err_set(err, CST_ENOMEM, "operator '%s': no memory for its declaration", name);
    }
    memcpy(copy, tensors, n_tensors * sizeof *copy);
    op = &model->operators[model->n_operators];
    memset(op, 0, sizeof *op);
    memcpy(op->name, name, strlen(name));
    op->tensors = copy;
    op->n_tensors = n_tensors;
    for (uint32_t i = 0; i < n_tensors; i++) {
        model->tensors[tensors[i]].n_uses++;
    }
    index->operators.slots[find_slot(&index->operators, model, operator_name, name)] =
        model->n_operators;
    index->operators.n_entries++;
    model->n_uses += n_tensors;
    model->n_operators++;
    return CST_OK;
}

uint32_t cst_model_find(const struct cst_model *model, const char *name)
{
    const struct index *index = model->index;

    if (index == NULL) {
        return UINT32_MAX;
    }
    return find_name(&index->tensors, model, tensor_name, name);
}

int cst_model_same_tensor(const struct cst_model *model, uint32_t i,
                          const struct cst_layout_tensor *other, const char *mine,
                          const char *theirs, struct cst_err *err)
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
    if (memcmp(&t->lr_scale, &other->lr_scale, sizeof t->lr_scale) != 0) {
        return cst_err_set(err, CST_EMISMATCH, "tensor '%s': lr_scale is %g in %s and %g in %s",
                           t->name, (double)other->lr_scale, mine, (double)t->lr_scale, theirs);
    }
    if (memcmp(&t->decay_scale, &other->decay_scale, sizeof t->decay_scale) != 0) {
        return cst_err_set(err, CST_EMISMATCH, "tensor '%s': decay_scale is %g in %s and %g in %s",
                           t->name, (double)other->decay_scale, mine, (double)t->decay_scale,
                           theirs);
    }
    return CST_OK;
}

int cst_model_same_operator(const struct cst_model *model, uint32_t i,
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
    return CST_OK;
}
