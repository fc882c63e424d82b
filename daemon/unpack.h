/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for unpacking one protobuf message: a bounded region that is filled from the front and
 * emptied at once, so that a message can make the daemon neither allocate much nor leak. */
#ifndef CST_UNPACK_H
#define CST_UNPACK_H

#include "cistern/status.h"

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#define CST_UNPACK_BYTES (4u << 20) /* most that the parts of one message take */

struct cst_unpack {
    ProtobufCAllocator allocator; /* hands out of region */
    uint8_t *region;              /* CST_UNPACK_BYTES; pages appear when touched */
    size_t used;                  /* bytes */
};

/* CST_ENOMEM. */
int cst_unpack_init(struct cst_unpack *unpack, struct cst_err *err);
void cst_unpack_close(struct cst_unpack *unpack);

/* Unpack @n bytes at @body as @type. What *out points at is valid until the next call on @unpack.
 * CST_EPROTO: malformed, a required field is missing, or over the bound; or a string has a byte 0
 * in it, behind which nobody would look. */
int cst_unpack_message(struct cst_unpack *unpack, const ProtobufCMessageDescriptor *type,
                       const uint8_t *body, size_t n, void *out, struct cst_err *err);

#endif
