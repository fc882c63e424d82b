#include "daemon/unpack.h"

#include <stdlib.h>
#include <string.h>

static void *take(void *data, size_t n)
{
    struct cst_unpack *unpack = data;
    void *p;

    if (n > CST_UNPACK_BYTES) {
        return NULL;
    }
    n = (n + 15) & ~(size_t)15;
    if (n > CST_UNPACK_BYTES - unpack->used) {
        return NULL;
    }
    p = unpack->region + unpack->used;
    unpack->used += n;
    return p;
}

/* Everything goes at once, with the next message. */
static void drop(void *data, void *p)
{
    (void)data;
    (void)p;
}

int cst_unpack_init(struct cst_unpack *unpack, struct cst_err *err)
{
    unpack->region = malloc(CST_UNPACK_BYTES);
    if (unpack->region == NULL) {
        return cst_err_set(err, CST_ENOMEM, "%u bytes for messages", CST_UNPACK_BYTES);
    }
    unpack->used = 0;
    unpack->allocator = (ProtobufCAllocator){.alloc = take, .free = drop, .allocator_data = unpack};
    return CST_OK;
}

void cst_unpack_close(struct cst_unpack *unpack)
{
    free(unpack->region);
    unpack->region = NULL;
}

int cst_unpack_message(struct cst_unpack *unpack, const ProtobufCMessageDescriptor *type,
                       const uint8_t *body, size_t n, void *out, struct cst_err *err)
{
    ProtobufCMessage *message;

    unpack->used = 0;
    message = protobuf_c_message_unpack(type, &unpack->allocator, n, body);
    if (message == NULL) {
        return cst_err_set(err, CST_EPROTO, "body of %zu bytes is no valid %s", n,
                           type->short_name);
    }
    memcpy(out, &message, sizeof message);
    return CST_OK;
}
