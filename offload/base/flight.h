/* SPDX-License-Identifier: Apache-2.0 */
/* Commands in flight: a map from a ticket to what the command is for. A hash table with linear
 * probing. */
#ifndef CST_FLIGHT_H
#define CST_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

/* When something happened (`at`), and its instant: when it would have happened if updates took no
 * time (instant.c). The instant is never later. Both in ns. */
struct cst_moment {
    uint64_t at, instant;
};

enum cst_flight_kind {
    CST_FLIGHT_LOAD,  /* COPY of a weight row, or of this rank's piece of it, to a block. */
    CST_FLIGHT_PIECE, /* COPY of a peer's piece from the peer's block to this rank's block. */
    CST_FLIGHT_SPILL, /* COPY of a gradient from its block to the grad row. */
    /* COPY of a gradient from its block to a landing, from which a REDUCE reads it. */
    CST_FLIGHT_LANDING,
    /* Sum of contributions to a gradient. */
    CST_FLIGHT_REDUCE,
    /* Norm of all gradients. */
    CST_FLIGHT_NORM,
    /* The command that completes the weights of an update: UPDATE in place, or COPY down after a
     * device update. */
    CST_FLIGHT_UPDATE,
    CST_FLIGHT_STATES,           /* COPY of states down after a device update. */
    CST_FLIGHT_UPDATE_ON_DEVICE, /* UPDATE on an accelerator. */
    CST_FLIGHT_DEVICE_UPDATE,    /* Any other command of a device update. */
    /* COPY of a gradient from its block to a device reservation, in addition to its sum. */
    CST_FLIGHT_KEEP,
    CST_FLIGHT_READ,  /* READ: row to staging segment. */
    CST_FLIGHT_WRITE, /* WRITE: staging segment to rows. */
    CST_FLIGHT_PART,  /* Part of a WRITE, which waits for it. */
    /* COPY of a partial from another machine to a landing, or of a sum to the grad row. */
    CST_FLIGHT_PARTIAL,
    CST_FLIGHT_AHEAD, /* COPY of states to a device reservation before their update is issued. */
};

struct cst_flight {
    uint64_t ticket; /* 0: the slot is empty. */
    enum cst_flight_kind kind;
    /* LOAD, PIECE, SPILL, LANDING: the rank. ON_DEVICE, DEVICE_UPDATE, KEEP, AHEAD, and UPDATE and
     * STATES with `down`: number of the device reservation. */
    uint32_t rank;
    /* PARTIAL: the set of landings, or CST_NONE. LOAD, PIECE, SPILL: the block. KEEP: slot of the
     * kept gradient. ON_DEVICE, DEVICE_UPDATE: slot of the kept gradient, or CST_NONE. */
    uint32_t block;
    /* ON_DEVICE, DEVICE_UPDATE, AHEAD, and UPDATE and STATES with `down`: buffer of the device
     * reservation. */
    uint32_t buffer;
    bool down;           /* UPDATE, STATES: the command is a COPY down after a device update. */
    uint32_t tries;      /* With `down`: number of failed copies of the same row before this one. */
    uint32_t peer;       /* PIECE: rank whose block is read. PARTIAL: the machine that is read. */
    uint32_t peer_block; /* PIECE: the peer's block. */
    uint32_t chunk;      /* All but NORM. */
    uint32_t request;    /* READ, WRITE: number of the request. */
    uint32_t engine;     /* Engine that has the command. */
    struct cst_moment issued; /* When the command was issued, on both clocks; see instant.c. */
    /* REDUCE: value of its engine's idle_ns (struct cst_clock) when it was issued, in ns; see
     * instant.c. */
    uint64_t idle;
    /* SPILL, LANDING, PARTIAL, REDUCE, NORM: collection of gradients that the command belongs to.
     */
    uint64_t collection;
};

/* True if the command uses a buffer of a device reservation. */
static inline bool cst_flight_is_device_update(const struct cst_flight *flight)
{
    return flight->kind == CST_FLIGHT_UPDATE_ON_DEVICE ||
           flight->kind == CST_FLIGHT_DEVICE_UPDATE || flight->down;
}

struct cst_flights {
    struct cst_flight *slots; /* Owned. */
    uint32_t n_slots;         /* A power of two. */
    uint32_t n;               /* Commands in flight. */
};

/* Initialise an empty map, or free one. */
void cst_flights_init(struct cst_flights *flights);
void cst_flights_close(struct cst_flights *flights);

/* Make room for @n commands in total. CST_ENOMEM. */
int cst_flights_reserve(struct cst_flights *flights, uint32_t n);

/* Add a command with a new ticket. Room must have been reserved. */
void cst_flights_add(struct cst_flights *flights, const struct cst_flight *flight);

/* Remove the command and copy it to *out. False: unknown ticket. */
bool cst_flights_take(struct cst_flights *flights, uint64_t ticket, struct cst_flight *out);

/* The command with @ticket, or NULL. Borrowed until the next change. */
const struct cst_flight *cst_flights_find(const struct cst_flights *flights, uint64_t ticket);

#endif
