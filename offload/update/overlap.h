/* SPDX-License-Identifier: Apache-2.0 */
/* When a chunk's update is issued, and when fetches read its weights: early and delayed updates
 * (overlap.c). Owns the early updates of the uncommitted step. Called by core.c, prepare, commit
 * and states. */
#ifndef CST_OVERLAP_H
#define CST_OVERLAP_H

#include "offload/books/chunk_update.h"
#include "offload/base/event.h"

struct cst_core;
struct cst_sources;
struct cst_early {
    uint32_t n; /* Chunks whose update of the uncommitted step was issued. */
    /* The uncommitted step is that of an earlier core, in which updates were begun (revival.h). */
    bool repeated;
    struct cst_hyper hyper; /* If updates were begun: their hyper-parameters. */
};

/* True if states can have an update of the uncommitted step, which can then only be completed. */
bool cst_overlap_has_begun(const struct cst_core *core);

/* CST_EBUSY: @row of @chunk belongs to a step that is not committed. CST_EUNSUPPORTED: the gradient
 * was never stored. */
int cst_overlap_check_read(const struct cst_core *core, uint32_t chunk, enum cst_row row,
                           struct cst_err *err);
/* CST_EBUSY: a step that is not committed has updated chunks. */
int cst_overlap_check_write(const struct cst_core *core, struct cst_err *err);

/* The step is committed: drop the weights that fetches do not read any more, before
 * cst_overlap_committed is called for any chunk. Device updates can then use the blocks. */
void cst_overlap_expire(struct cst_core *core);

/* The step is committed: update @chunk as @update says, unless that is already done, and switch
 * fetches to the row that they read from now on. NULL: the step is skipped. */
void cst_overlap_committed(struct cst_core *core, uint32_t chunk, const struct cst_update *update);

/* The step is committed and cst_overlap_committed was called for all chunks. */
void cst_overlap_end_step(struct cst_core *core);

/* Switch fetches to the last updates now, not at the next commit. */
void cst_overlap_flush(struct cst_core *core);

/* True if updates of the current step keep the states of tiles beyond proto/grad_limit.h. */
bool cst_overlap_guards(const struct cst_core *core);

/* The gradient of @chunk is complete: update the chunk now if early updates are allowed. */
void cst_overlap_complete(struct cst_core *core, uint32_t chunk);

/* All contributions have come, which are @sources: issue one command for sum and update if that is
 * allowed. False: nothing was done. */
bool cst_overlap_fuse(struct cst_core *core, uint32_t chunk, const struct cst_sources *sources);

#endif
