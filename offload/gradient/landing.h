/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that land: they are copied from accelerators to landings in host memory, and the engine
 * of the chunk's node sums them.
 *
 *   block --COPY (accelerator's engine)--> landing --REDUCE (node's engine)--> grad row
 *
 * Two kinds of gradients land:
 *
 *   - Those of chunks to which only one rank contributes, if grad rows are fp32. An accelerator
 *     that added micro-batches there would read and write 4 bytes per element over its link. The
 *     COPY moves 2.
 *   - Those of several ranks, if none of their accelerators can access the memory of all others.
 *
 * The block stays occupied until the sum is made, so a contribution is never in a landing only.
 * Each node has layout->n_landings landings, which the contributions to its chunks use in turn. A
 * COPY waits for the REDUCE, of another engine, that last read its landing. Sums have the same bits
 * on both engines. Owned here: whose turn a landing is. Called by core.c, sum and explain. */
#ifndef CST_LANDING_H
#define CST_LANDING_H

#include "offload/base/event.h"
#include "offload/base/flight.h"

struct cst_core;
struct cst_landings {
    uint64_t *readers; /* Per landing of the layout: the last REDUCE that reads it; owned. */
    uint32_t *next;    /* Per node: the landing to use next; owned. */
};

/* Of the COPYs to the landings of one sum, this many run at once. Each further one waits for an
 * earlier one, because a command cannot wait for many. */
#define CST_LANDING_AT_ONCE 8u

/* The landings that one sum reads. */
struct cst_landing_group {
    uint32_t landings[CST_CORE_MAX_WORLD]; /* Numbers in the layout, in the order of the ranks. */
    uint64_t copies[CST_LANDING_AT_ONCE];  /* COPYs that the sum waits for; 0: none. */
    uint32_t n;                            /* Number of landings. */
};

/* CST_ENOMEM; the caller calls cst_landing_close nevertheless. */
int cst_landing_open(struct cst_core *core);

/* Free what cst_landing_open allocated. */
void cst_landing_close(struct cst_core *core);

/* True if the gradient of @chunk lands because one rank alone holds the chunk: that rank's pool is
 * on an accelerator, and the layout has landings for such chunks. */
bool cst_landing_serves(const struct cst_core *core, uint32_t chunk);

/* CST_OK if the layout has a landing for each contribution that may have to land. CST_EINVAL: the
 * accelerator of a rank cannot access the memory of another one, and there are no landings for
 * gradients of several ranks. */
int cst_landing_check(const struct cst_core *core, struct cst_err *err);

/* Issue the COPYs of the contributions to @chunk, in blocks, of the ranks *blocks. The next REDUCE
 * of @chunk adds them. */
void cst_landing_begin(struct cst_core *core, uint32_t chunk, const struct cst_set *blocks,
                       struct cst_landing_group *out);

/* The place of landing number @i of @group. */
struct cst_place cst_landing_place(const struct cst_core *core,
                                   const struct cst_landing_group *group, uint32_t i);

/* @reduce reads the landings of @group: it waits for their COPYs, and the landings' next COPYs wait
 * for it. */
void cst_landing_read(struct cst_core *core, const struct cst_landing_group *group,
                      struct cst_command *reduce);

/* Handle the completion of the COPY. If its accelerator is lost, the attempt is void. Any other
 * failure makes the REDUCE fail. */
void cst_landing_done(struct cst_core *core, const struct cst_flight *flight,
                      const struct cst_event *event);

#endif
