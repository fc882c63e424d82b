/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/model_json.h"

#include "offload/layout/box.h"
#include "proto/json_fields.h"
#include "proto/optimizers.h"

#include <stdlib.h>
#include <string.h>

#define MOST_BYTES (INT64_C(1) << 48) /* Of what an operator passes on. */

static const char *const root_keys[] = {"name",  "world",   "tokens",    "groups",
                                        "heads", "tensors", "operators", NULL};
static const char *const tensor_keys[] = {"name",        "shape",  "group",  "pattern",
                                          "whole",       "first",  "packed", "lr_scale",
                                          "decay_scale", "update", "dtype",  NULL};
static const char *const operator_keys[] = {
    "name",     "tensors", "flops", "activation_bytes", "expected_uses", "out_bytes",
    "tp_bytes", "stage",   NULL};

/* -- groups ----------------------------------------------------------------------------------- */

static int read_group(const json_t *ranks, const char *place, uint32_t world, struct cst_set *out,
                      struct cst_err *err)
{
    struct cst_set set = {{0}};

    if (!json_is_array(ranks) || json_array_size(ranks) == 0) {
        return cst_err_set(err, CST_EINVAL, "%s: wanted an array of ranks", place);
    }
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        const json_t *rank = json_array_get(ranks, i);
        json_int_t r = json_integer_value(rank);

        if (!json_is_integer(rank) || r < 0 || r >= world) {
            return cst_err_set(err, CST_EINVAL, "%s[%zu]: wanted a rank from 0 to %u", place, i,
                               world - 1);
        }
        if (cst_set_has(&set, (uint32_t)r)) {
            return cst_err_set(err, CST_EINVAL, "%s[%zu]: rank %lld twice", place, i, (long long)r);
        }
        cst_set_add(&set, (uint32_t)r);
    }
    *out = set;
    return CST_OK;
}

static int read_groups(struct cli_model *out, const json_t *root, struct cst_err *err)
{
    const json_t *groups = NULL;
    char place[CST_JSON_PLACE_BYTES];
    int rc = cst_json_array(root, "", "groups", CST_JSON_OPTIONAL, 0, CST_LAYOUT_MAX_GROUPS - 1,
                            &groups, err);

    for (size_t i = 0; rc == CST_OK && groups != NULL && i < json_array_size(groups); i++) {
        struct cst_set ranks;

        rc = read_group(json_array_get(groups, i), cst_json_place(place, "", "groups", (long)i),
                        out->world, &ranks, err);
        if (rc == CST_OK) {
            rc = cst_model_group(&out->model, ranks, err);
        }
    }
    return rc;
}

int cli_model_set_world(struct cli_model *model, uint64_t world, struct cst_err *err)
{
    if (world == 0 || world > CST_LAYOUT_MAX_WORLD) {
        return cst_err_set(err, CST_EINVAL, "%llu ranks: allowed are 1 to %d",
                           (unsigned long long)world, CST_LAYOUT_MAX_WORLD);
    }
    for (uint32_t g = 1; g < model->model.n_groups; g++) {
        const struct cst_set ranks = cst_model_group_ranks(&model->model, g);

        if (cst_set_last(&ranks) >= world) {
            return cst_err_set(err, CST_EINVAL,
                               "%llu ranks: group %u of the model has a higher rank",
                               (unsigned long long)world, g);
        }
    }
    model->world = (uint32_t)world;
    return CST_OK;
}

/* -- tensors ---------------------------------------------------------------------------------- */

/* Read an array of at most CST_LAYOUT_MAX_DIMS integers; *n is their number. */
static int read_dims(const json_t *object, const char *place, const char *key,
                     enum cst_json_need need, int64_t *out, uint32_t *n, struct cst_err *err)
{
    const json_t *list = NULL;
    char text[CST_JSON_PLACE_BYTES];
    int rc = cst_json_array(object, place, key, need, 1, CST_LAYOUT_MAX_DIMS, &list, err);

    if (rc != CST_OK || list == NULL) {
        return rc;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);

        if (!json_is_integer(value)) {
            return cst_err_set(err, CST_EINVAL, "%s: wanted a whole number",
                               cst_json_place(text, place, key, (long)i));
        }
        out[i] = json_integer_value(value);
    }
    *n = (uint32_t)json_array_size(list);
    return CST_OK;
}

