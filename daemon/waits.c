/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/waits.h"

#include <stdlib.h>
#include <string.h>

/* One ticket for which an item waits; embedded in the item. */
struct cstd_waits_edge {
    uint64_t ticket;
    struct cstd_waits_item *item;
    struct cstd_waits_edge *next; /* Next edge of the same hash bucket. */
};

struct cstd_waits_item {
    TAILQ_ENTRY(cstd_waits_item) link;   /* Entry in held or due. */
    struct cstd_waits_item *same_bucket; /* Next item of the same bucket of cstd_waits.items. */
    struct cstd_waits_edge edges[CST_COMMAND_MAX_AFTER];
    uint32_t n_edges;   /* Number of entries of edges, whether their tickets are complete or not. */
    uint32_t n_left;    /* Number of edges whose tickets are not complete. */
    bool due;           /* The item is in the list due; else in the list held. */
    struct cst_err err; /* Error of the first ticket that failed. */
    struct cst_command command;
};

static unsigned bucket_of(uint64_t ticket)
{
    return (unsigned)(ticket & (CSTD_WAITS_BUCKETS - 1));
}

void cstd_waits_init(struct cstd_waits *waits)
{
    *waits = (struct cstd_waits){.n = 0};
    TAILQ_INIT(&waits->held);
    TAILQ_INIT(&waits->due);
}

/* -- adding and dropping commands ----------------------------------------------------------- */

static void unlink_edge(struct cstd_waits *waits, struct cstd_waits_edge *edge)
{
    struct cstd_waits_edge **p = &waits->buckets[bucket_of(edge->ticket)];

    while (*p != NULL && *p != edge) {
        p = &(*p)->next;
    }
    if (*p == edge) {
        *p = edge->next;
        edge->item->n_left--;
    }
}

static void drop(struct cstd_waits *waits, struct cstd_waits_item *item)
{
    struct cstd_waits_item **p = &waits->items[bucket_of(item->command.ticket)];

    for (uint32_t i = 0; item->n_left > 0 && i < item->n_edges; i++) {
        unlink_edge(waits, &item->edges[i]);
    }
    while (*p != item) {
        p = &(*p)->same_bucket;
    }
    *p = item->same_bucket;
    if (item->due) {
        TAILQ_REMOVE(&waits->due, item, link);
    } else {
        TAILQ_REMOVE(&waits->held, item, link);
    }
    waits->n--;
    free(item);
}

void cstd_waits_close(struct cstd_waits *waits)
{
    while (!TAILQ_EMPTY(&waits->held)) {
        drop(waits, TAILQ_FIRST(&waits->held));
    }
    while (!TAILQ_EMPTY(&waits->due)) {
        drop(waits, TAILQ_FIRST(&waits->due));
    }
}

int cstd_waits_add(struct cstd_waits *waits, const struct cst_command *command,
                   const uint64_t *tickets, uint32_t n, struct cst_err *err)
{
    struct cstd_waits_item *item = calloc(1, sizeof *item);
    struct cstd_waits_item **bucket = &waits->items[bucket_of(command->ticket)];

    if (item == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a command that waits");
    }
    item->command = *command;
    item->command.n_after = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct cstd_waits_edge **first = &waits->buckets[bucket_of(tickets[i])];

        item->edges[i] =
            (struct cstd_waits_edge){.ticket = tickets[i], .item = item, .next = *first};
        *first = &item->edges[i];
    }
    item->n_edges = item->n_left = n;
    item->same_bucket = *bucket;
    *bucket = item;
    TAILQ_INSERT_TAIL(&waits->held, item, link);
    waits->n++;
    return CST_OK;
}

bool cstd_waits_holds(const struct cstd_waits *waits, uint64_t ticket)
{
    const struct cstd_waits_item *item = waits->items[bucket_of(ticket)];

    while (item != NULL && item->command.ticket != ticket) {
        item = item->same_bucket;
    }
    return item != NULL;
}

/* -- completions ---------------------------------------------------------------------------- */

static void make_due(struct cstd_waits *waits, struct cstd_waits_item *item)
{
    TAILQ_REMOVE(&waits->held, item, link);
    TAILQ_INSERT_TAIL(&waits->due, item, link);
    item->due = true;
}

void cstd_waits_done(struct cstd_waits *waits, uint64_t ticket, int status, const char *text)
{
    struct cstd_waits_edge **p = &waits->buckets[bucket_of(ticket)];

    while (*p != NULL) {
        struct cstd_waits_edge *edge = *p;
        struct cstd_waits_item *item = edge->item;

        if (edge->ticket != ticket) {
            p = &edge->next;
            continue;
        }
        *p = edge->next;
        if (status != CST_OK && item->err.status == 0) {
            (void)cst_err_set(&item->err, CST_ECANCELLED, "a command that it waits for failed: %s",
                              text != NULL ? text : cst_status_words(status));
        }
        if (--item->n_left == 0) {
            make_due(waits, item);
        }
    }
}

void cstd_waits_rename(struct cstd_waits *waits, uint64_t from, uint64_t to)
{
    struct cstd_waits_edge **p = &waits->buckets[bucket_of(from)];
    struct cstd_waits_edge *moved = NULL;

    while (*p != NULL) {
        struct cstd_waits_edge *edge = *p;

        if (edge->ticket != from) {
            p = &edge->next;
            continue;
        }
        *p = edge->next;
        edge->ticket = to;
        edge->next = moved;
        moved = edge;
    }
    /* Edges are inserted in a second loop, since both tickets may share a bucket. */
    while (moved != NULL) {
        struct cstd_waits_edge **first = &waits->buckets[bucket_of(to)];
        struct cstd_waits_edge *edge = moved;

        moved = edge->next;
        edge->next = *first;
        *first = edge;
    }
}

bool cstd_waits_take(struct cstd_waits *waits, struct cst_command *out, struct cst_err *err)
{
    struct cstd_waits_item *item = TAILQ_FIRST(&waits->due);

    if (item == NULL) {
        return false;
    }
    *out = item->command;
    *err = item->err;
    drop(waits, item);
    return true;
}

void cstd_waits_forget(struct cstd_waits *waits, unsigned shift, uint64_t value)
{
    for (int due = 0; due < 2; due++) {
        struct cstd_waits_item *item =
            due != 0 ? TAILQ_FIRST(&waits->due) : TAILQ_FIRST(&waits->held);
        struct cstd_waits_item *next;

        for (; item != NULL; item = next) {
            next = TAILQ_NEXT(item, link);
            if (item->command.ticket >> shift == value) {
                drop(waits, item);
            }
        }
    }
}
