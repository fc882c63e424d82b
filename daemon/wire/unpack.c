/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/wire/unpack.h"

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
 * bytes are therefore searched. They are known to be well formed; even so, nothing beyond their end
 * is read. */

static uint64_t read_varint(const uint8_t **at, const uint8_t *end)
{
    uint64_t v = 0;

    for (unsigned shift = 0; *at < end; shift += 7) {
        uint8_t byte = *(*at)++;

        v |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
        if ((byte & 0x80) == 0) {
            break;
        }
    }
    return v;
}

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
    enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* wire types */

    while (at < end) {
        uint64_t key = read_varint(&at, end), n = 0;

        switch (key & 7) {
        case VARINT:
            (void)read_varint(&at, end);
            break;
        case FIXED64:
            n = 8;
            break;
        case FIXED32:
            n = 4;
            break;
        case BYTES:
            n = read_varint(&at, end);
            break;
        default:
            return false;
        }
        if (n > (uint64_t)(end - at)) {
            return false;
        }
        if ((key & 7) == BYTES &&
            field_has_zero(protobuf_c_message_descriptor_get_field(type, (unsigned)(key >> 3)), at,
                           n)) {
            return true;
        }
        at += n;
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
