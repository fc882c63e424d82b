/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/message_json.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- writing -------------------------------------------------------------------------------- */

static json_t *from_u64(uint64_t value)
{
    char text[24];

    if (value <= INT64_MAX) {
        return json_integer((json_int_t)value);
    }
    (void)snprintf(text, sizeof text, "%" PRIu64, value);
    return json_string(text);
}

static json_t *from_double(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* The value at @at, a field of the type of @field. */
static json_t *value_to_json(const ProtobufCFieldDescriptor *field, const void *at)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_ENUM:
        return json_integer(*(const int32_t *)at);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return json_integer(*(const uint32_t *)at);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return json_integer(*(const int64_t *)at);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return from_u64(*(const uint64_t *)at);
    case PROTOBUF_C_TYPE_FLOAT:
        return from_double((double)*(const float *)at);
    case PROTOBUF_C_TYPE_DOUBLE:
        return from_double(*(const double *)at);
    case PROTOBUF_C_TYPE_BOOL:
        return json_boolean(*(const protobuf_c_boolean *)at);
    case PROTOBUF_C_TYPE_STRING:
        return json_string(*(char *const *)at);
    case PROTOBUF_C_TYPE_MESSAGE:
        return cst_message_to_json(*(ProtobufCMessage *const *)at);
    case PROTOBUF_C_TYPE_BYTES:
        break;
    }
    assert(false); /* A field of bytes. */
    return NULL;
}

static size_t size_of(const ProtobufCFieldDescriptor *field)
{
    static const size_t sizes[] = {[PROTOBUF_C_TYPE_INT32] = 4,
                                   [PROTOBUF_C_TYPE_SINT32] = 4,
                                   [PROTOBUF_C_TYPE_SFIXED32] = 4,
                                   [PROTOBUF_C_TYPE_INT64] = 8,
                                   [PROTOBUF_C_TYPE_SINT64] = 8,
                                   [PROTOBUF_C_TYPE_SFIXED64] = 8,
                                   [PROTOBUF_C_TYPE_UINT32] = 4,
                                   [PROTOBUF_C_TYPE_FIXED32] = 4,
                                   [PROTOBUF_C_TYPE_UINT64] = 8,
                                   [PROTOBUF_C_TYPE_FIXED64] = 8,
                                   [PROTOBUF_C_TYPE_FLOAT] = 4,
                                   [PROTOBUF_C_TYPE_DOUBLE] = 8,
                                   [PROTOBUF_C_TYPE_ENUM] = 4,
                                   [PROTOBUF_C_TYPE_BOOL] = sizeof(protobuf_c_boolean),
                                   [PROTOBUF_C_TYPE_STRING] = sizeof(char *),
                                   [PROTOBUF_C_TYPE_MESSAGE] = sizeof(ProtobufCMessage *)};

    return sizes[field->type];
}

static bool is_pointer(const ProtobufCFieldDescriptor *field)
{
    return field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_MESSAGE;
}

/* True if the message at @base has the optional @field. */
static bool has_optional(const ProtobufCFieldDescriptor *field, const char *base)
{
    if (is_pointer(field)) {
        return *(void *const *)(const void *)(base + field->offset) != NULL;
    }
    return *(const protobuf_c_boolean *)(const void *)(base + field->quantifier_offset) != 0;
}

