/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that have not completed, and which of them wait for which. Pure: no threads, no I/O,
 * allocates with malloc only.
 *
 *   add --(all of after are over)--> ready --take--> running --done--> gone, waiters become ready
 *
 * A dependency that is not pending counts as complete: it completed before, or belongs to an
 * engine's life before this one. But one that is known to have failed (the last
 * CST_TICKETS_FAILURES are remembered) dooms the ticket. A doomed ticket becomes ready like any
 * other, when all its dependencies are over, so that its completion never overtakes theirs. */
#ifndef CST_TICKETS_H
#define CST_TICKETS_H

#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

#define CST_TICKETS_BUCKETS 1024
#define CST_TICKETS_FAILURES 256

struct cst_ticket;

/* "waiter waits for the ticket in whose list this is". */
struct cst_ticket_edge {
    struct cst_ticket *waiter;    /* who waits */
    struct cst_ticket_edge *next; /* next edge of the same list */
};

/* Embedded in what it stands for. Private but for number and culprit. */
struct cst_ticket {
    uint64_t number;                 /* unique among the pending */
    uint64_t culprit;                /* a dependency that failed; valid where doomed */
    bool doomed;                     /* complete it with CST_ECANCELLED instead of running it */
    uint32_t n_waits;                /* dependencies that are not over */
    struct cst_ticket_edge *waiters; /* who waits for this one */
    struct cst_ticket_edge *edges;   /* storage for its own waits; owned */
    struct cst_ticket *chain;        /* next in its bucket */
    struct cst_ticket *next_ready;   /* next in the ready list */
};

struct cst_tickets {
    struct cst_ticket *buckets[CST_TICKETS_BUCKETS]; /* pending tickets by number */
    struct cst_ticket *ready, **ready_tail;          /* first in, first out */
    uint64_t n_pending;                              /* added and not done */
    uint64_t failures[CST_TICKETS_FAILURES];         /* ring of numbers that failed */
    uint64_t n_failures;                             /* ever */
};

void cst_tickets_init(struct cst_tickets *tickets);

/* Take in @ticket under @number. CST_EEXIST: that number is pending; CST_ENOMEM. On failure @ticket
 * is not in. */
int cst_tickets_add(struct cst_tickets *tickets, struct cst_ticket *ticket, uint64_t number,
                    const uint64_t *after, size_t n_after, struct cst_err *err);

/* The ticket that became ready first, taken out of the ready list; NULL: none is. */
struct cst_ticket *cst_tickets_take(struct cst_tickets *tickets);

/* @ticket, which had been taken, is over with @status. It is no longer referred to and owns
 * nothing. */
void cst_tickets_done(struct cst_tickets *tickets, struct cst_ticket *ticket, int status);

#endif
