/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that wait for tickets of other engines. An engine orders its own commands by their
 * `after`, but does not know the commands of other engines. A command that must wait for a ticket
 * that is under way on another engine is therefore held here until all its tickets are complete.
 * Then it goes to its engine with an empty `after`.
 *
 *   add --> held --last of its tickets done--> due --take--> the caller's
 *                \--one of them failed-------> due, with the words: it is cancelled
 *
 * Pure: knows neither engines nor sockets. If an engine dies, its commands stay under way until its
 * next process has done them, or they are refused. Loop thread only. */
#ifndef CST_WAITS_H
#define CST_WAITS_H

#include "offload/core.h"

#include <sys/queue.h>

#define CSTD_WAITS_BUCKETS 256

struct cstd_waits_item; /* private */
struct cstd_waits_edge; /* private */

struct cstd_waits {
    /* Commands that wait, in order of submission. */
    TAILQ_HEAD(, cstd_waits_item) held;
    /* Commands that may go, in the order in which they became due. */
    TAILQ_HEAD(, cstd_waits_item) due;
    /* Hash table: which commands wait for a ticket, by ticket. */
    struct cstd_waits_edge *buckets[CSTD_WAITS_BUCKETS];
    /* Hash table of all commands here, by their own ticket. */
    struct cstd_waits_item *items[CSTD_WAITS_BUCKETS];
    uint64_t n; /* Number of commands, held and due. */
};

void cstd_waits_init(struct cstd_waits *waits);
void cstd_waits_close(struct cstd_waits *waits);

/* Hold a copy of @command until the @n (1..CST_COMMAND_MAX_AFTER) @tickets are done; each of them
 * is under way or held here. CST_ENOMEM: @command is not held. */
int cstd_waits_add(struct cstd_waits *waits, const struct cst_command *command,
                   const uint64_t *tickets, uint32_t n, struct cst_err *err);

/* Return whether the command of @ticket is held or due. */
bool cstd_waits_holds(const struct cstd_waits *waits, uint64_t ticket);

/* @ticket is complete with @status. @text explains the status and may be NULL. Commands that waited
 * for no other ticket become due. */
void cstd_waits_done(struct cstd_waits *waits, uint64_t ticket, int status, const char *text);

/* Let the commands that wait for @from wait for @to instead, which is under way or held here. */
void cstd_waits_rename(struct cstd_waits *waits, uint64_t from, uint64_t to);

/* Take out the command that became due first; its `after` is empty. With err->status != 0
 * (CST_ECANCELLED) the caller must not execute the command but complete it with this status. False:
 * no command is due. */
bool cstd_waits_take(struct cstd_waits *waits, struct cst_command *out, struct cst_err *err);

/* Drop all commands whose ticket >> @shift is @value. No other command may wait for their tickets;
 * only commands of the same job do. */
void cstd_waits_forget(struct cstd_waits *waits, unsigned shift, uint64_t value);

#endif
