/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that have not completed, and their dependencies. This module has no threads and no I/O,
 * and allocates with malloc only.
 *
 *   add --(all of after are over)--> ready --take--> running --done--> gone, waiters become ready
 *
 * A dependency that is not pending counts as complete: its command completed before, or belongs to
 * an earlier engine process. A dependency that is known to have failed (the last
 * CSTE_TICKETS_FAILURES failures are remembered) dooms the ticket: its command is cancelled instead
 * of run. A doomed ticket becomes ready like any other, after all its dependencies are over. Its
 * completion therefore never precedes theirs. */
#ifndef CST_TICKETS_H
#define CST_TICKETS_H

#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

#define CSTE_TICKETS_BUCKETS 1024
#define CSTE_TICKETS_FAILURES 256

struct cste_ticket;

/* An edge of the dependency graph: the waiter waits for the ticket in whose list the edge is. */
struct cste_ticket_edge {
    struct cste_ticket *waiter;    /* The waiting ticket. */
    struct cste_ticket_edge *next; /* Next edge of the list. */
};

/* A ticket, embedded in the command that it stands for. Only number, doomed and culprit are
 * public. */
struct cste_ticket {
    uint64_t number; /* Number, unique among pending tickets. */
    /* Number of a dependency that failed. Valid if doomed is set. */
    uint64_t culprit;
    /* The command is to be completed with CST_ECANCELLED instead of being run. */
    bool doomed;
    uint32_t n_waits;                 /* Number of dependencies that are not over. */
    struct cste_ticket_edge *waiters; /* List of the tickets that wait for this one. */
    /* Storage for the edges of the ticket's own dependencies; owned. */
    struct cste_ticket_edge *edges;
    struct cste_ticket *chain;      /* Next ticket of the hash bucket. */
    struct cste_ticket *next_ready; /* Next ticket of the ready list. */
};

/* The set of pending tickets. */
struct cste_tickets {
    struct cste_ticket *buckets[CSTE_TICKETS_BUCKETS]; /* Pending tickets, hashed by number. */
    struct cste_ticket *ready, **ready_tail;           /* Ready list, first in first out. */
    /* Number of tickets that were added and are not done. */
    uint64_t n_pending;
    uint64_t failures[CSTE_TICKETS_FAILURES]; /* Ring of the numbers of failed tickets. */
    uint64_t n_failures;                      /* Number of failures so far. */
};

/* Initialise an empty set. */
void cste_tickets_init(struct cste_tickets *tickets);

/* Add @ticket under @number, with the dependencies @after. CST_EEXIST: a ticket with that number is
 * pending; CST_ENOMEM. On failure @ticket is not added. */
int cste_tickets_add(struct cste_tickets *tickets, struct cste_ticket *ticket, uint64_t number,
                     const uint64_t *after, size_t n_after, struct cst_err *err);

/* Remove the ticket that became ready first from the ready list and return it; NULL: none is
 * ready. */
struct cste_ticket *cste_tickets_take(struct cste_tickets *tickets);

/* End @ticket, which cste_tickets_take returned before, with @status. The set no longer refers to
 * @ticket, and @ticket owns nothing. */
void cste_tickets_done(struct cste_tickets *tickets, struct cste_ticket *ticket, int status);

#endif
