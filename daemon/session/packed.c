/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/session/packed.h"

/* Wire types of protobuf. */
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static bool read_varint(const uint8_t **at, const uint8_t *end, uint64_t *out)
{
    uint64_t n = 0;

    for (unsigned shift = 0; shift < 64 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;

        n |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            *out = n;
            return true;
        }
    }
    return false;
}

bool cstd_packed_next(struct cstd_packed *rest, struct cstd_packed_field *out)
{
    const uint8_t *at = rest->at;
    uint64_t tag, n = 0;

    *out = (struct cstd_packed_field){.begin = at};
    if (!read_varint(&at, rest->end, &tag) || tag >> 3 > UINT32_MAX) {
        return false;
    }
    out->number = (uint32_t)(tag >> 3);
    switch (tag & 7) {
    case VARINT:
        if (!read_varint(&at, rest->end, &out->varint)) {
            return false;
        }
        break;
    case BYTES:
        if (!read_varint(&at, rest->end, &n)) {
            return false;
        }
        out->n_value = (size_t)n;
        break;
    case FIXED64:
        n = 8;
        break;
    case FIXED32:
        n = 4;
        break;
    default:
        return false;
    }
    if (n > (size_t)(rest->end - at)) {
        return false;
    }
    out->value = at;
    rest->at = at + n;
    return true;
}
