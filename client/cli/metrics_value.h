/* SPDX-License-Identifier: Apache-2.0 */
/* Values of metrics: fields of messages, found by their names. Pure. */
#ifndef CLI_METRICS_VALUE_H
#define CLI_METRICS_VALUE_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

/* The sum of a field over messages. */
struct cli_metrics_value {
    bool there;       /* At least one message has the field. */
    const char *text; /* Of a text field; else NULL. */
    bool is_real;
    uint64_t whole; /* !is_real */
    double real;    /* is_real */
};

/* Add the field @name of @message, "step", or of a message in it, "pool.free". */
void cli_metrics_value_add(const ProtobufCMessage *message, const char *name,
                           struct cli_metrics_value *value);

#endif