static int read_update(const json_t *object, const char *place, uint32_t *out, struct cst_err *err)
{
    char name[32] = "auto";
    int rc = cst_json_text(object, place, "update", CST_JSON_OPTIONAL, name, sizeof name, err);

    if (rc != CST_OK) {
        return rc;
    }
    *out = cst_name_find(cst_tensor_update_names, name);
    if (*out == CST_TENSOR_UPDATE_COUNT) {
        return cst_err_set(err, CST_EINVAL, "%s.update: no update '%s' (there are: %s, %s, %s)",
                           place, name, cst_tensor_update_names[0], cst_tensor_update_names[1],
                           cst_tensor_update_names[2]);
    }
    return CST_OK;
}

static int read_pattern(const json_t *object, const char *place, uint32_t *out, struct cst_err *err)
{
    char name[32] = "shard", known[128] = "";
    int rc = cst_json_text(object, place, "pattern", CST_JSON_OPTIONAL, name, sizeof name, err);

    if (rc != CST_OK) {
        return rc;
    }
    *out = cst_pattern_find(name);
    if (*out != CST_PATTERN_COUNT) {
        return CST_OK;
    }
    for (uint32_t kind = 0; cst_pattern(kind) != NULL; kind++) {
        size_t used = strlen(known);

        (void)snprintf(known + used, sizeof known - used, "%s%s", kind > 0 ? ", " : "",
                       cst_pattern(kind)->name);
    }
    return cst_err_set(err, CST_EINVAL, "%s.pattern: no pattern '%s' (there are: %s)", place, name,
                       known);
}

static int read_dtype(const json_t *object, const char *place, uint32_t *out, struct cst_err *err)
{
    char name[32] = "bf16";
    int rc = cst_json_text(object, place, "dtype", CST_JSON_OPTIONAL, name, sizeof name, err);

    if (rc != CST_OK) {
        return rc;
    }
    for (uint32_t dtype = CST_BF16; cst_dtype_is_known(dtype); dtype++) {
        if (strcmp(name, cst_dtype_name((enum cst_dtype)dtype)) == 0) {
            *out = dtype;
            return CST_OK;
        }
    }
    return cst_err_set(err, CST_EINVAL, "%s.dtype: no type '%s' (there are: bf16, fp32)", place,
                       name);
}

static int read_scale(const json_t *object, const char *place, const char *key, float *out,
                      struct cst_err *err)
{
    double value = 1;
    int rc = cst_json_real(object, place, key, CST_JSON_OPTIONAL, &value, err);

    *out = (float)value;
    return rc;
}

/* Storage to which the pointers in `words` point. */
struct tensor {
    char name[CST_LAYOUT_NAME_BYTES];
    int64_t shape[CST_LAYOUT_MAX_DIMS], whole[CST_LAYOUT_MAX_DIMS], first[CST_LAYOUT_MAX_DIMS];
    int64_t packed[CST_LAYOUT_MAX_DIMS];
    uint32_t n_whole, n_first, n_packed; /* Numbers of entries; 0: the key is absent. */
    uint64_t group;
    struct cst_tensor_words words;
};

static int read_box(const json_t *object, const char *place, struct tensor *t, struct cst_err *err)
{
    int rc = read_dims(object, place, "whole", CST_JSON_OPTIONAL, t->whole, &t->n_whole, err);

    if (rc == CST_OK) {
        rc = read_dims(object, place, "first", CST_JSON_OPTIONAL, t->first, &t->n_first, err);
    }
    if (rc == CST_OK) {
        rc = read_dims(object, place, "packed", CST_JSON_OPTIONAL, t->packed, &t->n_packed, err);
    }
    if (rc == CST_OK && ((t->n_whole != 0 && t->n_whole != t->words.n_dims) ||
                         (t->n_first != 0 && t->n_first != t->words.n_dims) ||
                         (t->n_packed != 0 && t->n_packed != t->words.n_dims))) {
        rc = cst_err_set(err, CST_EINVAL,
                         "%s: whole, first and packed have as many numbers as shape", place);
    }
    t->words.packed = t->n_packed != 0 ? t->packed : NULL;
    t->words.whole = t->n_whole != 0 ? t->whole : NULL;
    t->words.first = t->n_first != 0 ? t->first : NULL;
    return rc;
}

static int read_tensor(const json_t *object, const char *place, uint32_t n_groups, struct tensor *t,
                       struct cst_err *err)
{
    int rc = cst_json_object(object, place, tensor_keys, err);

