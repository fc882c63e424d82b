/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/external.h"
#include "offload/layout/box.h"
#include "offload/layout/name_index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Number of rows of the tensor as model files have it: they have the whole of a named part. */
static int64_t rows_of(const struct cst_tensor_words *words)
{
    const int64_t *shape = words->whole_name != NULL ? words->whole : words->shape;

    return shape[words->transposed ? 1 : 0];
}

static int check_name(const char *tensor, const char *name, struct cst_err *err)
{
    size_t n = strnlen(name, CST_LAYOUT_NAME_BYTES);

    if (n == 0 || n == CST_LAYOUT_NAME_BYTES) {
        return cst_err_set(err, CST_EINVAL,
                           "tensor '%s': an external name has 1 to %d bytes, '%.20s...' has %s",
                           tensor, CST_LAYOUT_NAME_BYTES - 1, name, n == 0 ? "none" : "more");
    }
    for (size_t i = 0; i < n; i++) {
        if (name[i] < 0x20 || name[i] > 0x7e) {
            return cst_err_set(err, CST_EINVAL,
                               "tensor '%s': byte %zu (0x%02x) of an external name is not "
                               "printable",
                               tensor, i, (unsigned)(uint8_t)name[i]);
        }
    }
    return CST_OK;
}

static int check_names(const struct cst_tensor_words *words, struct cst_err *err)
{
    uint32_t hashes[CST_LAYOUT_MAX_EXTERNAL];
    int status = CST_OK;

    for (uint32_t i = 0; status == CST_OK && i < words->n_external; i++) {
        status = check_name(words->name, words->external_names[i], err);
        /* Each pair is compared, and names can have long equal beginnings. */
        hashes[i] = status == CST_OK ? cst_name_hash(words->external_names[i], 0) : 0;
        for (uint32_t k = 0; status == CST_OK && k < i; k++) {
            if (hashes[i] == hashes[k] &&
                strcmp(words->external_names[i], words->external_names[k]) == 0) {
                status =
                    cst_err_set(err, CST_EINVAL, "tensor '%s' has the external name '%s' twice",
                                words->name, words->external_names[i]);
            }
        }
    }
    return status;
}

static int check_rows(const struct cst_tensor_words *words, struct cst_err *err)
{
    int64_t left = rows_of(words);

    if (words->external_rows == NULL) {
        return words->n_external == 1 ? CST_OK
                                      : cst_err_set(err, CST_EINVAL,
                                                    "tensor '%s' has %" PRIu32
                                                    " external names without their numbers of rows",
                                                    words->name, words->n_external);
    }
    for (uint32_t i = 0; i < words->n_external; i++) {
        int64_t rows = words->external_rows[i];

        if (rows < 1 || rows > left) {
            return cst_err_set(err, CST_EINVAL,
                               "tensor '%s': its external tensor '%s' has %" PRId64
                               " rows, 1 to %" PRId64 " of %" PRId64 " are left",
                               words->name, words->external_names[i], rows, left, rows_of(words));
        }
        left -= rows;
    }
    return left == 0
               ? CST_OK
               : cst_err_set(err, CST_EINVAL,
                             "tensor '%s': its external tensors have %" PRId64 " of %" PRId64 " %s",
                             words->name, rows_of(words) - left, rows_of(words),
                             words->transposed ? "columns" : "rows");
}

int cst_external_check(const struct cst_tensor_words *words, struct cst_err *err)
{
    int status = CST_OK;

    if (words->n_external > CST_LAYOUT_MAX_EXTERNAL) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': %" PRIu32 " external names, at most %d",
                           words->name, words->n_external, CST_LAYOUT_MAX_EXTERNAL);
    }
    if (words->transposed && (words->n_external == 0 || words->n_dims != 2)) {
        return cst_err_set(err, CST_EINVAL,
                           "tensor '%s': a tensor with %" PRIu32 " dimensions and %" PRIu32
                           " external names is not transposed in a file",
                           words->name, words->n_dims, words->n_external);
    }
    if (words->n_external > 0) {
        status = check_names(words, err);
    }
    return status == CST_OK && words->n_external > 0 ? check_rows(words, err) : status;
}

struct cst_layout_external *cst_external_copy(const struct cst_tensor_words *words)
{
    struct cst_layout_external *external;
    const uint32_t n = words->n_external;
    size_t bytes = sizeof *external + n * (sizeof(int64_t) + sizeof(char *));
    char *text;

    for (uint32_t i = 0; i < n; i++) {
        bytes += strlen(words->external_names[i]) + 1;
    }
    external = malloc(bytes);
    if (external == NULL) {
        return NULL;
    }
    external->n = n;
    external->transposed = words->transposed;
    external->rows = (int64_t *)(void *)(external + 1);
    external->names = (char **)(void *)(external->rows + n);
    text = (char *)(external->names + n);
    for (uint32_t i = 0; i < n; i++) {
        external->rows[i] = words->external_rows != NULL ? words->external_rows[i] : rows_of(words);
        external->names[i] = text;
        text = stpcpy(text, words->external_names[i]) + 1;
    }
    return external;
}

