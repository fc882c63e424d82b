/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/tickets.h"

#include <inttypes.h>
#include <stdlib.h>

void cste_tickets_init(struct cste_tickets *tickets)
{
    *tickets = (struct cste_tickets){0};
    tickets->ready_tail = &tickets->ready;
}

/* Returns where the pointer to ticket @number is, or where it would be stored. */
static struct cste_ticket **slot_of(struct cste_tickets *tickets, uint64_t number)
{
    /* Numbers count up; their upper half may identify a job. */
    struct cste_ticket **slot = &tickets->buckets[(number ^ (number >> 32)) % CSTE_TICKETS_BUCKETS];

    while (*slot != NULL && (*slot)->number != number) {
        slot = &(*slot)->chain;
    }
    return slot;
}

static bool has_failed(const struct cste_tickets *tickets, uint64_t number)
{
    uint64_t n =
        tickets->n_failures < CSTE_TICKETS_FAILURES ? tickets->n_failures : CSTE_TICKETS_FAILURES;

    for (uint64_t i = 0; i < n; i++) {
        if (tickets->failures[i] == number) {
            return true;
        }
    }
    return false;
}

static void make_ready(struct cste_tickets *tickets, struct cste_ticket *ticket)
{
    ticket->next_ready = NULL;
    *tickets->ready_tail = ticket;
    tickets->ready_tail = &ticket->next_ready;
}

static void doom(struct cste_ticket *ticket, uint64_t culprit)
{
    if (!ticket->doomed) {
        ticket->doomed = true;
        ticket->culprit = culprit;
    }
}

static void depend(struct cste_tickets *tickets, struct cste_ticket *ticket, uint64_t on)
{
    struct cste_ticket *other = *slot_of(tickets, on);

    /* A dependency that is neither pending nor known to have failed counts as complete. */
    if (other != NULL) {
        struct cste_ticket_edge *edge = &ticket->edges[ticket->n_waits++];

        *edge = (struct cste_ticket_edge){.waiter = ticket, .next = other->waiters};
        other->waiters = edge;
    } else if (has_failed(tickets, on)) {
        doom(ticket, on);
    }
}

int cste_tickets_add(struct cste_tickets *tickets, struct cste_ticket *ticket, uint64_t number,
                     const uint64_t *after, size_t n_after, struct cst_err *err)
{
    struct cste_ticket_edge *edges = NULL;

    if (*slot_of(tickets, number) != NULL) {
        return cst_err_set(err, CST_EEXIST, "ticket %" PRIu64 " is pending already", number);
    }
    if (n_after > 0) {
        edges = calloc(n_after, sizeof *edges);
        if (edges == NULL) {
            return cst_err_set(err, CST_ENOMEM, "no memory for %zu dependencies", n_after);
        }
    }
    *ticket = (struct cste_ticket){.number = number, .edges = edges};
    for (size_t i = 0; i < n_after; i++) {
        depend(tickets, ticket, after[i]);
    }
    *slot_of(tickets, number) = ticket;
    tickets->n_pending++;
    if (ticket->n_waits == 0) {
        make_ready(tickets, ticket);
    }
    return CST_OK;
}

struct cste_ticket *cste_tickets_take(struct cste_tickets *tickets)
{
    struct cste_ticket *ticket = tickets->ready;

    if (ticket != NULL) {
        tickets->ready = ticket->next_ready;
        if (tickets->ready == NULL) {
            tickets->ready_tail = &tickets->ready;
        }
    }
    return ticket;
}

void cste_tickets_done(struct cste_tickets *tickets, struct cste_ticket *ticket, int status)
{
    struct cste_ticket **slot = slot_of(tickets, ticket->number);
    struct cste_ticket_edge *first = NULL;

    if (status != CST_OK) {
        tickets->failures[tickets->n_failures++ % CSTE_TICKETS_FAILURES] = ticket->number;
    }
    *slot = ticket->chain;
    tickets->n_pending--;
    /* The list begins with the youngest waiter. Waiters become ready in the order in which they
     * were added. */
    while (ticket->waiters != NULL) {
        struct cste_ticket_edge *edge = ticket->waiters;

        ticket->waiters = edge->next;
        edge->next = first;
        first = edge;
    }
    for (struct cste_ticket_edge *edge = first, *next; edge != NULL; edge = next) {
        struct cste_ticket *waiter = edge->waiter;

        next = edge->next;
        if (status != CST_OK) {
            doom(waiter, ticket->number);
        }
        if (--waiter->n_waits == 0) {
            make_ready(tickets, waiter);
        }
    }
    free(ticket->edges);
    ticket->edges = NULL;
}
