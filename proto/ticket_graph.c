/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/ticket_graph.h"

#include <inttypes.h>
#include <stdlib.h>

enum { FIRST_BUCKETS = 256 };

int cst_ticket_graph_open(struct cst_ticket_graph *graph, struct cst_err *err)
{
    *graph = (struct cst_ticket_graph){.n_buckets = FIRST_BUCKETS};
    graph->ready_tail = &graph->ready;
    graph->buckets = calloc(graph->n_buckets, sizeof(*graph->buckets));
    return graph->buckets != NULL
               ? CST_OK
               : cst_err_set(err, CST_ENOMEM, "no memory for a table of tickets");
}

void cst_ticket_graph_close(struct cst_ticket_graph *graph)
{
    free(graph->buckets);
    graph->buckets = NULL;
}

/* -- hash table ------------------------------------------------------------------------------- */

static struct cst_ticket **bucket_of(struct cst_ticket **buckets, uint32_t n, uint64_t number)
{
    /* Numbers count up; their upper half may identify a job. */
    return &buckets[(number ^ (number >> 32)) & (n - 1)];
}

struct cst_ticket *cst_ticket_graph_find(const struct cst_ticket_graph *graph, uint64_t number)
{
    struct cst_ticket *ticket = *bucket_of(graph->buckets, graph->n_buckets, number);

    while (ticket != NULL && ticket->number != number) {
        ticket = ticket->chain;
    }
    return ticket;
}

static void insert(struct cst_ticket **buckets, uint32_t n, struct cst_ticket *ticket)
{
    struct cst_ticket **bucket = bucket_of(buckets, n, ticket->number);

    ticket->chain = *bucket;
    *bucket = ticket;
}

/* Double the table. If there is no memory, the chains become longer instead. */
static void grow(struct cst_ticket_graph *graph)
{
    uint32_t n = 2 * graph->n_buckets;
    struct cst_ticket **buckets = calloc(n, sizeof(*buckets));

    if (buckets == NULL) {
        return;
    }
    for (uint32_t i = 0; i < graph->n_buckets; i++) {
        for (struct cst_ticket *ticket = graph->buckets[i], *next; ticket != NULL; ticket = next) {
            next = ticket->chain;
            insert(buckets, n, ticket);
        }
    }
    free(graph->buckets);
    graph->buckets = buckets;
    graph->n_buckets = n;
}

static void unlist(struct cst_ticket_graph *graph, const struct cst_ticket *ticket)
{
    struct cst_ticket **p = bucket_of(graph->buckets, graph->n_buckets, ticket->number);

    while (*p != ticket) {
        p = &(*p)->chain;
    }
    *p = ticket->chain;
    graph->n--;
}

/* -- waiting ---------------------------------------------------------------------------------- */

static bool has_failed(const struct cst_ticket_graph *graph, uint64_t number)
{
    uint64_t n = graph->n_failures < CST_TICKET_GRAPH_FAILURES ? graph->n_failures
                                                               : CST_TICKET_GRAPH_FAILURES;

    for (uint64_t i = 0; i < n; i++) {
        if (graph->failures[i] == number) {
            return true;
        }
    }
    return false;
}

static void make_ready(struct cst_ticket_graph *graph, struct cst_ticket *ticket)
{
    ticket->next_ready = NULL;
    *graph->ready_tail = ticket;
    graph->ready_tail = &ticket->next_ready;
}

static void doom(struct cst_ticket *ticket, uint64_t culprit)
{
    if (!ticket->doomed) {
        ticket->doomed = true;
        ticket->culprit = culprit;
    }
}

static void depend(const struct cst_ticket_graph *graph, struct cst_ticket *ticket, uint64_t number)
{
    struct cst_ticket *on = cst_ticket_graph_find(graph, number);

    if (on != NULL) {
        struct cst_ticket_edge *edge = &ticket->edges[ticket->n_edges++];

        *edge = (struct cst_ticket_edge){.waiter = ticket, .on = on, .next = on->waiters};
        on->waiters = edge;
        ticket->n_waits++;
    } else if (has_failed(graph, number)) {
        doom(ticket, number);
    }
}