    if (rc == CST_OK) {
        rc = cst_json_text(object, place, "name", CST_JSON_REQUIRED, t->name, sizeof t->name, err);
    }
    if (rc == CST_OK) {
        rc = read_dims(object, place, "shape", CST_JSON_REQUIRED, t->shape, &t->words.n_dims, err);
    }
    if (rc == CST_OK) {
        rc = cst_json_u64(object, place, "group", CST_JSON_OPTIONAL, n_groups - 1, &t->group, err);
    }
    if (rc == CST_OK) {
        rc = read_pattern(object, place, &t->words.pattern, err);
    }
    if (rc == CST_OK) {
        rc = read_dtype(object, place, &t->words.dtype, err);
    }
    if (rc == CST_OK) {
        rc = read_box(object, place, t, err);
    }
    if (rc == CST_OK) {
        rc = read_scale(object, place, "lr_scale", &t->words.lr_scale, err);
    }
    if (rc == CST_OK) {
        rc = read_scale(object, place, "decay_scale", &t->words.decay_scale, err);
    }
    if (rc == CST_OK) {
        rc = read_update(object, place, &t->words.update, err);
    }
    t->words.name = t->name;
    t->words.shape = t->shape;
    t->words.group = (uint32_t)t->group;
    return rc;
}

static int read_tensors(struct cst_model *model, const json_t *root, struct cst_err *err)
{
    const json_t *list = NULL;
    char place[CST_JSON_PLACE_BYTES];
    int rc = cst_json_array(root, "", "tensors", CST_JSON_REQUIRED, 1, CST_LAYOUT_MAX_TENSORS,
                            &list, err);

    for (size_t i = 0; rc == CST_OK && i < json_array_size(list); i++) {
        struct tensor tensor = {.name = ""};

        (void)cst_json_place(place, "", "tensors", (long)i);
        rc = read_tensor(json_array_get(list, i), place, model->n_groups, &tensor, err);
        if (rc == CST_OK && cst_model_tensor(model, &tensor.words, err) != CST_OK) {
            rc = cst_err_prefix(err, "%s", place);
        }
    }
    return rc;
}

/* -- operators -------------------------------------------------------------------------------- */

/* Find the numbers of the tensors with the names @names. */
static int find_tensors(const struct cst_model *model, const json_t *names, const char *place,
                        uint32_t *out, struct cst_err *err)
{
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));

        if (name == NULL) {
            return cst_err_set(err, CST_EINVAL, "%s.tensors[%zu]: wanted a tensor's name", place,
                               i);
        }
        out[i] = cst_model_find(model, name);
        if (out[i] == UINT32_MAX) {
            return cst_err_set(err, CST_EINVAL, "%s.tensors[%zu]: no tensor '%.255s'", place, i,
                               name);
        }
    }
    return CST_OK;
}

static int read_hints(const json_t *object, const char *place, struct cst_operator_hints *out,
                      struct cst_err *err)
{
    double uses = 1;
    int rc = cst_json_real(object, place, "flops", CST_JSON_OPTIONAL, &out->flops, err);

    if (rc == CST_OK) {
        rc = cst_json_u64(object, place, "activation_bytes", CST_JSON_OPTIONAL, INT64_MAX,
                          &out->activation_bytes, err);
    }
    if (rc == CST_OK) {
        rc = cst_json_real(object, place, "expected_uses", CST_JSON_OPTIONAL, &uses, err);
    }
    if (rc == CST_OK) {
        rc = cst_json_u64(object, place, "out_bytes", CST_JSON_OPTIONAL, MOST_BYTES,
                          &out->out_bytes, err);
    }
    if (rc == CST_OK) {
        rc = cst_json_u64(object, place, "tp_bytes", CST_JSON_OPTIONAL, MOST_BYTES, &out->sum_bytes,
                          err);
    }
    out->expected_uses = (float)uses;
    return rc;
}

/* Begin a stage if @object has a new one. All operators have stages, in ascending order, or none
 * has. */
static int read_stage(struct cst_model *model, const json_t *object, const char *place,
                      struct cst_err *err)
{
    const bool has = json_object_get(object, "stage") != NULL;
    uint64_t stage = 0;
    int rc = cst_json_u64(object, place, "stage", CST_JSON_OPTIONAL, CST_LAYOUT_MAX_STAGES - 1,
                          &stage, err);

    if (rc != CST_OK || (!has && model->n_stages == 0) ||
        (has && model->n_stages > 0 && stage == model->n_stages - 1)) {
        return rc;
    }
    if (!has || stage != model->n_stages) {
        return cst_err_set(err, CST_EINVAL,
                           "%s.stage: operators have the stages 0, 1, ... in this order, and all "
                           "have one or none has",
                           place);
    }
    return cst_model_stage(model, err) == CST_OK ? CST_OK : cst_err_prefix(err, "%s", place);
}

