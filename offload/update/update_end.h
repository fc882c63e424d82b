/* SPDX-License-Identifier: Apache-2.0 */
/* Completions of the commands of updates, and what happens when one fails. Owns the number of
 * completed updates. Called by core.c. */
#ifndef CST_UPDATE_END_H
#define CST_UPDATE_END_H

#include "offload/base/event.h"
#include "offload/base/flight.h"

struct cst_core;

/* Numbers of completed updates of chunks. */
struct cst_updates_done {
    uint64_t n;        /* All of them. */
    uint64_t n_device; /* Those made on accelerators. */
    uint64_t n_lent;   /* Those of n_device made in lent memory. */
};

/* Handle the completion of any command of an update. */
void cst_update_end(struct cst_core *core, const struct cst_flight *flight,
                    const struct cst_event *event);

/* Handle the completion of a COPY of a gradient that is to be kept in a device reservation. If it
 * failed the gradient is not kept; nothing else depends on it. */
void cst_update_end_kept(struct cst_core *core, const struct cst_flight *flight,
                         const struct cst_event *event);

#endif
