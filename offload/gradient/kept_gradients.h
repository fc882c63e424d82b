/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that stay on an accelerator (kept_gradients.c). Owns their slots. Called by the parts
 * that make updates, sum and collection. */
#ifndef CST_KEPT_GRADIENTS_H
#define CST_KEPT_GRADIENTS_H

#include "offload/base/event.h"
#include "offload/base/flight.h"

struct cst_core;
struct cst_device_reservation;

/* Place in a device reservation for one gradient. */
struct cst_kept_gradients_slot {
    /* Chunk whose gradient the slot is reserved for; CST_NONE: no chunk needs it any more. */
    uint32_t chunk;
    uint32_t n_commands; /* Commands in flight that write or read the slot. */
};

struct cst_kept_gradients {
    struct cst_kept_gradients_slot *slots; /* Owned, like `free`. */
    uint32_t *free;                        /* Numbers of the free slots. */
    uint32_t n_free;
};

/* CST_ENOMEM: the caller calls cst_kept_gradients_close nevertheless. */
int cst_kept_gradients_open(struct cst_device_reservation *reservation);

void cst_kept_gradients_close(struct cst_device_reservation *reservation);

/* The sum of @chunk is about to be issued. If @rank's contribution, in a block, is the whole sum,
 * keep a copy of it on the accelerator if possible; @rank CST_NONE: there is no such rank. Returns
 * the ticket that the sum has to wait for; 0: none. */
uint64_t cst_kept_gradients_keep(struct cst_core *core, uint32_t chunk, uint32_t rank);

/* The place of @chunk's kept gradient, for an update in the same device reservation. The slot is
 * freed when the caller's command, whose flight names device reservation and slot, is complete. */
struct cst_place cst_kept_gradients_use(struct cst_core *core, uint32_t chunk);

/* The kept gradient of the chunk is not needed. */
void cst_kept_gradients_drop(struct cst_core *core, uint32_t chunk);

/* Handle the completion of a command that wrote or read a slot. */
void cst_kept_gradients_done(struct cst_core *core, const struct cst_flight *flight);

/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_kept_gradients_check(const struct cst_core *core);

#endif
