/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a chunk's last update: the commands that are in flight, and where it is made. Every
 * part of the core may call this. */
#ifndef CST_CHUNK_UPDATE_H
#define CST_CHUNK_UPDATE_H

#include "offload/books/actions.h"
#include "offload/base/event.h"

struct cst_core;
struct cst_chunk;

/* Rows that an update writes in addition to the weights: the master row and the moments. */
#define CST_UPDATE_STATES (1 + CST_MAX_MOMENTS)
/* Rows that an update writes where the states of the chunk are: those and, in a durable job, the
 * weights in a file. Number i is row CST_ROW_MASTER + i. */
#define CST_UPDATE_APART (CST_UPDATE_STATES + 1)

/* Parameters of an update of one chunk. */
struct cst_update {
    uint32_t chunk;
    uint64_t mark;           /* Adam step. */
    struct cst_hyper hyper;  /* grad_scale includes the clip factor. */
    struct cst_place weight; /* Where the new weights are written. */
    bool guard;              /* Tiles beyond proto/grad_limit.h keep their states. */
};

/* Where the last update of a chunk is, or was, made.
 *
 *   BY_NODE, TOO_LARGE, NOT_LENT or ON_DEVICE   chosen when the update is issued
 *   ON_DEVICE --the UPDATE is done, so its COPYs down overwrite the chunk's rows--> COPYING_BACK
 *   ON_DEVICE --a command before the COPYs down fails--> BY_NODE: the update is issued there
 * instead; NOT_LENT, if it was recalled */
enum cst_update_where {
    CST_UPDATE_BY_NODE, /* The engine of the chunk's node makes it in place. */
    /* The same, although by the interleaving it was to be a device update: the chunk fits into no
     * device reservation. */
    CST_UPDATE_TOO_LARGE,
    /* The same, because no memory was lent, or a fetch needed the memory. */
    CST_UPDATE_NOT_LENT,
    CST_UPDATE_ON_DEVICE,    /* It is a device update, and nothing is known to be copied down. */
    CST_UPDATE_COPYING_BACK, /* It is a device update, and its results come down or have come. */
};

/* The last update of one chunk. */
struct cst_chunk_update {
    enum cst_update_where where;
    /* Command in flight that completes the weights: UPDATE in place, or COPY of the weights down
     * after a device update; else 0. */
    uint64_t ticket;
    /* After a device update: COPYs down, of rows that lie apart, that are in flight; else 0. */
    uint64_t states_tickets[CST_UPDATE_APART];
    /* Command in flight that completes the weights that fetches read; else 0. */
    uint64_t weight_ticket;
    uint32_t reservation;   /* Device reservation of the update; CST_NONE: it is not ON_DEVICE or
                               COPYING_BACK. */
    uint32_t buffer;        /* Buffer of the device reservation that the update used. */
    struct cst_update what; /* ON_DEVICE, COPYING_BACK: the update. */
};

/* Fill in the fields of the command that do not depend on where @what is executed. */
void cst_chunk_update_fill(const struct cst_core *core, struct cst_command *command,
                           const struct cst_update *what);

/* Make @command wait until everything that the chunk's update writes is there. (A command that only
 * reads the weights waits for update_ticket.) */
static inline void cst_chunk_update_before(struct cst_command *command,
                                           const struct cst_chunk_update *update)
{
    cst_command_after(command, update->ticket);
    for (uint32_t i = 0; i < CST_UPDATE_APART; i++) {
        cst_command_after(command, update->states_tickets[i]);
    }
}

/* The next update of the chunk is made there: in device reservation @reservation or, CST_NONE, by
 * its node. */
void cst_chunk_update_place(struct cst_chunk *chunk, enum cst_update_where where,
                            uint32_t reservation);

/* The update was issued to the chunk's node as the command @ticket. */
void cst_chunk_update_issued(struct cst_chunk *chunk, uint64_t ticket);

/* The device update @what was issued, in buffer @buffer. */
void cst_chunk_update_begin_device(struct cst_chunk *chunk, const struct cst_update *what,
                                   uint32_t buffer);
/* Its COPYs down are @tickets: weights, then rows that lie apart; 0: no such row. */
void cst_chunk_update_issued_down(struct cst_chunk *chunk,
                                  const uint64_t tickets[1 + CST_UPDATE_APART]);
/* Its UPDATE is done: the COPYs down overwrite the chunk's rows. */
void cst_chunk_update_copying_back(struct cst_chunk *chunk);
/* The node makes it instead, as the command @ticket. */
void cst_chunk_update_back_to_node(struct cst_chunk *chunk, uint64_t ticket);

/* The command @from of the chunk's update is complete (@to = 0), or replaced by @to. True: it was
 * one of those that complete the update. */
bool cst_chunk_update_replace(struct cst_chunk *chunk, uint64_t from, uint64_t to);

/* Fetches read the weights of the last update from now on. */
void cst_chunk_update_read(struct cst_chunk *chunk);

/* True if no update of the chunk is in flight. */
static inline bool cst_chunk_update_is_over(const struct cst_chunk_update *update)
{
    uint64_t any = update->ticket;

    for (uint32_t i = 0; i < CST_UPDATE_APART; i++) {
        any |= update->states_tickets[i];
    }
    return any == 0;
}

#endif