static json_t *list_to_json(const ProtobufCFieldDescriptor *field, const char *base)
{
    size_t n = *(const size_t *)(const void *)(base + field->quantifier_offset);
    const char *at = *(const char *const *)(const void *)(base + field->offset);
    json_t *list = json_array();

    for (size_t i = 0; list != NULL && i < n; i++) {
        if (json_array_append_new(list, value_to_json(field, at + i * size_of(field))) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

json_t *cst_message_to_json(const ProtobufCMessage *message)
{
    const char *base = (const char *)message;
    json_t *object = json_object();

    for (unsigned i = 0; object != NULL && i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        json_t *value;

        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            value = list_to_json(field, base);
        } else if (field->label == PROTOBUF_C_LABEL_OPTIONAL && !has_optional(field, base)) {
            continue;
        } else {
            value = value_to_json(field, base + field->offset);
        }
        if (json_object_set_new(object, field->name, value) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

/* -- reading -------------------------------------------------------------------------------- */

/* Where a value is, for messages. */
struct place {
    const char *of; /* Place of the message. */
    const char *key;
};

static int wrong(const struct place *place, const char *want, struct cst_err *err)
{
    return cst_err_set(err, CST_EINVAL, "%s.%s: %s is expected", place->of, place->key, want);
}

static int to_integer(const json_t *json, const struct place *place, int64_t min, uint64_t max,
                      uint64_t *out, struct cst_err *err)
{
    const char *text = json_string_value(json);
    char *end = NULL;
    json_int_t value = json_integer_value(json);

    if (text != NULL && max > INT64_MAX) {
        errno = 0;
        *out = strtoull(text, &end, 10);
        return errno == 0 && *text >= '0' && *text <= '9' && *end == '\0'
                   ? CST_OK
                   : wrong(place, "a number", err);
    }
    if (!json_is_integer(json) || value < min || (value > 0 && (uint64_t)value > max)) {
        return wrong(place, "a whole number in its range", err);
    }
    *out = (uint64_t)value;
    return CST_OK;
}

static int to_double(const json_t *json, const struct place *place, double *out,
                     struct cst_err *err)
{
    *out = json_is_null(json) ? NAN : json_number_value(json);
    return json_is_null(json) || json_is_number(json) ? CST_OK : wrong(place, "a number", err);
}

static int to_text(const json_t *json, const struct place *place, void *at, struct cst_err *err)
{
    const char *text = json_string_value(json);
    char *copy;

    if (text == NULL) {
        return wrong(place, "a text", err);
    }
    copy = strdup(text);
    if (copy == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for '%s.%s'", place->of, place->key);
    }
    *(char **)at = copy;
    return CST_OK;
}

static int to_message(const ProtobufCFieldDescriptor *field, const json_t *json,
                      const struct place *place, void *at, struct cst_err *err)
{
    char inner[96];

    (void)snprintf(inner, sizeof inner, "%.40s.%.40s", place->of, place->key);
    return cst_message_from_json(at, field->descriptor, json, inner, err);
}

/* Store the value of @json at @at. */
static int value_from_json(const ProtobufCFieldDescriptor *field, const json_t *json,
                           const struct place *place, void *at, struct cst_err *err)
{
    uint64_t number = 0;
    double real = 0;
    int rc;

    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_ENUM:
        rc = to_integer(json, place, INT32_MIN, INT32_MAX, &number, err);
        *(int32_t *)at = (int32_t)number;
        return rc;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        rc = to_integer(json, place, 0, UINT32_MAX, &number, err);
        *(uint32_t *)at = (uint32_t)number;
        return rc;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        rc = to_integer(json, place, INT64_MIN, INT64_MAX, &number, err);
        *(int64_t *)at = (int64_t)number;
        return rc;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return to_integer(json, place, 0, UINT64_MAX, at, err);
    case PROTOBUF_C_TYPE_FLOAT:
        rc = to_double(json, place, &real, err);
        *(float *)at = (float)real;
        return rc;
    case PROTOBUF_C_TYPE_DOUBLE:
        return to_double(json, place, at, err);
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)at = json_is_true(json);
        return json_is_boolean(json) ? CST_OK : wrong(place, "true or false", err);
    case PROTOBUF_C_TYPE_STRING:
        return to_text(json, place, at, err);
    case PROTOBUF_C_TYPE_MESSAGE:
        return to_message(field, json, place, at, err);
    case PROTOBUF_C_TYPE_BYTES:
        break;
    }
    return wrong(place, "a type that this version knows", err);
}

static int list_from_json(const ProtobufCFieldDescriptor *field, const json_t *json,
                          const struct place *place, char *base, struct cst_err *err)
{
    size_t *n = (size_t *)(void *)(base + field->quantifier_offset), length;
    char *values;
    int rc = CST_OK;

    if (json == NULL) {
        return CST_OK;
    }
    if (!json_is_array(json)) {
        return wrong(place, "a list", err);
    }
    length = json_array_size(json);
    if (length == 0) {
        return CST_OK;
    }
    values = calloc(length, size_of(field));
    if (values == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for '%s.%s'", place->of, place->key);
    }
    *(void **)(void *)(base + field->offset) = values;
    /* *n counts the values that exist, so that the message can be freed at any time. */
    while (rc == CST_OK && *n < length) {
        rc = value_from_json(field, json_array_get(json, *n), place, values + *n * size_of(field),
                             err);
        *n += rc == CST_OK;
    }
    return rc;
}

static int field_from_json(const ProtobufCFieldDescriptor *field, const json_t *object,
                           const char *of, char *base, struct cst_err *err)
{
    const struct place place = {of, field->name};
    const json_t *json = json_object_get(object, field->name);
    int rc;

    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        return list_from_json(field, json, &place, base, err);
    }
    if (json == NULL) {
        return field->label == PROTOBUF_C_LABEL_OPTIONAL
                   ? CST_OK
                   : cst_err_set(err, CST_EINVAL, "%s.%s is missing", of, field->name);
    }
    rc = value_from_json(field, json, &place, base + field->offset, err);
    if (rc == CST_OK && field->label == PROTOBUF_C_LABEL_OPTIONAL && !is_pointer(field)) {
        *(protobuf_c_boolean *)(void *)(base + field->quantifier_offset) = 1;
    }
    return rc;
}

/* A required text or message that could not be read has a NULL pointer, which protobuf-c accepts
 * when it frees a message. */
int cst_message_from_json(ProtobufCMessage **out, const ProtobufCMessageDescriptor *form,
                          const json_t *json, const char *place, struct cst_err *err)
{
    ProtobufCMessage *message;
    int rc = CST_OK;

    if (!json_is_object(json)) {
        return cst_err_set(err, CST_EINVAL, "%s: an object is expected", place);
    }
    message = calloc(1, form->sizeof_message);
    if (message == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for '%s'", place);
    }
    protobuf_c_message_init(form, message);
    for (unsigned i = 0; rc == CST_OK && i < form->n_fields; i++) {
        rc = field_from_json(&form->fields[i], json, place, (char *)message, err);
    }
    if (rc != CST_OK) {
        protobuf_c_message_free_unpacked(message, NULL);
        return rc;
    }
    *out = message;
    return CST_OK;
}
