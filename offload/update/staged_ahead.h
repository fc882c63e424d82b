/* SPDX-License-Identifier: Apache-2.0 */
/* States that are brought to buffers of host memory before they are updated (staged_ahead.c).
 * Called by core, commit, states_write, staged_rows and staged_update. */
#ifndef CST_STAGED_AHEAD_H
#define CST_STAGED_AHEAD_H

#include "offload/base/event.h"
#include "offload/base/flight.h"
#include "offload/books/chunk_update.h"

struct cst_core;
struct cst_device_reservation;

/* What is, or will be, in a buffer before an update is issued there. */
struct cst_staged_ahead {
    uint32_t chunk;                 /* CST_NONE: nothing. */
    uint64_t up[CST_UPDATE_STATES]; /* COPYs in flight of its states; 0: done, or no such row. */
};

/* Nothing is ahead in any buffer of @reservation. */
void cst_staged_ahead_open(struct cst_device_reservation *reservation);

/* All updates of a step are issued: bring the states of the first chunks of core->commit.order to
 * the buffers, in which they wait for their next updates. */
void cst_staged_ahead_issue(struct cst_core *core);

/* The buffer of @reservation in which the states of chunk @c are; CST_NONE: in none. */
uint32_t cst_staged_ahead_find(const struct cst_device_reservation *reservation, uint32_t c);

/* @buffer is used for something else, or the states of chunk @c are written. */
void cst_staged_ahead_drop(struct cst_device_reservation *reservation, uint32_t buffer);
void cst_staged_ahead_forget(struct cst_core *core, uint32_t c);

/* Handle the completion of a COPY. */
void cst_staged_ahead_done(struct cst_core *core, const struct cst_flight *flight,
                           const struct cst_event *event);

#endif
