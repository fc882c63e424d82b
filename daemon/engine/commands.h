/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of one engine that have not completed, in their encoded form. After the death of an
 * engine process its commands are sent again to the next process. All engines share one graph of
 * tickets, which engines.c owns and in which a command is found by its ticket.
 *
 * An engine orders its own commands by their `after`, but does not know the commands of other
 * engines. Every command is HELD at first. A command that cannot be left to its engine's order,
 * mostly because it waits for another engine, stays HELD until all that it waits for are complete,
 * and goes to its engine with an empty `after`. If one of them fails, the command that waits is
 * doomed: it is cancelled and never sent. So is a command that the core recalls while it is HELD.
 *
 *   add --> HELD --take: waits for nothing, queue--> QUEUED --remove--> OVER --done--> freed
 *             \--take: doomed, remove------------------------------------^
 *
 * A command is OVER while the core of its job is told how it ended. The core may submit a
 * replacement meanwhile, which takes over the commands that wait (cstd_commands_replace).
 *
 * This module owns the commands: cstd_commands_add makes them, cstd_commands_done frees them. It
 * sends nothing itself. It is called by engine.c, which sends the commands of one engine, by
 * engines.c, which decides what is HELD, and by core_driver.c. Loop thread only. */
#ifndef CST_COMMANDS_H
#define CST_COMMANDS_H

#include "offload/core/core.h"
#include "proto/ticket_graph.h"

#include <sys/queue.h>

enum cstd_command_state {
    CSTD_COMMAND_HELD,
    CSTD_COMMAND_QUEUED, /* Sent, or to be sent. */
    CSTD_COMMAND_OVER,   /* In no list; still in the graph of tickets. */
};

struct cstd_command {
    TAILQ_ENTRY(cstd_command) link; /* Entry in held or queue. */
    struct cst_ticket ticket;       /* The command's entry in the graph of tickets. */
    struct cst_ticket_edge edges[CST_COMMAND_MAX_AFTER]; /* Memory for the edges of ticket. */
    struct cstd_commands *commands;                      /* The commands of its engine. */
    enum cstd_command_state state;
    bool may_fail, io;   /* As in struct cst_command. */
    bool promised;       /* HELD: the core has not given the command itself yet. */
    bool recalled;       /* HELD: the command is to be doomed at the end of the iteration. */
    uint32_t n_given_up; /* Times that the engine was given up while the command was queued. */
    char *why;           /* If ticket.doomed: cause of the first failure, in words; owned. */
    uint8_t *bytes;      /* packed; or, of a command that was promised, memory of its own. */
    size_t n_bytes;      /* Length of *bytes. */
    /* The command as field 1 of a Submit message: key, length, Command. A Submit message is a
     * sequence of these. */
    uint8_t packed[];
};

struct cstd_commands {
    struct cst_ticket_graph *graph;   /* Tickets of the commands of all engines; borrowed. */
    TAILQ_HEAD(, cstd_command) held;  /* HELD commands. */
    TAILQ_HEAD(, cstd_command) queue; /* QUEUED commands: first those sent, then the others. */
    struct cstd_command *unsent;      /* First of the queue that was not sent; NULL: all were. */
    uint64_t n;                       /* Number of commands in the queue. */
};

/* Initialise empty lists, whose tickets go into @graph. */
void cstd_commands_init(struct cstd_commands *commands, struct cst_ticket_graph *graph);
/* Free all HELD and QUEUED commands. No command may be OVER. */
void cstd_commands_close(struct cstd_commands *commands);

/* Add a copy of @command, HELD until the commands with the @n (at most CST_COMMAND_MAX_AFTER)
 * tickets @waits are done. If @n is 0, the copy has the `after` of @command, otherwise an empty
 * one. CST_ENOMEM: out of memory. */
int cstd_commands_add(struct cstd_commands *commands, const struct cst_command *command,
                      const uint64_t *waits, uint32_t n, struct cst_err *err);

/* @command repeats one that was promised: it waits no more for that. CST_ENOTFOUND: none was
 * promised with its ticket. CST_ENOMEM. */