/* Read one operator. @numbers is scratch space with one entry per tensor of the model. */
static int read_operator(struct cst_model *model, const json_t *object, const char *place,
                         uint32_t *numbers, struct cst_err *err)
{
    char name[CST_LAYOUT_NAME_BYTES] = "";
    struct cst_operator_hints hints = {0};
    const json_t *names = NULL;
    int rc = cst_json_object(object, place, operator_keys, err);

    if (rc == CST_OK) {
        rc = cst_json_text(object, place, "name", CST_JSON_REQUIRED, name, sizeof name, err);
    }
    if (rc == CST_OK) {
        rc = cst_json_array(object, place, "tensors", CST_JSON_REQUIRED, 1, model->n_tensors,
                            &names, err);
    }
    if (rc == CST_OK) {
        rc = find_tensors(model, names, place, numbers, err);
    }
    if (rc == CST_OK) {
        rc = read_hints(object, place, &hints, err);
    }
    if (rc == CST_OK) {
        rc = read_stage(model, object, place, err);
    }
    if (rc == CST_OK && cst_model_operator(model, name, numbers, (uint32_t)json_array_size(names),
                                           &hints, err) != CST_OK) {
        rc = cst_err_prefix(err, "%s", place);
    }
    return rc;
}

static int read_operators(struct cst_model *model, const json_t *root, struct cst_err *err)
{
    uint32_t *numbers = calloc(model->n_tensors, sizeof *numbers);
    const json_t *list = NULL;
    char place[CST_JSON_PLACE_BYTES];
    int rc;

    if (numbers == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %u tensors", model->n_tensors);
    }
    rc = cst_json_array(root, "", "operators", CST_JSON_REQUIRED, 1, CST_LAYOUT_MAX_OPERATORS,
                        &list, err);
    for (size_t i = 0; rc == CST_OK && i < json_array_size(list); i++) {
        rc = read_operator(model, json_array_get(list, i),
                           cst_json_place(place, "", "operators", (long)i), numbers, err);
    }
    free(numbers);
    return rc;
}

/* -- the whole -------------------------------------------------------------------------------- */

int cli_model_from_json(struct cli_model *out, const json_t *root, struct cst_err *err)
{
    struct cli_model model = {.world = 1};
    uint64_t world = 1, heads = 0;
    int rc;

    cst_model_init(&model.model);
    rc = cst_json_object(root, "", root_keys, err);
    if (rc == CST_OK) {
        rc = cst_json_text(root, "", "name", CST_JSON_REQUIRED, model.name, sizeof model.name, err);
    }
    if (rc == CST_OK) {
        rc = cst_json_u64(root, "", "world", CST_JSON_OPTIONAL, CST_LAYOUT_MAX_WORLD, &world, err);
    }
    if (rc == CST_OK) {
        rc = cst_json_u64(root, "", "tokens", CST_JSON_OPTIONAL, UINT32_MAX, &model.tokens, err);
    }
    if (rc == CST_OK) {
        rc = cst_json_u64(root, "", "heads", CST_JSON_OPTIONAL, UINT16_MAX, &heads, err);
        model.heads = (uint32_t)heads;
    }
    if (rc == CST_OK && cli_model_set_world(&model, world, err) != CST_OK) {
        rc = cst_err_prefix(err, "world");
    }
    if (rc == CST_OK) {
        rc = read_groups(&model, root, err);
    }
    if (rc == CST_OK) {
        rc = read_tensors(&model.model, root, err);
    }
    if (rc == CST_OK) {
        rc = read_operators(&model.model, root, err);
    }
    if (rc != CST_OK) {
        cli_model_close(&model);
        return rc;
    }
    *out = model;
    return CST_OK;
}

