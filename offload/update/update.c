/* SPDX-License-Identifier: Apache-2.0 */
/* One update of one chunk: by its node's engine in place, or on an accelerator (staged_update.c).
 * Also what waits for an update, and when it is complete. */
#include "offload/update/update.h"

#include "offload/core/core_state.h"
#include "offload/gradient/device_choice.h"
#include "offload/update/replicas.h"
#include "offload/update/staged_update.h"
#include "offload/books/exposure.h"
#include "offload/gradient/kept_gradients.h"
#include "offload/weights/residency.h"
#include "offload/books/weight_row.h"

#include <stdlib.h>

int cst_update_open(struct cst_core *core)
{
    if (core->layout->scratches == NULL) {
        return CST_OK;
    }
    core->scratches.users = calloc(core->n_nodes, sizeof *core->scratches.users);
    return core->scratches.users != NULL ? CST_OK : CST_ENOMEM;
}

void cst_update_close(struct cst_core *core)
{
    free(core->scratches.users);
}

/* Let @update wait until its scratch is free. */
static void take_scratch(struct cst_core *core, const struct cst_layout_chunk *chunk,
                         struct cst_command *update)
{
    if (chunk->muon) {
        cst_command_after(update, core->scratches.users[chunk->node]);
        core->scratches.users[chunk->node] = update->ticket;
    }
}

struct cst_place cst_update_weight(const struct cst_core *core, uint32_t c)
{
    return cst_core_row_place(core, c, cst_weight_row_target(core, c), 0);
}

/* True if @what writes the weights to the first weight row, as the table says. */
static bool is_first_row(const struct cst_core *core, const struct cst_update *what)
{
    struct cst_place first = cst_core_row_place(core, what->chunk, CST_ROW_WEIGHT, 0);

    return what->weight.segment == first.segment && what->weight.offset == first.offset;
}

static struct cst_command *update_in_place(struct cst_core *core, const struct cst_update *what)
{
    struct cst_flight flight = {.kind = CST_FLIGHT_UPDATE, .chunk = what->chunk};
    struct cst_command *update =
        cst_core_command(core, CST_COMMAND_UPDATE, core->layout->chunks[what->chunk].node, &flight);

    cst_chunk_update_fill(core, update, what);
    if (!is_first_row(core, what)) {
        update->out[update->n_out++] =
            (struct cst_command_row){.row = CST_ROW_WEIGHT, .place = what->weight};
    }
    return update;
}

struct cst_command *cst_update_by_node(struct cst_core *core, const struct cst_update *what)
{
    struct cst_chunk *chunk = &core->chunks[what->chunk];
    struct cst_command *update = update_in_place(core, what);

    /* The previous update is done, but the daemon may not have seen its completion yet. */
    cst_chunk_update_before(update, &chunk->update);
    take_scratch(core, &core->layout->chunks[what->chunk], update);
    cst_chunk_update_issued(chunk, update->ticket);
    cst_exposure_issued(core);
    cst_weight_row_end_gradient(chunk);
    return update;
}

void cst_update_back_to_node(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];
    struct cst_command *update = update_in_place(core, &chunk->update.what);
    uint64_t weight = chunk->update.ticket;

    take_scratch(core, &core->layout->chunks[c], update);
    cst_core_replace(core, update, weight);
    for (uint32_t i = 0; i < CST_UPDATE_STATES; i++) {
        cst_core_replace(core, update, chunk->update.states_tickets[i]);
    }
    cst_exposure_replaced(core, update->n_replaces);
    cst_residency_replaced(core, c, weight, update->ticket);
    cst_kept_gradients_drop(core, c); /* The kept gradient can already belong to the next step. */
    cst_chunk_update_back_to_node(chunk, update->ticket);
}

void cst_update_issue(struct cst_core *core, const struct cst_update *what)
{
    struct cst_chunk *chunk = &core->chunks[what->chunk];
    uint32_t reservation;

    if (chunk->away) {
        cst_replicas_update(core, what);
        return;
    }
    reservation = cst_device_choice_make(core, what->chunk);
    if (reservation == CST_NONE) {
        struct cst_command *update = cst_update_by_node(core, what);

        /* The commit waits for sums and the norm, but not for an early update. The next forward
         * pass begins with what this backward pass ends with. */
        update->priority =
            cst_weight_row_is_early(&chunk->weight) ? CST_PRIORITY_PREFETCH : CST_PRIORITY_DEMAND;
        update->newest_first = cst_weight_row_is_early(&chunk->weight);
        return;
    }
    cst_staged_update_update(core, reservation, what);
    cst_weight_row_end_gradient(chunk);
}
