/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/update/replicas.h"

#include "offload/books/chunk_update.h"
#include "offload/books/exposure.h"
#include "offload/books/membership.h"
#include "offload/books/weight_row.h"
#include "offload/core/core_state.h"
#include "offload/weights/residency.h"

#include <stdlib.h>

int cst_replicas_open(struct cst_core *core)
{
    if (core->machines == NULL) {
        return CST_OK;
    }
    core->replicas.v = calloc(core->n_chunks, sizeof *core->replicas.v);
    return core->replicas.v != NULL ? CST_OK : CST_ENOMEM;
}

void cst_replicas_close(struct cst_core *core)
{
    free(core->replicas.v);
}

/* -- weights that come ------------------------------------------------------------------------ */

/* True if the home has told that the weights of the chunk's last update are there. */
static bool is_written(const struct cst_core *core, uint32_t c)
{
    const struct cst_replica *replica = &core->replicas.v[c];

    return replica->fresh && replica->mark == core->chunks[c].update.what.mark;
}

/* Fill in @copy, which brings the weights of chunk @c. What waits for it goes on waiting if it
 * fails. */
static void fill(struct cst_core *core, uint32_t c, struct cst_command *copy)
{
    struct cst_replica *replica = &core->replicas.v[c];

    copy->dst[copy->n_dst++] = core->chunks[c].update.what.weight;
    copy->bytes = cst_layout_weight_bytes(&core->layout->chunks[c]);
    copy->may_fail = true;
    copy->promised = replica->promised = !is_written(core, c);
    if (!copy->promised) {
        copy->src[copy->n_src++] = replica->place;
        replica->fresh = false;
    }
}

static struct cst_command *issue(struct cst_core *core, uint32_t c)
{
    struct cst_flight flight = {.kind = CST_FLIGHT_UPDATE, .chunk = c};
    struct cst_command *copy =
        cst_core_command(core, CST_COMMAND_COPY, core->machines->engine, &flight);

    fill(core, c, copy);
    return copy;
}

/* Begin to wait for the weights of the update chunk->update.what. */
static void await(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];

    cst_chunk_update_issued(chunk, issue(core, c)->ticket);
    cst_exposure_issued(core);
    cst_weight_row_end_gradient(chunk);
    core->replicas.n_awaited++;
}

void cst_replicas_update(struct cst_core *core, const struct cst_update *what)
{
    core->chunks[what->chunk].update.what = *what;
    await(core, what->chunk);
}

/* The weights of the last update that this machine has, or gets. */
static uint64_t mark_here(const struct cst_core *core, uint32_t c)
{
    return core->chunks[c].update.ticket != 0 ? core->chunks[c].update.what.mark
                                              : cst_table_chunks(core->table)[c].update_mark;
}

/* Chunk @c, whose weights had not come when its home was lost, has a home again: what reads them
 * waits. */
static void await_again(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];

    core->replicas.v[c].lost = false;
    if (chunk->update.ticket != 0) {
        return; /* The command was recalled, and is issued again at its end. */
    }
    chunk->weight.broken = false;
    chunk->update.what = (struct cst_update){
        .chunk = c,
        .mark = core->commit.adam_step,
        .weight = cst_core_row_place(core, c, cst_weight_row_newest(core, c), 0)};
    await(core, c);
    cst_chunk_update_read(chunk);
}

void cst_replicas_written(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_machine_message *message = event->message;
    uint32_t c = message->chunk;
    struct cst_replica *replica = &core->replicas.v[c];
    uint64_t ticket = core->chunks[c].update.ticket;

    if (!core->chunks[c].away || message->step < replica->mark ||
        (message->step == mark_here(core, c) && ticket == 0)) {
        return;
    }
    replica->mark = message->step;
    replica->place = message->place;
    replica->fresh = true;
    if (ticket == 0 || !is_written(core, c) || !replica->promised) {
        return;
    }
    fill(core, c, cst_core_keep_promise(core, CST_COMMAND_COPY, ticket));
}

/* The command that was to bring weights is over without them. */
static void give_up(struct cst_core *core, const struct cst_flight *flight)
{
    (void)cst_chunk_update_replace(&core->chunks[flight->chunk], flight->ticket, 0);
    cst_exposure_done(core);
    cst_weight_row_break(&core->chunks[flight->chunk]);
    cst_residency_expire(core, flight->chunk); /* What has waited reads old weights. */
    core->replicas.n_awaited--;
    cst_fact_weights_written(&core->facts, flight->chunk, flight->ticket);
}

bool cst_replicas_copied(struct cst_core *core, const struct cst_flight *flight,
                         const struct cst_event *event)
{
    struct cst_chunk *chunk = &core->chunks[flight->chunk];
    struct cst_command *copy;

    if (event->status == CST_OK) {
        cst_machine_waits_weights(core, flight->chunk, cst_membership_home(core, flight->chunk));
        core->replicas.n_awaited--;
        core->replicas.v[flight->chunk].lost = false;
        cst_table_chunks(core->table)[flight->chunk].update_mark = chunk->update.what.mark;
        return false;
    }
    if (core->replicas.v[flight->chunk].lost || core->attempt.phase == CST_PHASE_FAILED) {
        give_up(core, flight);
        return true;
    }
    copy = issue(core, flight->chunk);
    copy->replaces[copy->n_replaces++] = flight->ticket;
    (void)cst_chunk_update_replace(chunk, flight->ticket, copy->ticket);
    cst_residency_replaced(core, flight->chunk, flight->ticket, copy->ticket);
    cst_exposure_replaced(core, 1);
    return true;
}

/* -- weights that are made here --------------------------------------------------------------- */

void cst_replicas_tell(struct cst_core *core, uint32_t c)
{
    struct cst_machine_message *message;

    if (core->machines == NULL || core->chunks[c].away || !cst_membership_is_home(core, c)) {
        return;
    }
    message = cst_membership_tell(core, CST_MACHINES_ALL, CST_MESSAGE_WRITTEN, c);
    message->step = core->commit.adam_step;
    message->place = cst_core_row_place(core, c, cst_weight_row_newest(core, c), 0);
}

/* The weights of chunk @c do not come any more: do not wait for them. */
static void lose(struct cst_core *core, uint32_t c)
{
    uint64_t ticket = core->chunks[c].update.ticket;

    core->replicas.v[c].lost = core->replicas.v[c].lost || ticket != 0;
    if (ticket != 0 && core->replicas.v[c].promised) {
        core->replicas.v[c].promised = false; /* It is not kept any more. */
        cst_core_recall(core, ticket);
    }
}

void cst_replicas_fail(struct cst_core *core)
{
    for (uint32_t c = 0; core->machines != NULL && c < core->n_chunks; c++) {
        if (core->chunks[c].away) {
            lose(core, c);
        }
    }
}

void cst_replicas_change(struct cst_core *core)
{
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        const struct cst_chunk *chunk = &core->chunks[c];

        if (!chunk->has_states) {
            continue;
        }
        if (chunk->away && cst_membership_home(core, c) == CST_NONE) {
            lose(core, c);
        } else if (core->replicas.v[c].lost) {
            await_again(core, c);
        } else if (cst_chunk_update_is_over(&chunk->update) && core->commit.adam_step > 0) {
            cst_replicas_tell(core, c);
        }
    }
}