int cst_ticket_graph_add(struct cst_ticket_graph *graph, struct cst_ticket *ticket,
                         const uint64_t *after, size_t n_after, struct cst_err *err)
{
    if (cst_ticket_graph_find(graph, ticket->number) != NULL) {
        return cst_err_set(err, CST_EEXIST, "ticket %" PRIu64 " is pending already",
                           ticket->number);
    }
    *ticket = (struct cst_ticket){
        .number = ticket->number, .edges = ticket->edges, .n_waits = ticket->n_waits};
    for (size_t i = 0; i < n_after; i++) {
        depend(graph, ticket, after[i]);
    }
    if (graph->n == graph->n_buckets) {
        grow(graph);
    }
    insert(graph->buckets, graph->n_buckets, ticket);
    graph->n++;
    if (ticket->n_waits == 0) {
        make_ready(graph, ticket);
    }
    return CST_OK;
}

void cst_ticket_graph_release(struct cst_ticket_graph *graph, struct cst_ticket *ticket)
{
    if (--ticket->n_waits == 0) {
        make_ready(graph, ticket);
    }
}

struct cst_ticket *cst_ticket_graph_take(struct cst_ticket_graph *graph)
{
    struct cst_ticket *ticket = graph->ready;

    if (ticket != NULL) {
        graph->ready = ticket->next_ready;
        if (graph->ready == NULL) {
            graph->ready_tail = &graph->ready;
        }
    }
    return ticket;
}

void cst_ticket_graph_replace(struct cst_ticket *from, struct cst_ticket *to)
{
    for (struct cst_ticket_edge **p = &from->waiters, *edge; (edge = *p) != NULL;) {
        if (edge->waiter == to) {
            p = &edge->next;
            continue;
        }
        *p = edge->next;
        edge->on = to;
        edge->next = to->waiters;
        to->waiters = edge;
    }
}

/* -- ending ----------------------------------------------------------------------------------- */

void cst_ticket_graph_done(struct cst_ticket_graph *graph, struct cst_ticket *ticket, int status)
{
    struct cst_ticket_edge *first = NULL;

    if (status != CST_OK) {
        graph->failures[graph->n_failures++ % CST_TICKET_GRAPH_FAILURES] = ticket->number;
    }
    unlist(graph, ticket);
    while (ticket->waiters != NULL) {
        struct cst_ticket_edge *edge = ticket->waiters;

        ticket->waiters = edge->next;
        edge->next = first;
        first = edge;
    }
    for (struct cst_ticket_edge *edge = first, *next; edge != NULL; edge = next) {
        next = edge->next;
        edge->on = NULL;
        if (status != CST_OK) {
            doom(edge->waiter, ticket->number);
        }
        cst_ticket_graph_release(graph, edge->waiter);
    }
}

static void remove_from_ready(struct cst_ticket_graph *graph, const struct cst_ticket *ticket)
{
    struct cst_ticket **p = &graph->ready;

    while (*p != NULL && *p != ticket) {
        p = &(*p)->next_ready;
    }
    if (*p == ticket) {
        *p = ticket->next_ready;
        if (*p == NULL) {
            graph->ready_tail = p;
        }
    }
}

static void remove_edge(struct cst_ticket_edge *edge)
{
    struct cst_ticket_edge **p = &edge->on->waiters;

    while (*p != edge) {
        p = &(*p)->next;
    }
    *p = edge->next;
}

static void remove_edges(struct cst_ticket *ticket)
{
    for (uint32_t i = 0; i < ticket->n_edges; i++) {
        if (ticket->edges[i].on != NULL) {
            remove_edge(&ticket->edges[i]);
            ticket->edges[i].on = NULL;
        }
    }
}

void cst_ticket_graph_recall(struct cst_ticket_graph *graph, struct cst_ticket *ticket)
{
    remove_edges(ticket);
    doom(ticket, ticket->number);
    ticket->n_waits = 0;
    make_ready(graph, ticket);
}

void cst_ticket_graph_drop(struct cst_ticket_graph *graph, struct cst_ticket *ticket)
{
    unlist(graph, ticket);
    remove_from_ready(graph, ticket);
    remove_edges(ticket);
    for (struct cst_ticket_edge *edge = ticket->waiters; edge != NULL; edge = edge->next) {
        edge->on = NULL;
    }
}
