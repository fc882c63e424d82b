/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a chunk's last update: the commands that are in flight, and where it is made. Every
 * part of the core may call this. */
#ifndef CST_CHUNK_UPDATE_H
#define CST_CHUNK_UPDATE_H

#include "offload/core.h"

struct cst_core;
struct cst_chunk;

#define CST_UPDATE_STATES 3 /* Rows that an update writes in addition to the weights. */

/* Parameters of an update of one chunk. */
struct cst_update {
    uint32_t chunk;
    uint64_t mark;           /* Adam step. */
    struct cst_hyper hyper;  /* grad_scale includes the clip factor. */
    struct cst_place weight; /* Where the new weights are written. */
    bool guard;              /* Tiles beyond proto/grad_limit.h keep their states. */
};

/* Fill in the fields of the command that do not depend on where @what is executed. */
void cst_chunk_update_fill(const struct cst_core *core, struct cst_command *command,
                           const struct cst_update *what);

/* Make @command wait until everything that the chunk's update writes is there. (A command that only
 * reads the weights waits for update_ticket.) */
void cst_chunk_update_before(struct cst_command *command, const struct cst_chunk *chunk);

/* True if no update of the chunk is in flight. */
bool cst_chunk_update_is_over(const struct cst_chunk *chunk);

#endif
