/* SPDX-License-Identifier: Apache-2.0 */
/* Queue of a cluster's future events, ordered by time. Events at equal times keep the order in
 * which they were pushed. */
#ifndef SIM_MOMENTS_H
#define SIM_MOMENTS_H

#include <stddef.h>
#include <stdint.h>

/* Kinds of events: a command ends; a rank goes on, has computed, dies, or returns. */
enum moment_kind { MOMENT_DONE, MOMENT_GO, MOMENT_COMPUTED, MOMENT_DEATH, MOMENT_RETURN };

/* An event in the future. */
struct moment {
    uint64_t at;    /* virtual time in ns */
    uint64_t order; /* set by moments_push; orders the moments that have equal times */
    enum moment_kind kind;
    uint32_t node, rank;
    /* MOMENT_DONE: the ticket of the command; MOMENT_GO, MOMENT_COMPUTED and MOMENT_RETURN: the
     * rank's turn */
    uint64_t what;
};

/* A zero-initialised queue is empty. */
struct moments {
    struct moment *v; /* binary heap with the earliest moment first; owned */
    size_t n, capacity;
    uint64_t order; /* order of the next moment to be pushed */
};

/* Free the queue's memory and empty the queue. */
void moments_close(struct moments *moments);

/* Add @moment to the queue. Ends the program if memory is exhausted. */
void moments_push(struct moments *moments, struct moment moment);

/* Remove and return the earliest moment. The queue must not be empty. */
struct moment moments_pop(struct moments *moments);

#endif
