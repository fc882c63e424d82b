/* SPDX-License-Identifier: Apache-2.0 */
/* The core's output: commands, replies and log lines, and the places that commands name. Owns the
 * tickets and the list of actions. Memory is reserved before an event is processed, so nothing here
 * fails. Every part of the core may call this. */
#ifndef CST_ACTIONS_H
#define CST_ACTIONS_H

#include "offload/base/event.h"
#include "offload/base/flight.h"

#include <assert.h>

struct cst_core;
struct cst_output {
    uint64_t last_ticket;
    struct cst_actions *actions; /* Actions of the current event; borrowed. */
};

/* Append a new command with a ticket to the actions and enter it as @flight, whose ticket is
 * set. */
struct cst_command *cst_core_command(struct cst_core *core, enum cst_command_kind kind,
                                     uint32_t node, struct cst_flight *flight);

/* The command @ticket of a device update will have no effect; @command replaces it. Does nothing if
 * no command @ticket is in flight. */
void cst_core_replace(struct cst_core *core, struct cst_command *command, uint64_t ticket);

/* Ask the driver to make the last committed step last (CST_ACT_SEAL). */
void cst_core_seal(struct cst_core *core);

/* Append CST_ACT_VERSION or CST_ACT_REVOKE (@kind) of the weight row @row. */
void cst_core_version(struct cst_core *core, enum cst_action_kind kind, uint32_t row,
                      uint64_t step);

/* Append a message to machine @to, or to CST_MACHINES_ALL. Returns it, zeroed but for the words of
 * `why`, of which only the first byte is. */
struct cst_machine_message *cst_core_tell(struct cst_core *core, uint32_t to);

/* Append the command @ticket again, which was promised and can begin now. Returns it, zeroed but
 * for its kind, ticket, engine and chunk. */
struct cst_command *cst_core_keep_promise(struct cst_core *core, enum cst_command_kind kind,
                                          uint64_t ticket);

/* Append a recall of the command @ticket, which is in flight. */
void cst_core_recall(struct cst_core *core, uint64_t ticket);

/* Make the command wait for @ticket; 0: for nothing. */
static inline void cst_command_after(struct cst_command *command, uint64_t ticket)
{
    if (ticket != 0) {
        assert(command->n_after < CST_COMMAND_MAX_AFTER);
        command->after[command->n_after++] = ticket;
    }
}

/* Append a reply with status CST_OK. NULL if @tag is 0: nobody wants a reply. */
struct cst_reply *cst_core_reply(struct cst_core *core, uint64_t tag);
/* Append an error reply, or a line for the daemon's log. */
void cst_core_refuse(struct cst_core *core, uint64_t tag, int status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void cst_core_refuse_err(struct cst_core *core, uint64_t tag, const struct cst_err *err);
void cst_core_log(struct cst_core *core, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Why a command failed: the engine's message, or the text of the status. */
const char *cst_event_words(const struct cst_event *event);

/* True if the engine returned the command of @event because it is lost and executes nothing
 * more. */
bool cst_event_engine_lost(const struct cst_event *event);

/* Where row @row of the chunk's states is after the update with the mark @mark, the last update or
 * the one before it. In a durable job rows in files have two places, which take turns; otherwise
 * the place is always the same. */
struct cst_place cst_core_state_place(const struct cst_core *core, uint32_t chunk, enum cst_row row,
                                      uint64_t mark);

/* Segment and offset of element @elem of a chunk's row; of states after the last update that was
 * issued. */
struct cst_place cst_core_row_place(const struct cst_core *core, uint32_t chunk, enum cst_row row,
                                    uint64_t elem);

/* The engine that executes READ and WRITE of @row of @chunk. */
uint32_t cst_core_keeper(const struct cst_core *core, uint32_t chunk, enum cst_row row);

/* The engine that copies between @rank's pool and the rows of @chunk. */
uint32_t cst_core_copier(const struct cst_core *core, uint32_t rank, uint32_t chunk);

#endif
