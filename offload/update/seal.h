/* SPDX-License-Identifier: Apache-2.0 */
/* Seals (seal.c): the driver makes each committed step of a durable job last, even if the machine
 * stops. Owns what is known of the step's states. Called by core.c, commit, revival, staged_update
 * and update_end. */
#ifndef CST_SEAL_H
#define CST_SEAL_H

#include "offload/base/event.h"
#include "offload/base/flight.h"
#include "proto/durable.h"

struct cst_core;

enum cst_seal_state {
    CST_SEALED,   /* The last committed step is sealed, or there was none. */
    CST_SEAL_DUE, /* A step was committed: its updates are being made. */
    CST_SEALING,  /* The driver was asked to seal the step. */
};

/* Zeroed: the job is not durable. */
struct cst_seal {
    bool on;
    enum cst_seal_state state;
    uint32_t n_over; /* SEAL_DUE: the updates of so many chunks, the first ones, are over. */
    /* Per chunk: checksums of its rows in files as the last update has written them
     * (cst_command.sums); 0: not known. Owned. */
    uint64_t (*sums)[CST_DURABLE_ROWS];
};

/* Fill core->seal. CST_ENOMEM. */
int cst_seal_open(struct cst_core *core);
void cst_seal_close(struct cst_core *core);

/* A step was committed, or a new core goes on after one: it is to be sealed. */
void cst_seal_due(struct cst_core *core);

/* CST_OK: states may be written. CST_EUNSUPPORTED: the job is durable and has begun, so that a
 * write would change states to which it may have to go back. */
int cst_seal_check_write(const struct cst_core *core, struct cst_err *err);

/* True if the next step must not be committed yet: its updates would overwrite the states to which
 * the job goes back until the last step is sealed. */
bool cst_seal_holds_commit(const struct cst_core *core);

/* The row that @flight has written has this checksum. To be called before the chunk's update
 * forgets the command. */
void cst_seal_row_written(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event);

/* After each event: ask the driver to seal the step if it is due and its updates are over. */
void cst_seal_look(struct cst_core *core);

#endif
