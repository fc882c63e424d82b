/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that land. Where gradients of micro-batches are added up in fp32 grad rows in host
 * memory, an accelerator that adds them itself reads 4 bytes of each element over its link and
 * writes 4. A chunk that one rank alone contributes to has its gradient, 2 bytes of each element,
 * copied to a place in host memory instead, its landing, and the engine of its node adds it:
 *
 *   block --COPY (the accelerator's engine)--> landing --REDUCE (the node's engine)--> grad row
 *
 * The block stays taken until the sum is made, so a contribution is never in a landing alone. Each
 * node has CST_LAYOUT_LANDINGS places, which its chunks take in turn: a COPY waits for the REDUCE
 * that read its landing last, which is another engine's command. Sums have the same bits on either
 * engine. Private to offload/. */
#ifndef CST_LANDING_H
#define CST_LANDING_H

#include "offload/parts.h"

/* CST_ENOMEM: closed by cst_landing_close all the same. */
int cst_landing_open(struct cst_core *core);
void cst_landing_close(struct cst_core *core);

/* Does the gradient of @chunk land? It does where one rank holds the chunk, that rank's pool is on
 * an accelerator, and the layout has landings. */
bool cst_landing_serves(const struct cst_core *core, uint32_t chunk);

/* Issue the COPY of the contribution that the next REDUCE of @chunk adds; its ticket, and the
 * landing in *place. 0: nothing lands. */
uint64_t cst_landing_begin(struct cst_core *core, uint32_t chunk, struct cst_place *place);

/* @reduce, with its contribution added, reads it from the landing in @place, which the COPY
 * @ticket of cst_landing_begin fills. */
void cst_landing_read(struct cst_core *core, uint32_t chunk, struct cst_command *reduce,
                      uint64_t ticket, struct cst_place place);

/* The COPY ended. If its accelerator is lost the attempt is void; any other failure is the
 * REDUCE's, too. */
void cst_landing_done(struct cst_core *core, const struct cst_flight *flight,
                      const struct cst_event *event);

#endif
