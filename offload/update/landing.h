/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that land. Gradients of micro-batches are added up in fp32 grad rows in host memory. An
 * accelerator that added there would read and write 4 bytes per element over its link. If only one
 * rank contributes to a chunk, its gradient, 2 bytes per element, is copied to a landing in host
 * memory instead, and the engine of the chunk's node adds it:
 *
 *   block --COPY (accelerator's engine)--> landing --REDUCE (node's engine)--> grad row
 *
 * The block stays occupied until the sum is made, so a contribution is never in a landing only.
 * Each node has CST_LAYOUT_LANDINGS landings, which its chunks use in turn. A COPY waits for the
 * REDUCE, of another engine, that last read its landing. Sums have the same bits on both engines.
 * Owned here: whose turn a landing is. Called by core.c, sum and explain. */
#ifndef CST_LANDING_H
#define CST_LANDING_H

#include "offload/core/core.h"
#include "offload/core/flight.h"

struct cst_core;

struct cst_landings {
    uint64_t *readers; /* Per landing of the layout: the last REDUCE that reads it; owned. */
    uint32_t *next;    /* Per node: the landing to use next; owned. */
};

/* CST_ENOMEM; the caller calls cst_landing_close nevertheless. */
int cst_landing_open(struct cst_core *core);

/* Free what cst_landing_open allocated. */
void cst_landing_close(struct cst_core *core);

/* True if the gradient of @chunk lands: one rank holds the chunk, that rank's pool is on an
 * accelerator, and the layout has landings. */
bool cst_landing_serves(const struct cst_core *core, uint32_t chunk);

/* Issue the COPY of the contribution, in a block, that the next REDUCE of @chunk adds. The gradient
 * must be one that lands. Returns the ticket, and the landing in *place. */
uint64_t cst_landing_begin(struct cst_core *core, uint32_t chunk, struct cst_place *place);

/* Let @reduce, which has its contribution as its source, read it from the landing @place, which the
 * COPY @ticket of cst_landing_begin fills. */
void cst_landing_read(struct cst_core *core, uint32_t chunk, struct cst_command *reduce,
                      uint64_t ticket, struct cst_place place);

/* Handle the completion of the COPY. If its accelerator is lost, the attempt is void. Any other
 * failure makes the REDUCE fail. */
void cst_landing_done(struct cst_core *core, const struct cst_flight *flight,
                      const struct cst_event *event);

#endif
