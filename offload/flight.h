/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that the engines have and the core waits for: from a ticket to what it was for. Lookups
 * only; a hash with linear probing. */
#ifndef CST_FLIGHT_H
#define CST_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

/* When something happened, and when it would have happened if updates took no time (instant.c).
 * The second is never later than the first. Both in ns. */
struct cst_moment {
    uint64_t at, instant;
};

enum cst_flight_kind {
    CST_FLIGHT_LOAD,    /* weight row, or this rank's piece of it -> block */
    CST_FLIGHT_PIECE,   /* a peer's piece: peer's block -> block */
    CST_FLIGHT_STAGE,   /* gradient block -> grad row */
    CST_FLIGHT_LANDING, /* gradient block -> landing, out of which a REDUCE reads it */
    CST_FLIGHT_REDUCE,
    CST_FLIGHT_NORM,
    CST_FLIGHT_UPDATE, /* what brings the weights of an update */
    CST_FLIGHT_STATES, /* what brings states of an update down from a room */
    CST_FLIGHT_AWAY,   /* UPDATE in a room */
    CST_FLIGHT_ROOM,   /* any other command of an update in a room */
    CST_FLIGHT_HELD,   /* gradient block -> room, beside its sum */
    CST_FLIGHT_READ,   /* row -> staging segment */
    CST_FLIGHT_WRITE,  /* staging segment -> rows */
    CST_FLIGHT_PART,   /* part of a WRITE, which waits for it */
};

struct cst_flight {
    uint64_t ticket; /* 0: the slot is empty */
    enum cst_flight_kind kind;
    uint32_t rank;  /* LOAD, PIECE, STAGE, LANDING; AWAY, ROOM, HELD, and UPDATE, STATES that are
                       down: number of the room */
    uint32_t block; /* LOAD, PIECE, STAGE; HELD, and AWAY, ROOM, CST_NONE elsewhere: slot of the
                       gradient that is kept there */
    bool down;      /* UPDATE, STATES: a COPY out of a room */
    uint32_t tries; /* down: copies of the same that failed before */
    uint32_t peer;  /* PIECE: rank whose block is read */
    uint32_t peer_block;      /* PIECE */
    uint32_t chunk;           /* all but NORM */
    uint32_t request;         /* READ, WRITE */
    uint32_t engine;          /* that has the command */
    struct cst_moment issued; /* see instant.c, as is the next one */
    uint64_t idle; /* ns, REDUCE: time for which its engine would have had no sum, until then */
    uint64_t collection; /* STAGE, LANDING, REDUCE, NORM: the collection of gradients that it
                            belongs to */
};

struct cst_flights {
    struct cst_flight *slots; /* owned */
    uint32_t n_slots;         /* power of two */
    uint32_t n;               /* in flight */
};

void cst_flights_init(struct cst_flights *flights);
void cst_flights_close(struct cst_flights *flights);

/* Room for @n in all. CST_ENOMEM. */
int cst_flights_reserve(struct cst_flights *flights, uint32_t n);

/* Reserved before; the ticket is new. */
void cst_flights_add(struct cst_flights *flights, const struct cst_flight *flight);

/* Take it out into *out; false: unknown ticket. */
bool cst_flights_take(struct cst_flights *flights, uint64_t ticket, struct cst_flight *out);

/* The one of @ticket, which is known; borrowed as by cst_flights_find. */
struct cst_flight *cst_flights_get(struct cst_flights *flights, uint64_t ticket);

/* NULL if unknown; borrowed until the next call that changes anything. */
const struct cst_flight *cst_flights_find(const struct cst_flights *flights, uint64_t ticket);

#endif