int cstd_commands_keep_promise(struct cst_ticket_graph *graph, const struct cst_command *command,
                               struct cst_err *err);

/* Returns the command of @ticket if it is HELD or QUEUED, else NULL. */
const struct cstd_command *cstd_commands_find(const struct cst_ticket_graph *graph,
                                              uint64_t ticket);

/* Returns a HELD command that waits for nothing any more, the earliest one first, or NULL if there
 * is none. The caller must remove the command if its ticket is doomed, or else queue it. */
struct cstd_command *cstd_commands_take(struct cst_ticket_graph *graph);

/* Note that the command of @ticket is recalled. False: it is not HELD, and the recall has no
 * effect. */
bool cstd_commands_recall(struct cst_ticket_graph *graph, uint64_t ticket);
/* Doom the HELD commands that are recalled, so that cstd_commands_take returns them. */
void cstd_commands_doom_recalled(struct cstd_commands *commands);

/* Append @command, which cstd_commands_take has returned, to the queue of its engine. */
void cstd_commands_queue(struct cstd_command *command);

/* Store in @err why @command, whose ticket is doomed, is cancelled: CST_ECANCELLED. */
void cstd_commands_explain(const struct cstd_command *command, struct cst_err *err);

/* Make the command of @ticket OVER. Returns false if @commands has no such command that is HELD or
 * QUEUED, because its job is gone. */
bool cstd_commands_remove(struct cstd_commands *commands, uint64_t ticket);

/* Free the command of @ticket, which is OVER and has ended with @status; if there is none, do
 * nothing. Commands that waited for it wait no more, and are doomed if @status is a failure. @text
 * explains the status and may be NULL. */
void cstd_commands_done(struct cst_ticket_graph *graph, uint64_t ticket, int status,
                        const char *text);

/* Let the commands that wait for @from wait for @to instead. */
void cstd_commands_replace(struct cst_ticket_graph *graph, uint64_t from, uint64_t to);

/* Free all HELD and QUEUED commands with (ticket >> @shift) == @value, which are those of one job.
 * Completions that an engine reports for them later are ignored. No command that stays may wait for
 * them. */
void cstd_commands_forget(struct cstd_commands *commands, unsigned shift, uint64_t value);

/* Store the ticket of the oldest command in the queue in *ticket. False: there is no command. */
bool cstd_commands_first(const struct cstd_commands *commands, uint64_t *ticket);

/* Count that the engine was given up (engine.h: FAILED), in each command of the queue. A node's
 * engine keeps its commands for a later engine process, except:
 * - commands with the flag io, whose requests are answered at once;
 * - commands that were in the queue when the engine was given up for the third time, because they
 *   may be the reason for its deaths.
 *
 * The caller must find these exceptions with cstd_commands_first_refused and remove them. Of an
 * accelerator's engine no command is kept, and the caller removes all (cstd_commands_first). */
void cstd_commands_give_up(struct cstd_commands *commands);

/* Store the ticket of the oldest command that is not kept after cstd_commands_give_up in *ticket.
 * False: there is none. */
bool cstd_commands_first_refused(const struct cstd_commands *commands, uint64_t *ticket);

/* True if the queue has a command with (ticket >> @shift) == @value. */
bool cstd_commands_has_any(const struct cstd_commands *commands, unsigned shift, uint64_t value);

/* Copy the next unsent commands into a Submit message of at most @max bytes at @body, and store the
 * last one of the message in *upto. Returns the length of the message; 0: nothing was copied, and
 * *upto is not set. After the message was sent, the caller must call cstd_commands_sent with *upto,
 * which marks its commands as sent. */
size_t cstd_commands_pack(const struct cstd_commands *commands, uint8_t *body, size_t max,
                          struct cstd_command **upto);
void cstd_commands_sent(struct cstd_commands *commands, struct cstd_command *upto);

/* Mark all commands as unsent, after the engine process has died. */
void cstd_commands_rewind(struct cstd_commands *commands);

#endif
