/* SPDX-License-Identifier: Apache-2.0 */
/* WRITEs of states that were issued and are not known to be complete: those in flight, and those
 * that an earlier core has left open, whose daemon died. A write of the same bytes can be repeated.
 * What a left one has written may be torn until the same range is written again: meanwhile its
 * chunk cannot be read, the job not be saved, and no attempt begins. A part of struct cst_writes
 * (states.h). */
#ifndef CST_OPEN_WRITES_H
#define CST_OPEN_WRITES_H

#include "offload/base/event.h"
#include "offload/core/revival.h"

struct cst_core;

/* List the WRITE of @event, which is request @request: @n_elems elements of chunk @chunk from
 * element @at of its rows on. */
void cst_open_writes_add(struct cst_core *core, const struct cst_event *event, uint32_t chunk,
                         uint64_t at, uint32_t request);

/* The WRITE of @request has ended. @done: it has written its range, which is then not torn. */
void cst_open_writes_end(struct cst_core *core, uint32_t request, bool done);

/* CST_EBUSY: chunk @chunk, or (CST_NONE) any chunk, has a range that may be torn. */
int cst_open_writes_check_read(const struct cst_core *core, uint32_t chunk, struct cst_err *err);

/* CST_ELOST: @rank has begun a write that was left open, and syncs without having repeated it. */
int cst_open_writes_check_sync(const struct cst_core *core, uint32_t rank, struct cst_err *err);

/* Fill in the open writes of @out. */
void cst_open_writes_record(const struct cst_core *core, struct cst_core_record *out);

/* CST_ELOST: the writes that @record has left open cannot be repeated, for the reason in @err. */
int cst_open_writes_may_revive(const struct cst_core *core, const struct cst_core_record *record,
                               struct cst_err *err);

/* Take over the open writes of @record, which may be repeated. */
void cst_open_writes_revive(struct cst_core *core, const struct cst_core_record *record);

#endif
