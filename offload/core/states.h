/* SPDX-License-Identifier: Apache-2.0 */
/* READ and WRITE of rows of tensors. Owns the WRITEs in flight. Called by core.c. */
#ifndef CST_STATES_H
#define CST_STATES_H

#include "offload/base/event.h"
#include "offload/base/flight.h"
#include "offload/core/revival.h"

struct cst_core;
struct cst_writes {
    uint32_t n;      /* WRITEs in flight, of all chunks. */
    uint32_t n_left; /* WRITEs that an earlier core has left open (open_writes.h). */
    /* The WRITEs that were left, and those in flight that found a place. */
    uint32_t n_open;
    struct cst_open_write open[CST_CORE_MAX_OPEN_WRITES];
    uint32_t request[CST_CORE_MAX_OPEN_WRITES]; /* Of open[i]; CST_NO_REQUEST: it was left. */
};

/* WRITEs of one chunk. */
struct cst_chunk_writes {
    uint64_t ticket; /* Last WRITE, if it is in flight; else 0. */
    uint32_t n;      /* Number of WRITEs in flight. */
};

/* True if the rows of @chunk belong to the base job. */
bool cst_states_is_base(const struct cst_core *core, uint32_t chunk);

/* Handle CST_EV_READ and WRITE. */
void cst_states_read(struct cst_core *core, const struct cst_event *event);
void cst_states_write(struct cst_core *core, const struct cst_event *event);
/* Handle the completion of a READ's copy, and of a WRITE. */
void cst_states_read_done(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event);
void cst_states_written(struct cst_core *core, const struct cst_flight *flight,
                        const struct cst_event *event);

#endif
