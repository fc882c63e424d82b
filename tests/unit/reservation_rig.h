/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of updates in a reservation: the reservation's place and the commands that use
 * it. */
#ifndef RESERVATION_RIG_H
#define RESERVATION_RIG_H

#include "tests/unit/core_rig.h"

#define RESERVATION_ENGINE 3    /* engine of the accelerator with the reservation */
#define RESERVATION_SEGMENT 400 /* segment id of the reservation's memory */

/* Bytes of a buffer for one chunk of the rig: 14 per element are copied in, and 14 out. */
#define RESERVATION_BUFFER (28ull * RIG_CHUNK_ELEMS)

/* Run a step of rank 0, the only rank, until its updates are issued. None of them is completed. */
void reservation_commit(struct rig *rig, uint32_t n_chunks);

/* The update of @chunk. Fails the test if there is none. */
const struct cst_command *reservation_update(const struct rig *rig, uint32_t chunk);

/* The @n-th copy of @chunk into the reservation (@up) or out of it, or NULL if there are not that
 * many. */
const struct cst_command *reservation_copy(const struct rig *rig, uint32_t chunk, bool up,
                                           unsigned n);

/* True if @command waits for @ticket. */
bool reservation_waits_for(const struct cst_command *command, uint64_t ticket);

#endif
