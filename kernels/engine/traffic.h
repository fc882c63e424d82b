/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's access to the table of proto/traffic.h. The engine of an accelerator enters its
 * copies in the table, and the engine of a node reads the entries. The table stays mapped until the
 * process ends. */
#ifndef CST_ENGINE_TRAFFIC_H
#define CST_ENGINE_TRAFFIC_H

#include "cistern/status.h"
#include "proto/traffic.h"

/* The mapped table of an engine. */
struct cste_engine_traffic {
    struct cst_traffic *slots; /* Mapped slots. NULL: the daemon gave no table. */
    uint32_t n_slots;          /* Number of slots. */
    struct cst_traffic *own;   /* Slot in which this engine enters its copies. NULL: it has none. */
};

/* Map the table of @n_slots slots in @fd, which stays the caller's. @own is the number of this
 * engine's slot; @n_slots or more: it has none. CST_EINVAL: the file is too small; CST_ENOMEM. */
int cste_engine_traffic_open(struct cste_engine_traffic *traffic, int fd, uint32_t n_slots,
                             uint32_t own, struct cst_err *err);

#endif
