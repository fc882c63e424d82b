/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of one engine that have not completed. They are stored in their encoded form, in the
 * order of submission, and can be found by ticket. After the death of an engine process its
 * commands are sent again to the next process. The module sends nothing itself. */
#ifndef CST_COMMANDS_H
#define CST_COMMANDS_H

#include "offload/core.h"

#include <sys/queue.h>

#define CSTD_COMMANDS_BUCKETS 1024

struct cstd_commands_item; /* Private to commands.c. */

struct cstd_commands {
    TAILQ_HEAD(, cstd_commands_item) items; /* In order of submission: sent, then unsent ones. */
    /* The first command that was not sent; NULL: all were sent. */
    struct cstd_commands_item *unsent;
    struct cstd_commands_item *buckets[CSTD_COMMANDS_BUCKETS]; /* Hash table by ticket. */
    uint64_t n;                                                /* Number of commands. */
};

/* Initialise an empty list. */
void cstd_commands_init(struct cstd_commands *commands);
/* Drop all commands. */
void cstd_commands_close(struct cstd_commands *commands);

/* Append a copy of @command. CST_ENOMEM: out of memory. */
int cstd_commands_add(struct cstd_commands *commands, const struct cst_command *command,
                      struct cst_err *err);

/* True if the command of @ticket has not completed. */
bool cstd_commands_has(const struct cstd_commands *commands, uint64_t ticket);

/* True if the command of @ticket has not completed and is marked `may_fail`: a failure of it does
 * not cancel the commands that wait for it. */
bool cstd_commands_may_fail(const struct cstd_commands *commands, uint64_t ticket);

/* Remove the command of @ticket, which has completed. False: there is no such command, because its
 * job is gone. */
bool cstd_commands_remove(struct cstd_commands *commands, uint64_t ticket);

/* Remove all commands with (ticket >> @shift) == @value, sent or not. Their completions are ignored
 * later. */
void cstd_commands_forget(struct cstd_commands *commands, unsigned shift, uint64_t value);

/* Store the ticket of the oldest command in *ticket. False: there is no command. */
bool cstd_commands_first(const struct cstd_commands *commands, uint64_t *ticket);

/* Note that the engine was given up. Its commands are kept for a later engine process, except:
 * - commands with the flag io, whose requests are answered at once;
 * - commands that were present for the third time when the engine was given up, because they may be
 *   the reason for its deaths.
 *
 * The caller must take the exceptions with cstd_commands_first_refused. */
void cstd_commands_give_up(struct cstd_commands *commands);

/* Store the ticket of the oldest command that is not kept after cstd_commands_give_up in *ticket.
 * False: there is none. */
bool cstd_commands_first_refused(const struct cstd_commands *commands, uint64_t *ticket);

/* True if there is a command with (ticket >> @shift) == @value. */
bool cstd_commands_has_any(const struct cstd_commands *commands, unsigned shift, uint64_t value);

/* Encode the next unsent commands into a Submit message of at most @max bytes at @body, and store
 * the last of them in *upto. Returns the length; 0: nothing to send. After the message was sent,
 * cstd_commands_sent must be called with *upto to mark them as sent. */
size_t cstd_commands_pack(const struct cstd_commands *commands, uint8_t *body, size_t max,
                          struct cstd_commands_item **upto);
void cstd_commands_sent(struct cstd_commands *commands, struct cstd_commands_item *upto);

/* Mark all commands as unsent, after the engine process has died. */
void cstd_commands_rewind(struct cstd_commands *commands);

#endif
