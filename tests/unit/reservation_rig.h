/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of updates in a room: the room's place and the commands that use it. */
#ifndef ROOM_RIG_H
#define ROOM_RIG_H

#include "tests/unit/core_rig.h"

#define ROOM_ENGINE 3    /* engine of the accelerator with the room */
#define ROOM_SEGMENT 400 /* segment id of the room's memory */

/* Bytes of a buffer for one chunk of the rig: 14 per element are copied in, and 14 out. */
#define ROOM_BUFFER (28ull * RIG_CHUNK_ELEMS)

/* Run a step of rank 0, the only rank, until its updates are issued. None of them is completed. */
void room_commit(struct rig *rig, uint32_t n_chunks);

/* The update of @chunk. Fails the test if there is none. */
const struct cst_command *room_update(const struct rig *rig, uint32_t chunk);

/* The @n-th copy of @chunk into the room (@up) or out of it, or NULL if there are not that many. */
const struct cst_command *room_copy(const struct rig *rig, uint32_t chunk, bool up, unsigned n);

/* True if @command waits for @ticket. */
bool room_waits_for(const struct cst_command *command, uint64_t ticket);

#endif
