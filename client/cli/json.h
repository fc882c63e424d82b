/* SPDX-License-Identifier: Apache-2.0 */
/* Any message as JSON, by its descriptor: keys are the names of proto/cistern.proto. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

/* A new object, or NULL: out of memory. Optional fields that are not set are left out; NaN and
 * infinity become null. */
json_t *cli_json(const ProtobufCMessage *msg);

/* Print @value to stdout, indented, and drop it. False: NULL, or it could not be written; said on
 * stderr. */
bool cli_json_print(json_t *value);

#endif
