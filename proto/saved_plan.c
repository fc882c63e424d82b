/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/saved_plan.h"

#include "proto/json_fields.h"
#include "proto/new_file.h"
#include "proto/optimizers.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MAX_STEP_S 1e9 /* 31 years */

static const char *const flag_names[] = {"no", "yes", NULL};

/* A number of a plan: its key, and its form in the file. */
struct field {
    const char *key;
    size_t offset;
    bool wide; /* The field is a uint64_t; otherwise a uint32_t. */
    /* Names of the values, ended by NULL; NULL: the value is written as a number. */
    const char *const *names;
    bool optional; /* With names: if the file has no such key, the value is 0. */
};

#define FIELD(type, member, ...)                                                                   \
    {.key = #member,                                                                               \
     .offset = offsetof(struct cst_saved_plan, member),                                            \
     .wide = sizeof(type) == sizeof(uint64_t),                                                     \
     __VA_ARGS__},
#define CHOICE_required false
#define CHOICE_optional true

static const struct field for_fields[] = {
#define CST_PLAN_OPTION(member, path, in_names, ...) FIELD(uint32_t, member, .names = (in_names))
#define CST_PLAN_MODEL(type, member) FIELD(type, member, .names = NULL)
#include "proto/saved_plan.def"
    {.key = NULL},
};
static const char *const for_keys[] = {
#define CST_PLAN_OPTION(member, ...) #member,
#define CST_PLAN_MODEL(type, member) #member,
#include "proto/saved_plan.def"
    NULL,
};

