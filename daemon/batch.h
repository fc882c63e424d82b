/* SPDX-License-Identifier: Apache-2.0 */
/* Batch and BatchDone on the wire, by hand: the one request that is asked for every operator of
 * every step, for which the general code's allocations and descriptors cost more than all the rest
 * of serving it. Same bytes as protobuf-c's. Pure. */
#ifndef CST_BATCH_H
#define CST_BATCH_H

#include "daemon/pending.h"
#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

struct cst_batch_item {
    uint32_t kind;       /* Cistern__BatchItem__Kind, not checked */
    uint32_t chunk;      /* number, not checked */
    uint64_t generation; /* of the lease; 0: not given */
    bool ahead;          /* nobody waits for it yet */
};

struct cst_batch {
    uint64_t attempt; /* from Synced */
    uint32_t n_items; /* of items; may be 0 */
    struct cst_batch_item items[CST_PENDING_MAX_ITEMS];
};

/* Read the @n bytes of a Batch at @body. Unknown fields are skipped. CST_EPROTO: malformed, or a
 * required field is missing; CST_EINVAL: more than CST_PENDING_MAX_ITEMS items. */
int cst_batch_read(struct cst_batch *out, const uint8_t *body, size_t n, struct cst_err *err);

/* Write the BatchDone for @n items, at most CST_PENDING_MAX_ITEMS, to @out, which has
 * CST_FRAME_MAX_BODY bytes; returns its length. */
size_t cst_batch_write(const struct cst_pending_item *items, uint32_t n, uint8_t *out);

#endif
