/* SPDX-License-Identifier: Apache-2.0 */
/* Hand-written encoding and decoding of the messages Batch and BatchDone. These messages are
 * exchanged for every operator of every step, and the allocations and descriptors of the general
 * protobuf-c code would cost more than all other work of the request. The bytes are those that
 * protobuf-c reads and writes. Pure computation. */
#ifndef CSTD_BATCH_H
#define CSTD_BATCH_H

#include "daemon/session/pending.h"
#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

/* One request of a Batch. */
struct cstd_batch_item {
    uint32_t kind;       /* Kind of request, a Cistern__BatchItem__Kind; not checked. */
    uint32_t chunk;      /* Number of the chunk; not checked. */
    uint64_t generation; /* Generation of the lease; 0: not given. */
    bool ahead;          /* Prefetch: no worker waits for the result yet. */
};

struct cstd_batch {
    uint64_t attempt; /* The attempt that the items belong to, from the Synced reply. */
    uint32_t n_items; /* Number of items; may be 0. */
    struct cstd_batch_item items[CSTD_PENDING_MAX_ITEMS];
};

/* Decode the @n bytes of a Batch at @body into *out. Unknown fields are skipped. CST_EPROTO: the
 * message is malformed or lacks a required field; CST_EINVAL: there are more than
 * CSTD_PENDING_MAX_ITEMS items. */
int cstd_batch_read(struct cstd_batch *out, const uint8_t *body, size_t n, struct cst_err *err);

/* Encode the BatchDone for the @n results in @items (at most CSTD_PENDING_MAX_ITEMS) of a job that
 * may be @paused into @out, a buffer of CST_FRAME_MAX_BODY bytes. Returns the length. */
size_t cstd_batch_write(const struct cstd_pending_item *items, uint32_t n, bool paused,
                        uint8_t *out);

#endif
