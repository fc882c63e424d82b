/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of one engine that have not completed: packed as they go on the wire, in order of
 * submission, found by ticket. What is here when an engine dies is sent again to the next one. */
#ifndef CST_COMMANDS_H
#define CST_COMMANDS_H

#include "offload/core.h"

#include <sys/queue.h>

#define CST_COMMANDS_BUCKETS 1024

struct cst_commands_item; /* private */

struct cst_commands {
    TAILQ_HEAD(, cst_commands_item) items; /* sent ones first */
    struct cst_commands_item *unsent;      /* first that was not sent; NULL: all were */
    struct cst_commands_item *buckets[CST_COMMANDS_BUCKETS]; /* by ticket */
    uint64_t n;                                              /* in items */
};

void cst_commands_init(struct cst_commands *commands);
void cst_commands_close(struct cst_commands *commands);

/* CST_ENOMEM. */
int cst_commands_add(struct cst_commands *commands, const struct cst_command *command,
                     struct cst_err *err);

/* The command of @ticket is here. */
bool cst_commands_has(const struct cst_commands *commands, uint64_t ticket);

/* It is, and forgiven if it fails. */
bool cst_commands_forgives(const struct cst_commands *commands, uint64_t ticket);

/* The command of @ticket has completed. False: there is none (its job is gone). */
bool cst_commands_remove(struct cst_commands *commands, uint64_t ticket);

/* Drop all whose ticket >> @shift is @value; whether an engine has them or not, nobody waits for
 * them. */
void cst_commands_forget(struct cst_commands *commands, unsigned shift, uint64_t value);

/* The ticket of the oldest one. False: there is none. */
bool cst_commands_first(const struct cst_commands *commands, uint64_t *ticket);

/* The engine was given up. Its commands are kept for a later one, except those whose ticket the
 * next function returns: io, and those that have been here for the third time that it is given up,
 * which may be why. */
void cst_commands_give_up(struct cst_commands *commands);

/* The ticket of the oldest one that is not kept. False: there is none. */
bool cst_commands_first_refused(const struct cst_commands *commands, uint64_t *ticket);

/* A command is here whose ticket >> @shift is @value. */
bool cst_commands_has_any(const struct cst_commands *commands, unsigned shift, uint64_t value);

/* Fill @body with a Submit message of as many unsent commands as @max bytes take; returns its
 * length, 0: nothing to send. They count as unsent until cst_commands_sent, which takes *upto. */
size_t cst_commands_pack(const struct cst_commands *commands, uint8_t *body, size_t max,
                         struct cst_commands_item **upto);
void cst_commands_sent(struct cst_commands *commands, struct cst_commands_item *upto);

/* The engine is gone: all are unsent again. */
void cst_commands_rewind(struct cst_commands *commands);

#endif