static const struct field plan_fields[] = {
#define CST_PLAN_CHOICE(type, member, in_names, presence)                                          \
    FIELD(type, member, .names = (in_names), .optional = CHOICE_##presence)
#include "proto/saved_plan.def"
    {.key = NULL},
};
/* Files of earlier versions have the key "eviction"; it has no effect. */
static const char *const plan_keys[] = {
#define CST_PLAN_CHOICE(type, member, ...) #member,
#include "proto/saved_plan.def"
    "classes",
    "eviction",
    "step_s",
    NULL,
};
static const char *const class_keys[] = {"chunk_elems", "n_blocks", NULL};
static const char *const root_keys[] = {"cistern_plan", "for", "plan", "made", NULL};

static uint64_t get(const struct cst_saved_plan *plan, const struct field *field)
{
    const char *at = (const char *)plan + field->offset;

    return field->wide ? *(const uint64_t *)(const void *)at : *(const uint32_t *)(const void *)at;
}

static void set(struct cst_saved_plan *plan, const struct field *field, uint64_t value)
{
    char *at = (char *)plan + field->offset;

    if (field->wide) {
        *(uint64_t *)(void *)at = value;
    } else {
        *(uint32_t *)(void *)at = (uint32_t)value;
    }
}

static uint32_t count_names(const struct field *field)
{
    uint32_t n = 0;

    while (field->names[n] != NULL) {
        n++;
    }
    return n;
}

/* -- comparing -------------------------------------------------------------------------------- */

/* Write the value as in the file: "adamw", "23". */
static const char *value_text(const struct field *field, uint64_t value, char out[24])
{
    if (field->names != NULL && value < count_names(field)) {
        return field->names[value];
    }
    (void)snprintf(out, 24, "%" PRIu64, value);
    return out;
}

static const struct field *first_difference(const struct field *fields,
                                            const struct cst_saved_plan *a,
                                            const struct cst_saved_plan *b)
{
    while (fields->key != NULL && get(a, fields) == get(b, fields)) {
        fields++;
    }
    return fields->key != NULL ? fields : NULL;
}

int cst_saved_plan_is_for(const struct cst_saved_plan *plan, const struct cst_saved_plan *job,
                          struct cst_err *err)
{
    const struct field *field = first_difference(for_fields, plan, job);
    char a[24], b[24];

    if (field == NULL) {
        return CST_OK;
    }
    if (strcmp(field->key, "fingerprint") == 0) {
        return cst_err_set(err, CST_EMISMATCH,
                           "the plan was made for another model (fingerprint %" PRIx64
                           ", the job's is %" PRIx64
                           "): names, shapes, groups or uses of its tensors differ",
                           plan->fingerprint, job->fingerprint);
    }
    return cst_err_set(err, CST_EMISMATCH, "the plan was made for %s %s, the job has %s",
                       field->key, value_text(field, get(plan, field), a),
                       value_text(field, get(job, field), b));
}

/* Return the number of the first class that differs; UINT32_MAX: none. */
static uint32_t class_difference(const struct cst_saved_plan *a, const struct cst_saved_plan *b)
{
    for (uint32_t i = 0; i < a->n_classes && i < b->n_classes; i++) {
        if (a->chunk_elems[i] != b->chunk_elems[i] || a->n_blocks[i] != b->n_blocks[i]) {
            return i;
        }
    }
    return UINT32_MAX;
}

int cst_saved_plan_same(const struct cst_saved_plan *plan, const struct cst_saved_plan *other,
                        uint32_t rank, struct cst_err *err)
{
    static const struct field n_classes[] = {
        FIELD(uint32_t, n_classes, .names = NULL){.key = NULL}};
    const struct field *field = first_difference(for_fields, plan, other);
    uint32_t class = class_difference(plan, other);
    char a[24], b[24];

    field = field != NULL ? field : first_difference(n_classes, plan, other);
    field = field != NULL ? field : first_difference(plan_fields, plan, other);
    if (field != NULL) {
        return cst_err_set(err, CST_EMISMATCH,
                           "the job's plan has %s %s, that of rank %" PRIu32 " has %s", field->key,
                           value_text(field, get(plan, field), a), rank,
                           value_text(field, get(other, field), b));
    }
    if (class != UINT32_MAX) {
        return cst_err_set(err, CST_EMISMATCH,
                           "the job's plan has %" PRIu32 " blocks of %" PRIu64
                           " elements, that of rank %" PRIu32 " has %" PRIu32 " of %" PRIu64,
                           plan->n_blocks[class], plan->chunk_elems[class], rank,
                           other->n_blocks[class], other->chunk_elems[class]);
    }
    return CST_OK;
}

/* -- checking --------------------------------------------------------------------------------- */

static int check_names(const struct cst_saved_plan *plan, const struct field *fields,
                       struct cst_err *err)
{
    for (; fields->key != NULL; fields++) {
        if (fields->names != NULL && get(plan, fields) >= count_names(fields)) {
            return cst_err_set(err, CST_EINVAL,
                               "the plan has %s %" PRIu64 ", but there are only %" PRIu32,
                               fields->key, get(plan, fields), count_names(fields));
        }
    }
    return CST_OK;
}

int cst_saved_plan_check(const struct cst_saved_plan *plan, struct cst_err *err)
{
    int rc = check_names(plan, for_fields, err);

    rc = rc == CST_OK ? check_names(plan, plan_fields, err) : rc;
    if (rc == CST_OK && (plan->n_classes == 0 || plan->n_classes > CST_SAVED_PLAN_CLASSES)) {
        rc = cst_err_set(err, CST_EINVAL, "a plan with %" PRIu32 " classes: 1 to %d are allowed",
                         plan->n_classes, CST_SAVED_PLAN_CLASSES);
    }
    for (uint32_t i = 0; rc == CST_OK && i < plan->n_classes; i++) {
        if (plan->chunk_elems[i] == 0 || plan->n_blocks[i] == 0) {
            rc = cst_err_set(err, CST_EINVAL,
                             "a plan with %" PRIu32 " blocks of %" PRIu64 " elements",
                             plan->n_blocks[i], plan->chunk_elems[i]);
        }
    }
    if (rc == CST_OK && (plan->n_chunks == 0 || plan->pool_bytes == 0 || plan->world == 0 ||
                         plan->micro_batches == 0)) {
        rc = cst_err_set(err, CST_EINVAL,
                         "a plan of %" PRIu32 " chunks, pools of %" PRIu64 " bytes, %" PRIu32
                         " ranks and %" PRIu32 " micro-batches: none of them may be 0",
                         plan->n_chunks, plan->pool_bytes, plan->world, plan->micro_batches);
    }
    if (rc == CST_OK && !(plan->step_s >= 0 && plan->step_s <= MAX_STEP_S)) {
        rc = cst_err_set(err, CST_EINVAL, "a plan with a step of %g s", plan->step_s);
    }
    return rc;
}

/* -- reading ---------------------------------------------------------------------------------- */

static int read_name(const json_t *object, const char *place, const struct field *field,
                     uint64_t *out, struct cst_err *err)
{
    char text[32] = "", at[CST_JSON_PLACE_BYTES];
    uint32_t i;
    int rc;

    if (field->optional && json_object_get(object, field->key) == NULL) {
        *out = 0;
        return CST_OK;
    }
    rc = cst_json_text(object, place, field->key, CST_JSON_REQUIRED, text, sizeof text, err);
    if (rc != CST_OK) {
        return rc;
    }
    i = cst_name_find(field->names, text);
    if (field->names[i] == NULL) {
        return cst_err_set(err, CST_EINVAL, "%s: '%s' is not known",
                           cst_json_place(at, place, field->key, -1), text);
    }
    *out = i;
    return CST_OK;
}

static int read_fields(const json_t *object, const char *place, const struct field *fields,
                       struct cst_saved_plan *out, struct cst_err *err)
{
    int rc = CST_OK;

    for (; fields->key != NULL && rc == CST_OK; fields++) {
        uint64_t value = 0, most = fields->wide ? INT64_MAX : UINT32_MAX;

        rc = fields->names != NULL
                 ? read_name(object, place, fields, &value, err)
                 : cst_json_u64(object, place, fields->key, CST_JSON_REQUIRED, most, &value, err);
        set(out, fields, value);
    }
    return rc;
}

static int read_class(const json_t *object, const char *place, struct cst_saved_plan *out,
                      struct cst_err *err)
{
    uint64_t elems = 0, blocks = 0;
    int rc = cst_json_object(object, place, class_keys, err);

    if (rc == CST_OK) {
        rc = cst_json_u64(object, place, "chunk_elems", CST_JSON_REQUIRED, INT64_MAX, &elems, err);
    }
    if (rc == CST_OK) {
        rc = cst_json_u64(object, place, "n_blocks", CST_JSON_REQUIRED, UINT32_MAX, &blocks, err);
    }
    if (rc == CST_OK) {
        out->chunk_elems[out->n_classes] = elems;
        out->n_blocks[out->n_classes++] = (uint32_t)blocks;
    }
    return rc;
}

static int read_classes(const json_t *object, struct cst_saved_plan *out, struct cst_err *err)
{
    const json_t *list = NULL;
    char place[CST_JSON_PLACE_BYTES];
    int rc = cst_json_array(object, "plan", "classes", CST_JSON_REQUIRED, 1, CST_SAVED_PLAN_CLASSES,
                            &list, err);

    for (size_t i = 0; rc == CST_OK && i < json_array_size(list); i++) {
        rc = read_class(json_array_get(list, i), cst_json_place(place, "plan", "classes", (long)i),
                        out, err);
    }
    return rc;
}

static int read_version(const json_t *root, struct cst_err *err)
{
    uint64_t version = 0;
    int rc = json_is_object(root) ? cst_json_u64(root, "", "cistern_plan", CST_JSON_REQUIRED,
                                                 INT64_MAX, &version, err)
                                  : cst_err_set(err, CST_EINVAL, "the file: wanted an object");

    if (rc == CST_OK && version != CST_SAVED_PLAN_VERSION) {
        rc = cst_err_set(err, CST_EINVAL,
                         "cistern_plan: a plan of version %" PRIu64 ", this program reads version "
                         "%d: make it again",
                         version, CST_SAVED_PLAN_VERSION);
    }
    return rc == CST_OK ? cst_json_object(root, "", root_keys, err) : rc;
}

static int read_plan(const json_t *root, struct cst_saved_plan *out, struct cst_err *err)
{
    const json_t *made_for = json_object_get(root, "for"), *plan = json_object_get(root, "plan");
    int rc = read_version(root, err);

    if (rc == CST_OK && (made_for == NULL || plan == NULL)) {
        rc = cst_err_set(err, CST_EINVAL, "the file: no '%s'", made_for == NULL ? "for" : "plan");
    }
    rc = rc == CST_OK ? cst_json_object(made_for, "for", for_keys, err) : rc;
    rc = rc == CST_OK ? cst_json_object(plan, "plan", plan_keys, err) : rc;
    rc = rc == CST_OK ? read_fields(made_for, "for", for_fields, out, err) : rc;
    rc = rc == CST_OK ? read_classes(plan, out, err) : rc;
    rc = rc == CST_OK ? read_fields(plan, "plan", plan_fields, out, err) : rc;
    if (rc == CST_OK) {
        rc = cst_json_real(plan, "plan", "step_s", CST_JSON_REQUIRED, &out->step_s, err);
    }
    return rc == CST_OK ? cst_saved_plan_check(out, err) : rc;
}

int cst_saved_plan_read(struct cst_saved_plan *out, const char *path, struct cst_err *err)
{
    struct cst_saved_plan plan = {0};
    json_t *root = NULL;
    int rc = cst_json_load(&root, path, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = read_plan(root, &plan, err);
    json_decref(root);
    if (rc != CST_OK) {
        return cst_err_prefix(err, "%s", path);
    }
    *out = plan;
    return CST_OK;
}

/* -- writing ---------------------------------------------------------------------------------- */

static bool put_fields(json_t *object, const struct field *fields,
                       const struct cst_saved_plan *plan)
{
    bool good = object != NULL;

    for (; fields->key != NULL && good; fields++) {
        uint64_t value = get(plan, fields);

        good = json_object_set_new(object, fields->key,
                                   fields->names != NULL ? json_string(fields->names[value])
                                                         : json_integer((json_int_t)value)) == 0;
    }
    return good;
}

static bool put_classes(json_t *list, const struct cst_saved_plan *plan)
{
    bool good = list != NULL;

    for (uint32_t i = 0; good && i < plan->n_classes; i++) {
        good = json_array_append_new(list, json_pack("{s:I, s:I}", "chunk_elems",
                                                     (json_int_t)plan->chunk_elems[i], "n_blocks",
                                                     (json_int_t)plan->n_blocks[i])) == 0;
    }
    return good;
}

/* Return a new object; NULL: out of memory. The reference to @made is dropped in any case. */
static json_t *to_json(const struct cst_saved_plan *plan, json_t *made)
{
    json_t *made_for = json_object(), *decided = json_object(), *classes = json_array();
    bool good = put_fields(made_for, for_fields, plan) && put_classes(classes, plan) &&
                decided != NULL && json_object_set(decided, "classes", classes) == 0 &&
                put_fields(decided, plan_fields, plan) &&
                json_object_set_new(decided, "step_s", json_real(plan->step_s)) == 0;
    json_t *root = json_pack("{s:i, s:o, s:o, s:o}", "cistern_plan", CST_SAVED_PLAN_VERSION, "for",
                             /* The new object owns all four values now. */
                             made_for, "plan", decided, "made", made);

    json_decref(classes);
    if (!good) {
        json_decref(root);
        root = NULL;
    }
    return root;
}

int cst_saved_plan_write(const struct cst_saved_plan *plan, json_t *made, const char *path,
                         struct cst_err *err)
{
    json_t *root = to_json(plan, made);
    struct cst_new_file file;
    int rc = root != NULL ? cst_new_file_open(&file, path, err)
                          : cst_err_set(err, CST_ENOMEM, "no memory to write %s", path);

    if (rc == CST_OK) {
        if (json_dumpf(root, file.to, JSON_INDENT(2)) != 0 || fputc('\n', file.to) == EOF) {
            rc = cst_err_set(err, CST_EIO, "%s: it could not be written", path);
        }
        rc = cst_new_file_close(&file, rc, err);
    }
    json_decref(root);
    return rc;
}
