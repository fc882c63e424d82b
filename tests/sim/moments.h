/* SPDX-License-Identifier: Apache-2.0 */
/* Queue of the future events of a cluster, or of the machines of a job, ordered by time. Events at
 * equal times keep the order in which they were pushed. */
#ifndef SIM_MOMENTS_H
#define SIM_MOMENTS_H

#include <stddef.h>
#include <stdint.h>

/* Kinds of events: a command ends; a rank goes on, has computed, dies, or returns. Of machines
 * (tests/sim/machines.h): a command begins, ends, or its end is told; a message arrives; a machine
 * is killed, or restarted; a link is cut, or restored; a machine is told of an epoch; weights are
 * read. */
enum moment_kind {
    MOMENT_DONE,
    MOMENT_GO,
    MOMENT_COMPUTED,
    MOMENT_DEATH,
    MOMENT_RETURN,
    MOMENT_BEGIN,
    MOMENT_END,
    MOMENT_MESSAGE,
    MOMENT_KILL,
    MOMENT_RESTART,
    MOMENT_CUT,
    MOMENT_MEND,
    MOMENT_AGAIN,
    MOMENT_REPLACE,
    MOMENT_EPOCH,
    MOMENT_READ,
};

/* An event in the future. */
struct moment {
    uint64_t at;    /* virtual time in ns */
    uint64_t order; /* set by moments_push; orders the moments that have equal times */
    enum moment_kind kind;
    uint32_t node, rank;
    /* BEGIN, END, MESSAGE: number of the command or message; EPOCH: the epoch.
     * MOMENT_DONE: the ticket of the command; MOMENT_GO, MOMENT_COMPUTED and MOMENT_RETURN: the
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
