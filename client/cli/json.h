/* SPDX-License-Identifier: Apache-2.0 */
/* Converts any message to JSON by its descriptor. Keys are the names of proto/cistern.proto. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

/* Return a new object; NULL: out of memory. Optional fields that are not set are omitted. NaN and
 * infinities become null. */
json_t *cli_json(const ProtobufCMessage *msg);

/* Print @value to stdout, indented, and release it. False: @value is NULL or cannot be written; the
 * error was printed to stderr. */
bool cli_json_print(json_t *value);

#endif
