/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/json.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>

static json_t *from_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* The integers of jansson are signed. A value that does not fit becomes a string of digits. */
static json_t *from_unsigned(uint64_t value)
{
    return value <= INT64_MAX ? json_integer((json_int_t)value)
                              : json_sprintf("%llu", (unsigned long long)value);
}

static json_t *from_bytes(const ProtobufCBinaryData *bytes)
{
    json_t *text = json_string("");

    for (size_t i = 0; text != NULL && i < bytes->len; i++) {
        json_t *longer = json_sprintf("%s%02x", json_string_value(text), bytes->data[i]);

        json_decref(text);
        text = longer;
    }
    return text;
}

/* Convert one element of the type of @field, which lies at @at. */
static json_t *from_value(const ProtobufCFieldDescriptor *field, const void *at)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_ENUM:
        return json_integer(*(const int32_t *)at);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return json_integer(*(const int64_t *)at);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return from_unsigned(*(const uint32_t *)at);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return from_unsigned(*(const uint64_t *)at);
    case PROTOBUF_C_TYPE_FLOAT:
        return from_real((double)*(const float *)at);
    case PROTOBUF_C_TYPE_DOUBLE:
        return from_real(*(const double *)at);
    case PROTOBUF_C_TYPE_BOOL:
        return json_boolean(*(const protobuf_c_boolean *)at);
    case PROTOBUF_C_TYPE_STRING:
        return json_string(*(const char *const *)at);
    case PROTOBUF_C_TYPE_BYTES:
        return from_bytes(at);
    case PROTOBUF_C_TYPE_MESSAGE:
        return cli_json(*(const ProtobufCMessage *const *)at);
    }
    return NULL;
}

static size_t value_bytes(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_ENUM:
        return 4;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    }
    return 0;
}

static json_t *from_repeated(const ProtobufCFieldDescriptor *field, const char *array, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; list != NULL && i < n; i++) {
        if (json_array_append_new(list, from_value(field, array + i * value_bytes(field))) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static bool is_set(const ProtobufCFieldDescriptor *field, const char *base)
{
    const void *at = base + field->offset;

    if (field->label != PROTOBUF_C_LABEL_OPTIONAL) {
        return true;
    }
    if (field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_MESSAGE) {
        return *(const void *const *)at != NULL && *(const void *const *)at != field->default_value;
    }
    return *(const protobuf_c_boolean *)(const void *)(base + field->quantifier_offset) != 0;
}

json_t *cli_json(const ProtobufCMessage *msg)
{
    const char *base = (const char *)msg;
    json_t *object = json_object();

    for (unsigned i = 0; object != NULL && i < msg->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &msg->descriptor->fields[i];
        const void *at = base + field->offset;
        json_t *value;

        if (!is_set(field, base)) {
            continue;
        }
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = *(const size_t *)(const void *)(base + field->quantifier_offset);

            value = from_repeated(field, *(const char *const *)at, n);
        } else {
            value = from_value(field, at);
        }
        if (json_object_set_new(object, field->name, value) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

bool cli_json_print(json_t *value)
{
    bool good =
        value != NULL && json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) == 0;

    if (good) {
        (void)putchar('\n');
    } else {
        (void)fprintf(stderr, "cistern: cannot write JSON\n");
    }
    json_decref(value);
    return good;
}
