/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that have not completed, and what each of them waits for. A ticket stands for a command
 * and is embedded in it. The daemon's graph has the commands of all engines, an engine's graph has
 * its own, and the planner's has those of the simulated engines.
 *
 *   add --(all that it waits for is over)--> ready --take--> running --done--> gone; its waiters
 *                                                                              wait for one less
 *
 * A number that is not in the graph counts as complete: its command completed before, or belongs to
 * another graph. A number that is known to have failed (the last CST_TICKET_GRAPH_FAILURES failures
 * are remembered) dooms the tickets that wait for it: their commands are cancelled instead of run.
 * A doomed ticket becomes ready like any other, after all that it waits for is over. Its completion
 * therefore never precedes theirs, unless it is recalled. Tickets become ready in the order in
 * which they were added or released, and the waiters of one ticket in the order in which they were
 * added.
 *
 * This module has no threads and no I/O, and never fails for lack of memory after the opening. */
#ifndef CST_TICKET_GRAPH_H
#define CST_TICKET_GRAPH_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_TICKET_GRAPH_FAILURES 256

struct cst_ticket;

/* An edge: the waiter waits for `on`, in whose list of waiters the edge is. */
struct cst_ticket_edge {
    struct cst_ticket *waiter;    /* The waiting ticket. */
    struct cst_ticket *on;        /* What it waits for; NULL: not any more. */
    struct cst_ticket_edge *next; /* Next edge of the list. */
};

/* A ticket. The owner sets the first three fields before it adds the ticket, and then only reads
 * the others. */
struct cst_ticket {
    uint64_t number; /* Number, unique in the graph. */
    /* Storage for as many edges as the ticket has dependencies; borrowed until it is gone. */
    struct cst_ticket_edge *edges;
    /* Number of edges that are not over, plus the calls of cst_ticket_graph_release that the owner
     * will make. The owner sets the number of these calls. */
    uint32_t n_waits;
    uint32_t n_edges; /* Number of elements of edges that are used. */
    /* The command is to be completed with CST_ECANCELLED instead of being run. */
    bool doomed;
    uint64_t culprit; /* Number of a dependency that failed. Valid if doomed. */
    struct cst_ticket_edge
        *waiters;                  /* Edges of the tickets that wait for this one, newest first. */
    struct cst_ticket *chain;      /* Next ticket of the hash bucket. */
    struct cst_ticket *next_ready; /* Next ticket of the ready list. */
};

struct cst_ticket_graph {
    struct cst_ticket **buckets; /* Hash table of all tickets by number; owned. */
    uint32_t n_buckets;          /* A power of two. */
    uint32_t n;                  /* Number of tickets that were added and are not gone. */
    struct cst_ticket *ready, **ready_tail;       /* Ready list, first in first out. */
    uint64_t failures[CST_TICKET_GRAPH_FAILURES]; /* Ring of the numbers of failed tickets. */
    uint64_t n_failures;                          /* Number of failures so far. */
};

/* Open an empty graph. CST_ENOMEM. */
int cst_ticket_graph_open(struct cst_ticket_graph *graph, struct cst_err *err);

/* Free what the graph owns, which are not the tickets. */
void cst_ticket_graph_close(struct cst_ticket_graph *graph);

/* Add @ticket, which waits for the @n_after tickets numbered @after. CST_EEXIST: a ticket with its
 * number is in the graph; nothing has changed. */
int cst_ticket_graph_add(struct cst_ticket_graph *graph, struct cst_ticket *ticket,
                         const uint64_t *after, size_t n_after, struct cst_err *err);

/* Returns the ticket with this number, or NULL. */
struct cst_ticket *cst_ticket_graph_find(const struct cst_ticket_graph *graph, uint64_t number);

/* One of the calls that @ticket waits for in addition to its dependencies. */
void cst_ticket_graph_release(struct cst_ticket_graph *graph, struct cst_ticket *ticket);

/* Remove the ticket that became ready first from the ready list and return it. NULL: none is
 * ready. */
struct cst_ticket *cst_ticket_graph_take(struct cst_ticket_graph *graph);

/* Let all tickets that wait for @from wait for @to instead, except @to itself. */
void cst_ticket_graph_replace(struct cst_ticket *from, struct cst_ticket *to);

/* @ticket, which waits for something, waits no more and is doomed. */
void cst_ticket_graph_recall(struct cst_ticket_graph *graph, struct cst_ticket *ticket);

/* End @ticket, which is not in the ready list, with @status. The graph no longer refers to it. */
void cst_ticket_graph_done(struct cst_ticket_graph *graph, struct cst_ticket *ticket, int status);

/* Take @ticket out of the graph, in whatever state it is. Tickets that wait for it never become
 * ready and must be dropped as well. */
void cst_ticket_graph_drop(struct cst_ticket_graph *graph, struct cst_ticket *ticket);

#endif
