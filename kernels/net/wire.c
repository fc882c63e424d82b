/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/wire.h"

#include "kernels/net/crc32c.h"

#include <inttypes.h>
#include <string.h>

#define MAGIC 0x4e505343u /* "CSPN" */
#define VERSION 1
#define SUM_AT (CSTE_WIRE_BYTES - 4)

enum { REQUEST = 1, REPLY = 2 };

static void put(uint8_t *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) {
        at[i] = (uint8_t)(value >> 8 * i);
    }
}

static uint64_t get(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes; i++) {
        value |= (uint64_t)at[i] << 8 * i;
    }
    return value;
}

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)get(at, 4);
}

static void begin(uint8_t *out, uint8_t kind, uint64_t id)
{
    memset(out, 0, CSTE_WIRE_BYTES);
    put(out, MAGIC, 4);
    out[4] = VERSION;
    out[5] = kind;
    put(out + 8, id, 8);
}

static void end(uint8_t *out)
{
    put(out + SUM_AT, cste_crc32c(out, SUM_AT), 4);
}

void cste_wire_write_request(const struct cste_wire_request *request, uint8_t out[CSTE_WIRE_BYTES])
{
    begin(out, REQUEST, request->id);
    put(out + 16, request->offset, 8);
    put(out + 24, request->segment, 4);
    put(out + 28, request->bytes, 4);
    put(out + 32, request->machine, 4);
    memcpy(out + 40, request->token, CSTE_WIRE_TOKEN_BYTES);
    end(out);
}

void cste_wire_write_reply(const struct cste_wire_reply *reply, uint8_t out[CSTE_WIRE_BYTES])
{
    begin(out, REPLY, reply->id);
    put(out + 16, reply->segment_bytes, 8);
    put(out + 24, (uint32_t)reply->status, 4);
    put(out + 28, reply->bytes, 4);
    put(out + 32, reply->payload_sum, 4);
    end(out);
}

/* Check what both messages have. */
static int check(const uint8_t *in, size_t n, uint8_t kind, struct cst_err *err)
{
    if (n != CSTE_WIRE_BYTES) {
        return cst_err_set(err, CST_EPROTO, "a message of %zu bytes instead of %d", n,
                           CSTE_WIRE_BYTES);
    }
    if (get32(in) != MAGIC) {
        return cst_err_set(err, CST_EPROTO,
                           "no message of a cistern-engine-net: it begins with 0x%08x", get32(in));
    }
    if (in[4] != VERSION) {
        return cst_err_set(
            err, CST_EVERSION,
            "a message of version %u, this engine speaks %d: install the same version "
            "of cistern on all machines",
            in[4], VERSION);
    }
    if (get32(in + SUM_AT) != cste_crc32c(in, SUM_AT)) {
        return cst_err_set(err, CST_EPROTO, "a message with checksum 0x%08x instead of 0x%08x",
                           get32(in + SUM_AT), cste_crc32c(in, SUM_AT));
    }
    if (in[5] != kind || get(in + 6, 2) != 0) {
        return cst_err_set(err, CST_EPROTO,
                           "a message of kind %u instead of %u, or with flags 0x%x", in[5], kind,
                           (unsigned)get(in + 6, 2));
    }
    return CST_OK;
}

static bool is_zero(const uint8_t *at, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (at[i] != 0) {
            return false;
        }
    }
    return true;
}

int cste_wire_read_request(const uint8_t *in, size_t n, struct cste_wire_request *out,
                           struct cst_err *err)
{
    struct cste_wire_request request;
    int rc = check(in, n, REQUEST, err);

    if (rc != CST_OK) {
        return rc;
    }
    request = (struct cste_wire_request){.id = get(in + 8, 8),
                                         .offset = get(in + 16, 8),
                                         .segment = get32(in + 24),
                                         .bytes = get32(in + 28),
                                         .machine = get32(in + 32)};
    memcpy(request.token, in + 40, CSTE_WIRE_TOKEN_BYTES);
    if (request.segment == 0 || request.bytes == 0 || request.bytes > CSTE_WIRE_MAX_PAYLOAD ||
        !is_zero(in + 36, 4) || !is_zero(in + 56, 4)) {
        return cst_err_set(err, CST_EPROTO,
                           "a request for %u bytes of segment %u, at most %u can be asked for",
                           request.bytes, request.segment, CSTE_WIRE_MAX_PAYLOAD);
    }
    *out = request;
    return CST_OK;
}

static bool is_reply_status(int32_t status)
{
    return status == CST_OK || status == CST_EDENIED || status == CST_ENOTFOUND ||
           status == CST_EINVAL;
}

int cste_wire_read_reply(const uint8_t *in, size_t n, struct cste_wire_reply *out,
                         struct cst_err *err)
{
    struct cste_wire_reply reply;
    int rc = check(in, n, REPLY, err);

    if (rc != CST_OK) {
        return rc;
    }
    reply = (struct cste_wire_reply){.id = get(in + 8, 8),
                                     .segment_bytes = get(in + 16, 8),
                                     .status = (int32_t)get32(in + 24),
                                     .bytes = get32(in + 28),
                                     .payload_sum = get32(in + 32)};
    if (!is_reply_status(reply.status) || (reply.status == CST_OK) != (reply.bytes > 0) ||
        reply.bytes > CSTE_WIRE_MAX_PAYLOAD || !is_zero(in + 36, SUM_AT - 36)) {
        return cst_err_set(err, CST_EPROTO, "a reply with status %d and %u bytes", reply.status,
                           reply.bytes);
    }
    *out = reply;
    return CST_OK;
}
