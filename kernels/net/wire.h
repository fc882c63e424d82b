/* SPDX-License-Identifier: Apache-2.0 */
/* The two messages between engines of a network: a request for bytes of a segment, and the reply,
 * which the bytes follow. Both are little-endian and of CSTE_WIRE_BYTES bytes. Pure; any thread.
 *
 *   request  0       4   5    6     8    16       24        28      32       36    40      56    60
 *            +-------+---+----+-----+----+--------+---------+-------+--------+-----+-------+-----+---
 *            | magic | v | 1  | 0   | id | offset | segment | bytes | from   | 0   | token | 0   |
 * sum
 *            +-------+---+----+-----+----+--------+---------+-------+--------+-----+-------+-----+---
 *
 *   reply    0       4   5    6     8    16              24       28      32            36      60
 *            +-------+---+----+-----+----+---------------+--------+-------+-------------+-------+----
 *            | magic | v | 2  | 0   | id | segment_bytes | status | bytes | payload_sum | 0     |
 * sum
 *            +-------+---+----+-----+----+---------------+--------+-------+-------------+-------+----
 *
 * `sum` is the CRC32C of the bytes before it, and payload_sum that of the payload. */
#ifndef CST_NET_WIRE_H
#define CST_NET_WIRE_H

#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

#define CSTE_WIRE_BYTES 64
#define CSTE_WIRE_TOKEN_BYTES 16
/* Most bytes of a payload. The checksum is made just before the bytes are sent, and should find
 * them in the processor's cache afterwards. */
#define CSTE_WIRE_MAX_PAYLOAD (1u << 20)

struct cste_wire_request {
    uint64_t id;                          /* Chosen by the sender, repeated in the reply. */
    uint32_t machine;                     /* Number of the machine that asks. */
    uint8_t token[CSTE_WIRE_TOKEN_BYTES]; /* Of the job and epoch. */
    uint32_t segment;                     /* Id of a segment of the engine that is asked. */
    uint64_t offset;                      /* In bytes. */
    uint32_t bytes;                       /* 1 to CSTE_WIRE_MAX_PAYLOAD. */
};

struct cste_wire_reply {
    uint64_t id;
    /* CST_OK; CST_EDENIED: no such machine or another token; CST_ENOTFOUND: no such segment, or it
     * is not served; CST_EINVAL: the range is not in the segment. */
    int32_t status;
    uint64_t segment_bytes; /* CST_EINVAL: length of the segment. */
    uint32_t bytes; /* Payload: as many as were asked for if status is CST_OK, otherwise 0. */
    uint32_t payload_sum;
};

void cste_wire_write_request(const struct cste_wire_request *request, uint8_t out[CSTE_WIRE_BYTES]);
void cste_wire_write_reply(const struct cste_wire_reply *reply, uint8_t out[CSTE_WIRE_BYTES]);

/* Read a message of @n bytes. *out is set on success only. CST_EVERSION: the other engine speaks
 * another version; CST_EPROTO: the message is malformed. @err says how, with numbers. */
int cste_wire_read_request(const uint8_t *in, size_t n, struct cste_wire_request *out,
                           struct cst_err *err);
int cste_wire_read_reply(const uint8_t *in, size_t n, struct cste_wire_reply *out,
                         struct cst_err *err);

#endif
