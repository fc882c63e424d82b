/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that wait for tickets of other engines. An engine orders its own commands by their
 * `after`; it knows nothing of the others'. So a command that names a ticket which is under way
 * elsewhere is held here until all that it names are complete, and goes to its engine with no
 * `after` left.
 *
 *   add --> held --last of its tickets done--> due --take--> the caller's
 *                \--one of them failed-------> due, with the words: it is cancelled
 *
 * Pure: knows neither engines nor sockets. Engines may die meanwhile: their commands stay under way
 * until they are done by the next process, or refused. */
#ifndef CST_WAITS_H
#define CST_WAITS_H

#include "offload/core.h"

#include <sys/queue.h>

#define CST_WAITS_BUCKETS 256

struct cst_waits_item; /* private */
struct cst_waits_edge; /* private */

struct cst_waits {
    TAILQ_HEAD(, cst_waits_item) held;                 /* in order of submission */
    TAILQ_HEAD(, cst_waits_item) due;                  /* in the order in which they became so */
    struct cst_waits_edge *buckets[CST_WAITS_BUCKETS]; /* who waits for a ticket, by ticket */
    struct cst_waits_item *items[CST_WAITS_BUCKETS];   /* all that are here, by their own ticket */
    uint64_t n;                                        /* held and due */
};

void cst_waits_init(struct cst_waits *waits);
void cst_waits_close(struct cst_waits *waits);

/* Hold @command until the @n (1..CST_COMMAND_MAX_AFTER) @tickets, which are under way or here, are
 * done. It is copied. CST_ENOMEM: it is not held. */
int cst_waits_add(struct cst_waits *waits, const struct cst_command *command,
                  const uint64_t *tickets, uint32_t n, struct cst_err *err);

/* The command of @ticket is here. */
bool cst_waits_holds(const struct cst_waits *waits, uint64_t ticket);

/* @ticket is complete with @status; @text: the words that go with it, may be NULL. What waited for
 * nothing else is due now. */
void cst_waits_done(struct cst_waits *waits, uint64_t ticket, int status, const char *text);

/* Who waits for @from waits for @to, which is under way or here. */
void cst_waits_rename(struct cst_waits *waits, uint64_t from, uint64_t to);

/* The command that became due first, taken out, without `after`. With err->status != 0 it must not
 * be done: it is complete with that status (CST_ECANCELLED). False: none is due. */
bool cst_waits_take(struct cst_waits *waits, struct cst_command *out, struct cst_err *err);

/* Drop all whose ticket >> @shift is @value. Tickets of one job are only waited for by that job. */
void cst_waits_forget(struct cst_waits *waits, unsigned shift, uint64_t value);

#endif
