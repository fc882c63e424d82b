/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of one engine that have not completed, in their encoded form. After the death of an
 * engine process its commands are sent again to the next process. All engines share one graph of
 * tickets, in which a command is found by its ticket.
 *
 * An engine orders its own commands by their `after`, but does not know the commands of other
 * engines. A command that must wait for one of these is HELD until all that it waits for is
 * complete. It then goes to its engine with an empty `after`. If what it waited for has failed, it
 * is cancelled instead.
 *
 *   add --> HELD --take: nothing to wait for--> queue: QUEUED, in order --remove--> OVER --done-->
 *             \---take: doomed------------------remove-----------------------------^
 *
 * A command stays OVER while its owner is told: what replaces it can still take over the commands
 * that wait for it. The module sends nothing itself. Loop thread only. */
#ifndef CST_COMMANDS_H
#define CST_COMMANDS_H

#include "offload/core.h"
#include "proto/ticket_graph.h"

#include <sys/queue.h>

enum cstd_command_state {
    CSTD_COMMAND_HELD,
    CSTD_COMMAND_QUEUED, /* Sent, or to be sent. */
    CSTD_COMMAND_OVER,
};

struct cstd_command {
    TAILQ_ENTRY(cstd_command) link; /* Entry in held or queue. */
    struct cst_ticket ticket;
    struct cst_ticket_edge edges[CST_COMMAND_MAX_AFTER]; /* For ticket. */
    struct cstd_commands *commands;                      /* The commands of its engine. */
    enum cstd_command_state state;
    bool may_fail, io;   /* As in struct cst_command. */
    uint32_t n_given_up; /* Times that the engine was given up while the command was queued. */
    char *why;           /* If ticket.doomed: why the first failure occurred; owned. */
    size_t n_bytes;      /* Length of packed. */
    /* The command as field 1 of a Submit message: key, length, Command. A Submit message is a
     * sequence of these. */
    uint8_t packed[];
};

struct cstd_commands {
    struct cst_ticket_graph *graph;   /* Tickets of the commands of all engines; borrowed. */
    TAILQ_HEAD(, cstd_command) held;  /* HELD commands. */
    TAILQ_HEAD(, cstd_command) queue; /* QUEUED commands in order: sent, then unsent ones. */
    struct cstd_command *unsent;      /* The first command that was not sent; NULL: all were. */
    uint64_t n;                       /* Number of commands in the queue. */
};

/* Initialise empty lists, whose tickets go into @graph. */
void cstd_commands_init(struct cstd_commands *commands, struct cst_ticket_graph *graph);
/* Drop all commands. */
void cstd_commands_close(struct cstd_commands *commands);

/* Add a copy of @command, HELD until the @n (at most CST_COMMAND_MAX_AFTER) tickets @waits are
 * done. If @n is 0, its engine is told its `after`. CST_ENOMEM: out of memory. */
int cstd_commands_add(struct cstd_commands *commands, const struct cst_command *command,
                      const uint64_t *waits, uint32_t n, struct cst_err *err);

/* Returns the command of @ticket if it is HELD or QUEUED, else NULL. */
const struct cstd_command *cstd_commands_find(const struct cst_ticket_graph *graph,
                                              uint64_t ticket);

/* Returns the HELD command that waits for nothing any more, the earliest one first, or NULL. If its
 * ticket is doomed it must be removed, else queued. */
struct cstd_command *cstd_commands_take(struct cst_ticket_graph *graph);

/* Append @command, which was taken, to the queue of its engine. */
void cstd_commands_queue(struct cstd_command *command);

/* Store in @err why @command, whose ticket is doomed, is cancelled: CST_ECANCELLED. */
void cstd_commands_explain(const struct cstd_command *command, struct cst_err *err);

/* The command of @ticket is OVER from now on. False: @commands has no such command, because its job
 * is gone. */
bool cstd_commands_remove(struct cstd_commands *commands, uint64_t ticket);

/* Forget the command of @ticket, which was OVER with @status, unless its job was forgotten
 * meanwhile. Commands that waited for it wait no more. @text explains the status and may be NULL.
 */
void cstd_commands_done(struct cst_ticket_graph *graph, uint64_t ticket, int status,
                        const char *text);

/* Let the commands that wait for @from wait for @to instead. */
void cstd_commands_replace(struct cst_ticket_graph *graph, uint64_t from, uint64_t to);

/* Remove all commands with (ticket >> @shift) == @value, sent or not. Their completions are ignored
 * later. No other command may wait for them. */
void cstd_commands_forget(struct cstd_commands *commands, unsigned shift, uint64_t value);

/* Store the ticket of the oldest command in the queue in *ticket. False: there is no command. */
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

/* True if the queue has a command with (ticket >> @shift) == @value. */
bool cstd_commands_has_any(const struct cstd_commands *commands, unsigned shift, uint64_t value);

/* Encode the next unsent commands into a Submit message of at most @max bytes at @body, and store
 * the last of them in *upto. Returns the length; 0: nothing to send. After the message was sent,
 * cstd_commands_sent must be called with *upto to mark them as sent. */
size_t cstd_commands_pack(const struct cstd_commands *commands, uint8_t *body, size_t max,
                          struct cstd_command **upto);
void cstd_commands_sent(struct cstd_commands *commands, struct cstd_command *upto);

/* Mark all commands as unsent, after the engine process has died. */
void cstd_commands_rewind(struct cstd_commands *commands);

#endif
