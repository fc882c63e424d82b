/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's way into the table of proto/traffic.h: an accelerator's says there what it copies, a
 * node's looks at it. It is mapped as long as the process lives. */
#ifndef CST_ENGINE_TRAFFIC_H
#define CST_ENGINE_TRAFFIC_H

#include "cistern/status.h"
#include "proto/traffic.h"

struct cst_engine_traffic {
    struct cst_traffic *slots; /* mapped; NULL: the daemon gave no table */
    uint32_t n_slots;          /* in it */
    struct cst_traffic *own;   /* where this engine says what it copies; NULL: nowhere */
};

/* Map the table of @n_slots in @fd, the caller's. @own: number of this engine's slot; @n_slots or
 * more: it has none. CST_EINVAL: the file is too small; CST_ENOMEM. */
int cst_engine_traffic_open(struct cst_engine_traffic *traffic, int fd, uint32_t n_slots,
                            uint32_t own, struct cst_err *err);

#endif
