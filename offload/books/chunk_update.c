/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a chunk's last update. */
#include "offload/books/chunk_update.h"

#include "offload/core/core_state.h"

void cst_chunk_update_fill(const struct cst_core *core, struct cst_command *command,
                           const struct cst_update *what)
{
    command->table = core->table_segment;
    command->chunk = what->chunk;
    command->mark = what->mark;
    command->hyper = what->hyper;
    command->guard = what->guard;
}

/* -- changes of the state ---------------------------------------------------------------------- */

void cst_chunk_update_place(struct cst_chunk *chunk, enum cst_update_where where,
                            uint32_t reservation)
{
    chunk->update.where = where;
    chunk->update.reservation = reservation;
}

void cst_chunk_update_issued(struct cst_chunk *chunk, uint64_t ticket)
{
    chunk->update.ticket = ticket;
    chunk->moments_are_new = false;
}

void cst_chunk_update_begin_device(struct cst_chunk *chunk, const struct cst_update *what,
                                   uint32_t buffer)
{
    chunk->update.what = *what;
    chunk->update.buffer = buffer;
}

void cst_chunk_update_issued_down(struct cst_chunk *chunk,
                                  const uint64_t tickets[1 + CST_UPDATE_APART])
{
    chunk->update.ticket = tickets[0];
    chunk->moments_are_new = false;
    for (uint32_t i = 0; i < CST_UPDATE_APART; i++) {
        chunk->update.states_tickets[i] = tickets[1 + i];
    }
}

void cst_chunk_update_copying_back(struct cst_chunk *chunk)
{
    chunk->update.where = CST_UPDATE_COPYING_BACK;
}

void cst_chunk_update_back_to_node(struct cst_chunk *chunk, uint64_t ticket)
{
    if (chunk->update.weight_ticket == chunk->update.ticket) {
        chunk->update.weight_ticket = ticket;
    }
    chunk->update.ticket = ticket;
    for (uint32_t i = 0; i < CST_UPDATE_APART; i++) {
        chunk->update.states_tickets[i] = 0;
    }
    cst_chunk_update_place(chunk, CST_UPDATE_BY_NODE, CST_NONE);
}

static bool replace(uint64_t *ticket, uint64_t from, uint64_t to)
{
    if (*ticket != from) {
        return false;
    }
    *ticket = to;
    return true;
}

bool cst_chunk_update_replace(struct cst_chunk *chunk, uint64_t from, uint64_t to)
{
    bool any = replace(&chunk->update.ticket, from, to);

    (void)replace(&chunk->update.weight_ticket, from, to);
    for (uint32_t i = 0; i < CST_UPDATE_APART; i++) {
        any = replace(&chunk->update.states_tickets[i], from, to) || any;
    }
    return any;
}

void cst_chunk_update_read(struct cst_chunk *chunk)
{
    chunk->update.weight_ticket = chunk->update.ticket;
}