int cst_external_same(const struct cst_layout_tensor *t, const struct cst_layout_tensor *other,
                      const char *mine, const char *theirs, struct cst_err *err)
{
    const struct cst_layout_external none = {0};
    const struct cst_layout_external *a = t->external != NULL ? t->external : &none,
                                     *b = other->external != NULL ? other->external : &none;

    if (a->n != b->n || a->transposed != b->transposed) {
        return cst_err_set(err, CST_EMISMATCH,
                           "tensor '%s' has %" PRIu32 " external names%s in %s and %" PRIu32
                           "%s in %s",
                           t->name, b->n, b->transposed ? ", transposed," : "", mine, a->n,
                           a->transposed ? ", transposed," : "", theirs);
    }
    for (uint32_t i = 0; i < a->n; i++) {
        if (strcmp(a->names[i], b->names[i]) != 0 || a->rows[i] != b->rows[i]) {
            return cst_err_set(err, CST_EMISMATCH,
                               "tensor '%s': external name %" PRIu32 " is '%s' with %" PRId64
                               " rows in %s and '%s' with %" PRId64 " in %s",
                               t->name, i, b->names[i], b->rows[i], mine, a->names[i], a->rows[i],
                               theirs);
        }
    }
    return CST_OK;
}

/* -- names of all tensors --------------------------------------------------------------------- */

#define OWN_NAME UINT32_MAX

enum { MIN_CAPACITY = 16 }; /* Tables of names do not shrink below this. */

/* A tensor of a model file. */
struct file_name {
    uint32_t tensor;
    uint32_t external; /* Number of the external name; OWN_NAME: the tensor's own name. */
};

/* cst_model.external */
struct names {
    struct cst_name_index index;
    struct file_name *entries; /* Owned. */
    uint32_t capacity;         /* Number of allocated entries. */
};

static const char *name_of(const struct cst_model *model, uint32_t i)
{
    const struct file_name *name = &((const struct names *)model->external)->entries[i];
    const struct cst_layout_tensor *t = &model->tensors[name->tensor];

    return name->external == OWN_NAME ? cst_box_whole_name(t) : t->external->names[name->external];
}

/* True if @words is a part of the whole of which @t is a part: the names of the whole are those of
 * both. */
static bool shares_names(const struct cst_layout_tensor *t, const struct cst_tensor_words *words)
{
    return words->whole_name != NULL && cst_box_is_named(t) &&
           strcmp(t->box->name, words->whole_name) == 0;
}

int cst_external_reserve(struct cst_model *model, const struct cst_tensor_words *words)
{
    uint32_t n = words->n_external > 0 ? words->n_external : 1;
    struct names *names = model->external;
    struct file_name *entries;

    if (names == NULL) {
        names = model->external = calloc(1, sizeof *names);
    }
    if (names == NULL) {
        return CST_ENOMEM;
    }
    if (names->index.n_entries + n > names->capacity) {
        entries = realloc(names->entries, (2 * (size_t)names->capacity + n) * sizeof *entries);
        if (entries == NULL) {
            return CST_ENOMEM;
        }
        names->entries = entries;
        names->capacity = 2 * names->capacity + n;
    }
    return cst_name_index_reserve(&names->index, n);
}

int cst_external_check_names(const struct cst_model *model, const struct cst_tensor_words *words,
                             struct cst_err *err)
{
    const struct names *names = model->external;

    for (uint32_t i = 0; i < (words->n_external > 0 ? words->n_external : 1); i++) {
        const char *own = words->whole_name != NULL ? words->whole_name : words->name;
        const char *name = words->n_external > 0 ? words->external_names[i] : own;
        uint32_t at = cst_name_index_find(&names->index, model, name_of, name);

        if (at != CST_NO_NAME && !shares_names(&model->tensors[names->entries[at].tensor], words)) {
            return cst_err_set(err, CST_EEXIST,
                               "tensors '%s' and '%s' have the same name '%s' in model files",
                               model->tensors[names->entries[at].tensor].name, words->name, name);
        }
    }
    return CST_OK;
}

void cst_external_add(struct cst_model *model)
{
    const struct cst_layout_tensor *t = &model->tensors[model->n_tensors];
    struct names *names = model->external;

    for (uint32_t i = 0; i < (t->external != NULL ? t->external->n : 1); i++) {
        const uint32_t at = names->index.n_entries;
        const char *name;

        names->entries[at] = (struct file_name){.tensor = model->n_tensors,
                                                .external = t->external != NULL ? i : OWN_NAME};
        name = name_of(model, at);
        /* Another part of the same whole may have added it. */
        if (!cst_box_is_named(t) ||
            cst_name_index_find(&names->index, model, name_of, name) == CST_NO_NAME) {
            cst_name_index_add(&names->index, name);
        }
    }
}

void cst_external_remove_last(struct cst_model *model)
{
    const uint32_t tensor = model->n_tensors - 1;
    struct names *names = model->external;
    struct file_name *entries;

    /* A part has none, or fewer than it declared, if another part of its whole has added them. */
    while (names->index.n_entries > 0 &&
           names->entries[names->index.n_entries - 1].tensor == tensor) {
        cst_name_index_remove_last(&names->index, name_of(model, names->index.n_entries - 1));
    }
    if (names->capacity > MIN_CAPACITY && 4 * names->index.n_entries < names->capacity) {
        entries = realloc(names->entries, names->capacity / 2 * sizeof *entries);
        names->capacity = entries != NULL ? names->capacity / 2 : names->capacity;
        names->entries = entries != NULL ? entries : names->entries;
    }
}

void cst_external_close(struct cst_model *model)
{
    struct names *names = model->external;

    if (names != NULL) {
        cst_name_index_close(&names->index);
        free(names->entries);
        free(names);
    }
    model->external = NULL;
}
