/* SPDX-License-Identifier: Apache-2.0 */
/* Issues one update of one chunk, to its node's engine or to an accelerator. The state of an update
 * is in offload/books/chunk_update.h. Owned here: whose turn a scratch is. The chunks of a node
 * that Muon updates share one (proto/muon.h), so their updates follow one another. Called by
 * overlap and update_end. */
#ifndef CST_UPDATE_H
#define CST_UPDATE_H

#include "offload/books/chunk_update.h"
#include "offload/base/event.h"

struct cst_core;
struct cst_scratches {
    uint64_t *users; /* Per node: the last update that uses its scratch; owned. NULL: no scratch. */
};

/* CST_ENOMEM. */
int cst_update_open(struct cst_core *core);

/* Free what cst_update_open allocated. */
void cst_update_close(struct cst_core *core);

/* Where the next update of @chunk writes its weights. */
struct cst_place cst_update_weight(const struct cst_core *core, uint32_t chunk);

/* Issue the update @what, as a device update if it is the chunk's turn. */
void cst_update_issue(struct cst_core *core, const struct cst_update *what);

/* Issue the update @what to the node's engine. Returns the command, which the caller may extend. */
struct cst_command *cst_update_by_node(struct cst_core *core, const struct cst_update *what);

/* Issue the last update of @chunk to the node's engine. Replaces a device update of which nothing
 * has been copied down. */
void cst_update_back_to_node(struct cst_core *core, uint32_t chunk);

#endif
