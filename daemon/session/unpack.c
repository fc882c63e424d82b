/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/session/unpack.h"

#include "daemon/session/packed.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void *take(void *data, size_t n)
{
    struct cstd_unpack *unpack = data;
    void *p;

    if (n > CSTD_UNPACK_BYTES) {
        return NULL;
    }
    n = (n + 15) & ~(size_t)15;
    if (n > CSTD_UNPACK_BYTES - unpack->used) {
        return NULL;
    }
    p = unpack->region + unpack->used;
    unpack->used += n;
    return p;
}

/* Nothing is freed singly; the next message reuses the whole region. */
static void drop(void *data, void *p)
{
    (void)data;
    (void)p;
}

int cstd_unpack_init(struct cstd_unpack *unpack, struct cst_err *err)
{
    unpack->region = malloc(CSTD_UNPACK_BYTES);
    if (unpack->region == NULL) {
        return cst_err_set(err, CST_ENOMEM, "%u bytes for messages", CSTD_UNPACK_BYTES);
    }
    unpack->used = 0;
    unpack->allocator = (ProtobufCAllocator){.alloc = take, .free = drop, .allocator_data = unpack};
    return CST_OK;
}

void cstd_unpack_close(struct cstd_unpack *unpack)
{
    free(unpack->region);
    unpack->region = NULL;
}

/* -- strings with a byte 0 ------------------------------------------------------------------ */

/* The unpacked message does not show a byte 0 in a string, because strlen ends there. The packed
 * bytes are therefore searched. They are known to be well formed. */

static bool has_zero(const ProtobufCMessageDescriptor *type, const uint8_t *at, const uint8_t *end);

/* Search the @n bytes of a field at @at: a string, or a message inside this one. Fields of other
 * types are not text. */
static bool field_has_zero(const ProtobufCFieldDescriptor *field, const uint8_t *at, size_t n)
{
    if (field != NULL && field->type == PROTOBUF_C_TYPE_STRING) {
        return memchr(at, 0, n) != NULL;
    }
    return field != NULL && field->type == PROTOBUF_C_TYPE_MESSAGE &&
           has_zero(field->descriptor, at, at + n);
}

static bool has_zero(const ProtobufCMessageDescriptor *type, const uint8_t *at, const uint8_t *end)
{
    struct cstd_packed rest = {.at = at, .end = end};
    struct cstd_packed_field field;

    while (cstd_packed_next(&rest, &field)) {
        if (field_has_zero(protobuf_c_message_descriptor_get_field(type, field.number), field.value,
                           field.n_value)) {
            return true;
        }
    }
    return false;
}

int cstd_unpack_message(struct cstd_unpack *unpack, const ProtobufCMessageDescriptor *type,
                        const uint8_t *body, size_t n, void *out, struct cst_err *err)
{
    ProtobufCMessage *message;

    unpack->used = 0;
    message = protobuf_c_message_unpack(type, &unpack->allocator, n, body);
    if (message == NULL) {
        return cst_err_set(err, CST_EPROTO, "body of %zu bytes is no valid %s", n,
                           type->short_name);
    }
    /* A body without any byte 0 does not need the slower search. */
    if (n > 0 && memchr(body, 0, n) != NULL && has_zero(type, body, body + n)) {
        return cst_err_set(err, CST_EPROTO, "a string of this %s has a byte 0 in it",
                           type->short_name);
    }
    memcpy(out, &message, sizeof message);
    return CST_OK;
}
