/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the fields of a packed protobuf message one after the other, without unpacking the message:
 * descriptions of jobs can have hundreds of MiB. Everything that protobuf-c unpacks is read. Any
 * thread. */
#ifndef CSTD_PACKED_H
#define CSTD_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is left of a message; borrowed. */
struct cstd_packed {
    const uint8_t *at, *end;
};

struct cstd_packed_field {
    uint32_t number;
    const uint8_t *begin; /* The field with its tag. It ends where its value ends. */
    const uint8_t *value; /* Strings, bytes and messages: their contents. */
    size_t n_value;       /* Bytes at value; 0 for numbers. */
    uint64_t varint;      /* Integers: the number. */
};

/* Read the next field. False: there is none, and rest->at is rest->end; or the message is damaged,
 * and rest->at is before rest->end. */
bool cstd_packed_next(struct cstd_packed *rest, struct cstd_packed_field *out);

#endif
