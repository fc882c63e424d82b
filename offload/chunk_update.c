/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a chunk's last update. */
#include "offload/chunk_update.h"

#include "offload/core_state.h"

void cst_chunk_update_fill(const struct cst_core *core, struct cst_command *command,
                           const struct cst_update *what)
{
    command->table = core->table_segment;
    command->chunk = what->chunk;
    command->mark = what->mark;
    command->hyper = what->hyper;
    command->guard = what->guard;
}

void cst_chunk_update_before(struct cst_command *command, const struct cst_chunk *chunk)
{
    cst_command_after(command, chunk->update.ticket);
    for (uint32_t i = 0; i < CST_UPDATE_STATES; i++) {
        cst_command_after(command, chunk->update.states_tickets[i]);
    }
}

bool cst_chunk_update_is_over(const struct cst_chunk *chunk)
{
    uint64_t any = chunk->update.ticket;

    for (uint32_t i = 0; i < CST_UPDATE_STATES; i++) {
        any |= chunk->update.states_tickets[i];
    }
    return any == 0;
}