int cli_model_read(struct cli_model *out, const char *path, struct cst_err *err)
{
    json_t *root = NULL;
    int rc = cst_json_load(&root, path, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = cli_model_from_json(out, root, err);
    json_decref(root);
    return rc == CST_OK ? CST_OK : cst_err_prefix(err, "%s", cst_json_name(path));
}

void cli_model_close(struct cli_model *model)
{
    cst_model_close(&model->model);
}

/* -- writing ---------------------------------------------------------------------------------- */

/* Add @value to @object, which takes it over. False: out of memory. */
static bool put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

static json_t *dims_json(const int64_t *dims, uint32_t n)
{
    json_t *list = json_array();

    for (uint32_t i = 0; list != NULL && i < n; i++) {
        if (json_array_append_new(list, json_integer((json_int_t)dims[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static json_t *group_json(const struct cst_model *model, uint32_t group)
{
    const struct cst_set ranks = cst_model_group_ranks(model, group);
    int64_t numbers[CST_SET_MAX];
    uint32_t n = 0;

    CST_SET_EACH (r, &ranks) {
        numbers[n++] = r;
    }
    return dims_json(numbers, n);
}

static bool put_box(json_t *object, const struct cst_layout_tensor *tensor)
{
    return tensor->box == NULL ||
           (put(object, "whole", dims_json(tensor->box->whole, tensor->n_dims)) &&
            put(object, "first", dims_json(tensor->box->first, tensor->n_dims)) &&
            (!cst_box_is_packed(tensor) ||
             put(object, "packed", dims_json(tensor->box->packed, tensor->n_dims))));
}

static json_t *tensor_json(const struct cst_layout_tensor *tensor)
{
    json_t *object = json_pack("{s:s, s:o}", "name", tensor->name, "shape",
                               dims_json(tensor->shape, tensor->n_dims));
    bool good = object != NULL && put_box(object, tensor);

    if (good && tensor->group != 0) {
        good = put(object, "group", json_integer(tensor->group));
    }
    if (good && tensor->pattern != CST_PATTERN_SHARD) {
        good = put(object, "pattern", json_string(cst_pattern(tensor->pattern)->name));
    }
    if (good && tensor->lr_scale != 1) {
        good = put(object, "lr_scale", json_real((double)tensor->lr_scale));
    }
    if (good && tensor->dtype != CST_BF16) {
        good = put(object, "dtype", json_string(cst_dtype_name(tensor->dtype)));
    }
    if (good && tensor->decay_scale != 1) {
        good = put(object, "decay_scale", json_real((double)tensor->decay_scale));
    }
    if (good && tensor->update != CST_TENSOR_UPDATE_AUTO) {
        good = put(object, "update", json_string(cst_tensor_update_names[tensor->update]));
    }
    if (!good) {
        json_decref(object);
        object = NULL;
    }
    return object;
}

static json_t *operator_json(const struct cst_model *model, const struct cst_layout_operator *op)
{
    json_t *object = json_object(), *names = json_array();
    bool good = object != NULL && names != NULL && put(object, "name", json_string(op->name));

    for (uint32_t i = 0; good && i < op->n_tensors; i++) {
        good = json_array_append_new(names, json_string(model->tensors[op->tensors[i]].name)) == 0;
    }
    good = good && json_object_set(object, "tensors", names) == 0;
    json_decref(names);
    if (good && op->flops > 0) {
        good = put(object, "flops", json_real(op->flops));
    }
    if (good && op->activation_bytes > 0) {
        good = put(object, "activation_bytes", json_integer((json_int_t)op->activation_bytes));
    }
    if (good && op->expected_uses != 1) {
        good = put(object, "expected_uses", json_real((double)op->expected_uses));
    }
    if (good && op->out_bytes > 0) {
        good = put(object, "out_bytes", json_integer((json_int_t)op->out_bytes));
    }
    if (good && op->sum_bytes > 0) {
        good = put(object, "tp_bytes", json_integer((json_int_t)op->sum_bytes));
    }
    if (good && model->n_stages > 0) {
        good = put(object, "stage", json_integer((json_int_t)op->stage));
    }
    if (!good) {
        json_decref(object);
        object = NULL;
    }
    return object;
}

json_t *cli_model_to_json(const struct cli_model *from)
{
    const struct cst_model *model = &from->model;
    json_t *groups = json_array(), *tensors = json_array(), *operators = json_array();
    json_t *root =
        json_pack("{s:s, s:i, s:o, s:o, s:o}", "name", from->name, "world", (int)from->world,
                  "groups", groups, "tensors", tensors, "operators",
                  operators); /* json_pack takes over the arrays, or releases them if it fails. */
    bool good = root != NULL;

    if (good && from->tokens > 0) {
        good = put(root, "tokens", json_integer((json_int_t)from->tokens));
    }
    if (good && from->heads > 0) {
        good = put(root, "heads", json_integer((json_int_t)from->heads));
    }
    for (uint32_t g = 1; good && g < model->n_groups; g++) {
        good = json_array_append_new(groups, group_json(model, g)) == 0;
    }
    for (uint32_t i = 0; good && i < model->n_tensors; i++) {
        good = json_array_append_new(tensors, tensor_json(&model->tensors[i])) == 0;
    }
    for (uint32_t i = 0; good && i < model->n_operators; i++) {
        good = json_array_append_new(operators, operator_json(model, &model->operators[i])) == 0;
    }
    if (!good) {
        json_decref(root);
        root = NULL;
    }
    return root;
}
