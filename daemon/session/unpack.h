/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for unpacking one protobuf message: a region of fixed size that is filled from the front
 * and emptied as a whole. Hence a message can make the daemon neither allocate much memory nor leak
 * any. Loop thread only. */
#ifndef CST_UNPACK_H
#define CST_UNPACK_H

#include "cistern/status.h"

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#define CSTD_UNPACK_BYTES (4u << 20) /* Most bytes that the parts of one message take. */

struct cstd_unpack {
    ProtobufCAllocator allocator; /* Allocates from region. */
    /* CSTD_UNPACK_BYTES bytes. The kernel provides pages when they are first touched. */
    uint8_t *region;
    size_t used; /* Bytes of region in use. */
};

/* Allocate the region. CST_ENOMEM. */
int cstd_unpack_init(struct cstd_unpack *unpack, struct cst_err *err);
void cstd_unpack_close(struct cstd_unpack *unpack);

/* Unpack @n bytes at @body as a message of @type. *out points to the message, which is valid until
 * the next call on @unpack. CST_EPROTO: the message is malformed, lacks a required field or exceeds
 * the region, or a string contains a byte 0, after which C code would ignore the rest. */
int cstd_unpack_message(struct cstd_unpack *unpack, const ProtobufCMessageDescriptor *type,
                        const uint8_t *body, size_t n, void *out, struct cst_err *err);

#endif
