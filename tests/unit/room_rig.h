/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of updates in a room share: a rig's room and what is done to find its commands. */
#ifndef ROOM_RIG_H
#define ROOM_RIG_H

#include "tests/unit/core_rig.h"

#define ROOM_ENGINE 3    /* whose memory it is */
#define ROOM_SEGMENT 400 /* and where in it */

/* Bytes of a buffer for a chunk of the rig: 14 an element up, 14 down. */
#define ROOM_BUFFER (28ull * RIG_CHUNK_ELEMS)

/* A step of rank 0, alone, up to its commit: the updates are issued, none is done. */
void room_commit(struct rig *rig, uint32_t n_chunks);

/* The update of @chunk; fails the test if there is none. */
const struct cst_command *room_update(const struct rig *rig, uint32_t chunk);

/* The @n-th copy of @chunk into the room (@up), or out of it; NULL: fewer. */
const struct cst_command *room_copy(const struct rig *rig, uint32_t chunk, bool up, unsigned n);

bool room_waits_for(const struct cst_command *command, uint64_t ticket);

#endif
