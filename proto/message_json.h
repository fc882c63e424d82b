/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of protobuf-c as JSON and back, by their descriptors, so that a new field needs no code.
 *
 * The keys are the names of the fields. Integers above 2^63 - 1 are strings of digits, because
 * jansson has none. Floating-point numbers that are not finite are null, which comes back as a NaN.
 * All other numbers come back with the same bits. Fields of bytes are not supported. */
#ifndef CST_MESSAGE_JSON_H
#define CST_MESSAGE_JSON_H

#include "cistern/status.h"

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>

/* Returns an object that the caller owns, with the fields that @message has; NULL: out of memory.
 */
json_t *cst_message_to_json(const ProtobufCMessage *message);

/* Make the message of the form @form from @json. Fields that the form does not have are ignored.
 * The caller frees *out with protobuf_c_message_free_unpacked(). CST_EINVAL: a field is missing or
 * has another type; the words name it, after @place. CST_ENOMEM. */
int cst_message_from_json(ProtobufCMessage **out, const ProtobufCMessageDescriptor *form,
                          const json_t *json, const char *place, struct cst_err *err);

#endif
