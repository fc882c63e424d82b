/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that a chunk's gradient and weights share: writing the one loses the other. A command names
 * only the row; the kind of the command determines whether it means the gradient or the weights. */
#include "tests/sim/sim.h"

bool over_shares(const struct sim *sim, uint32_t chunk)
{
    return sim->grad_over && model_is_trained(sim, chunk) && !model_is_fp32(sim, chunk);
}

bool over_makes(const struct sim *sim, const struct cst_command *command)
{
    return sim->grad_over && command->kind == CST_COMMAND_ROUND &&
           memory_find(&sim->memory, command->src[0]).row == CST_ROW_MASTER &&
           memory_find(&sim->memory, command->dst[0]).kind == PLACE_BLOCK;
}

/* Sums mean the gradient, and so do copies from a pool or to a reservation. A copy to staging reads
 * what the row holds now. */
static bool means_gradient(const struct sim *sim, const struct cst_command *command, uint32_t chunk)
{
    if (command->kind == CST_COMMAND_REDUCE) {
        return true;
    }
    if (command->kind != CST_COMMAND_COPY) {
        return false;
    }
    if (reservation_has(sim, command)) {
        return memory_find(&sim->memory, command->src[0]).kind == PLACE_BLOCK
                   ? !command->after_ack /* a gradient that is kept */
                   : reservation_goes_up(sim, command);
    }
    if (memory_find(&sim->memory, command->src[0]).kind == PLACE_BLOCK) {
        return true;
    }
    return memory_find(&sim->memory, command->dst[0]).kind == PLACE_STAGING &&
           sim->holds_grad[chunk];
}

struct spot over_resolve(const struct sim *sim, const struct cst_command *command, struct spot spot)
{
    if (spot.kind == PLACE_ROW && spot.row == CST_ROW_WEIGHT && over_shares(sim, spot.chunk) &&
        means_gradient(sim, command, spot.chunk)) {
        spot.row = CST_ROW_GRAD;
    }
    return spot;
}

uint64_t over_changes(const struct sim *sim, uint32_t chunk)
{
    return sim->memory.grads[chunk].changes +
           memory_changes(&sim->memory, sim->memory.states[CST_ROW_WEIGHT], chunk);
}

static void lose(struct cell *cell)
{
    cell->value = MEMORY_GARBAGE;
    cell->changes++;
}

void over_begin_write(struct sim *sim, const struct spot *spot)
{
    const struct cst_layout_chunk *chunk = &sim->layout.chunks[spot->chunk];

    if (spot->kind != PLACE_ROW || !over_shares(sim, spot->chunk)) {
        return;
    }
    if (spot->row == CST_ROW_WEIGHT && sim->memory.grads[spot->chunk].writers > 0) {
        sim_fail(sim, "weights of chunk %u are written where its gradient is being written",
                 spot->chunk);
    }
    for (uint32_t k = 0; spot->row == CST_ROW_GRAD && k < chunk->n_tensors; k++) {
        uint32_t t = sim->layout.order[chunk->first_tensor + k];
        struct cell *weight = &sim->memory.states[CST_ROW_WEIGHT][t];

        if (weight->writers > 0) {
            sim_fail(sim, "the gradient of chunk %u is written where its weights are being written",
                     spot->chunk);
        }
        lose(weight);
    }
    if (spot->row == CST_ROW_GRAD) {
        sim->holds_grad[spot->chunk] = true;
    }
}

void over_end_weights(struct sim *sim, uint32_t chunk)
{
    if (over_shares(sim, chunk)) {
        lose(&sim->memory.grads[chunk]);
        sim->holds_grad[chunk] = false;
    }
}

uint64_t over_weight(const struct sim *sim, uint32_t chunk, enum cst_row row, uint64_t old,
                     uint64_t add)
{
    bool lost = row == CST_ROW_WEIGHT && over_shares(sim, chunk) &&
                (old == MEMORY_GARBAGE || (add == 0 && sim->holds_grad[chunk]));

    return lost ? MEMORY_GARBAGE : old + add;
}
