/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/metrics_value.h"

#include <stdio.h>
#include <string.h>

static void add_number(const char *at, ProtobufCType type, struct cli_metrics_value *value)
{
    uint32_t u32;
    uint64_t u64;
    double real;

    if (type == PROTOBUF_C_TYPE_DOUBLE) {
        memcpy(&real, at, sizeof real);
        value->is_real = true;
        value->real += real;
    } else if (type == PROTOBUF_C_TYPE_UINT64) {
        memcpy(&u64, at, sizeof u64);
        value->whole += u64;
    } else { /* uint32 and bool, which have the same size in protobuf-c. */
        memcpy(&u32, at, sizeof u32);
        value->whole += u32;
    }
}

void cli_metrics_value_add(const ProtobufCMessage *message, const char *name,
                           struct cli_metrics_value *value)
{
    const char *dot = strchr(name, '.');
    const ProtobufCFieldDescriptor *field;
    char first[32];
    const char *at, *pointer = NULL;

    (void)snprintf(first, sizeof first, "%.*s", (int)(dot != NULL ? dot - name : 31), name);
    field = protobuf_c_message_descriptor_get_field_by_name(message->descriptor, first);
    at = (const char *)message + field->offset;
    if (field->type == PROTOBUF_C_TYPE_MESSAGE || field->type == PROTOBUF_C_TYPE_STRING) {
        memcpy(&pointer, at, sizeof pointer);
    }
    if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
        if (pointer != NULL) {
            cli_metrics_value_add((const ProtobufCMessage *)(const void *)pointer, dot + 1, value);
        }
        return;
    }
    if (field->type == PROTOBUF_C_TYPE_STRING) {
        value->text = pointer;
        value->there = pointer != NULL;
        return;
    }
    if (field->label == PROTOBUF_C_LABEL_OPTIONAL) {
        protobuf_c_boolean has;

        memcpy(&has, (const char *)message + field->quantifier_offset, sizeof has);
        if (!has) {
            return;
        }
    }
    value->there = true;
    add_number(at, field->type, value);
}
