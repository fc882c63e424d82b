/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients in weight rows: 14 bytes per parameter instead of 16. The sum of a chunk's gradients,
 * or a contribution that leaves its pool early, is written to the weight row.
 *
 *            first REDUCE or spill is issued
 *   WEIGHTS ---------------------------------------> GRADIENT --WRITE of master weights--> STALE
 *      ^                                                 |                                    |
 *      +---------------------- UPDATE is issued ---------+------------------------------------+
 *
 * Until the UPDATE the weights of the chunk are made from its master weights, directly in the block
 * or staging segment where they are wanted. ROUND rounds like UPDATE, so the bits are the same.
 * This serves every fetch after the hand-in: recomputation, tied tensors, an evaluation pass, a
 * repeated attempt, the step after a skipped one. Copies from the row that were in flight are out
 * of date: their blocks are loaded again.
 *
 * The gradients of fp32 tensors have rows of their own, because there is nothing from which the
 * weights could be made.
 *
 * Not possible if workers copy weights in themselves, because they would copy a gradient. */
#include "offload/books/weight_row.h"

#include "offload/core/core_state.h"

#include <assert.h>
#include <inttypes.h>

int cst_weight_row_admit(const struct cst_core_config *config, struct cst_err *err)
{
    for (uint32_t rank = 0; rank < config->world && config->layout->states.grad_over_weight;
         rank++) {
        if (config->pools[rank].worker_copies) {
            return cst_err_set(
                err, CST_EINVAL,
                "gradients in the place of weights (grad_over_weight): the worker of rank %" PRIu32
                " copies weights itself, and would copy gradients: set 'copies = engine' in [gpu], "
                "or leave grad_over_weight out",
                rank);
        }
    }
    return CST_OK;
}

void cst_weight_row_begin_gradient(struct cst_core *core, uint32_t c, struct cst_command *command)
{
    struct cst_chunk *chunk = &core->chunks[c];

    if (!cst_layout_grad_over_weight(core->layout, &core->layout->chunks[c])) {
        return;
    }
    /* The WRITE can also set the weights in this row. */
    cst_command_after(command, chunk->writes.ticket);
    if (chunk->weight.holds == CST_HOLDS_WEIGHTS) {
        CST_SET_EACH (rank, chunk->ranks) {
            struct cst_pool *pool = &core->ranks[rank].pool;
            uint32_t b = pool->weight_of[c];

            if (b != CST_NONE && pool->blocks[b].state == CST_BLOCK_LOADING) {
                cst_block_drop(pool, b);
            }
        }
    }
    chunk->weight.holds = CST_HOLDS_GRADIENT;
}

void cst_weight_row_write(struct cst_chunk *chunk, bool weights)
{
    chunk->weight.version++;
    if (weights && chunk->weight.holds != CST_HOLDS_WEIGHTS) {
        chunk->weight.holds = CST_HOLDS_STALE;
    }
}

void cst_weight_row_break(struct cst_chunk *chunk)
{
    chunk->weight.broken = true;
}

void cst_weight_row_end_gradient(struct cst_chunk *chunk)
{
    chunk->weight.version++;
    chunk->weight.holds = CST_HOLDS_WEIGHTS;
}

void cst_weight_row_read(const struct cst_core *core, uint32_t c, enum cst_row row, uint64_t first,
                         uint64_t n_elems, struct cst_command *command)
{
    bool there = core->chunks[c].weight.holds == CST_HOLDS_WEIGHTS;

    row = there ? row : CST_ROW_MASTER;
    command->kind = there ? CST_COMMAND_COPY : CST_COMMAND_ROUND;
    command->src[command->n_src++] = cst_core_row_place(core, c, row, first);
    if (there) {
        command->bytes = cst_dtype_bytes(core->layout->chunks[c].dtype) * n_elems;
    } else {
        command->n_elems = n_elems;
    }
}

uint64_t cst_weight_row_version(const struct cst_core *core, uint32_t c, enum cst_row row)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    bool shared = cst_layout_grad_over_weight(core->layout, &core->layout->chunks[c]) &&
                  (row == CST_ROW_WEIGHT || row == CST_ROW_GRAD);

    if (shared) { /* Both numbers only increase, so their sum changes with either of them. */
        return chunk->weight.version + chunk->gradient.version;
    }
    return row == CST_ROW_GRAD ? chunk->gradient.version : chunk->weight.version;
}

int cst_weight_row_check_read(const struct cst_core *core, uint32_t c, enum cst_row row,
                              struct cst_err *err)
{
    if (row != CST_ROW_GRAD ||
        !cst_layout_grad_over_weight(core->layout, &core->layout->chunks[c]) ||
        core->chunks[c].weight.holds == CST_HOLDS_GRADIENT) {
        return CST_OK;
    }
    return cst_err_set(
        err, CST_EUNSUPPORTED,
        "the gradient of chunk %" PRIu32
        " is not available: the weights are stored in its place, and they %s",
        c, core->chunks[c].weight.holds == CST_HOLDS_WEIGHTS ? "are there" : "were written since");
}

int cst_weight_row_check_write(const struct cst_core *core, uint32_t c, enum cst_row row,
                               struct cst_err *err)
{
    const struct cst_chunk *chunk = &core->chunks[c];

    /* The weights of fp32 tensors are whole master weights. */
    if (!chunk->has_states || core->layout->chunks[c].dtype == CST_FP32) {
        return CST_OK;
    }
    if (row == CST_ROW_WEIGHT && core->layout->states.masters == CST_MASTERS_SPLIT) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "weights of chunk %" PRIu32
                           " cannot be written, because they are a part "
                           "of split master weights: write the master weights",
                           c);
    }
    if (!core->layout->states.grad_over_weight) {
        return CST_OK;
    }
    if (row == CST_ROW_MASTER &&
        (chunk->gradient.reduce_ticket != 0 || chunk->gradient.spill_ticket != 0)) {
        return cst_err_set(err, CST_EBUSY,
                           "a gradient of chunk %" PRIu32
                           ", of an attempt that is over, is still being moved to the weights' row",
                           c);
    }
    if (row != CST_ROW_WEIGHT) {
        return CST_OK;
    }
    return cst_err_set(
        err, CST_EUNSUPPORTED,
        "weights of chunk %" PRIu32
        " cannot be written, because gradients take their place: write the master weights",
        c);
}

/* -- the weight side --------------------------------------------------------------------------- */

#define TO(state) (1u << CST_ROWS_##state)

/* The states that may follow each state, one bit each. */
static const unsigned next_states[] = {
    [CST_ROWS_CURRENT] = TO(CURRENT) | TO(DELAYED) | TO(AHEAD),
    [CST_ROWS_DELAYED] = TO(CURRENT),
    [CST_ROWS_AHEAD] = TO(CURRENT) | TO(CARRIED),
    [CST_ROWS_CARRIED] = TO(CURRENT) | TO(CARRIED),
};

void cst_weight_row_go(struct cst_core *core, uint32_t c, enum cst_weight_rows state)
{
    struct cst_weight_row *row = &core->chunks[c].weight;

    assert((next_states[row->rows] & (1u << state)) != 0);
    row->rows = state;
    if (state == CST_ROWS_CURRENT) {
        row->second = core->two_weights && !row->second;
    }
}

static enum cst_row row_of_side(bool other)
{
    return other ? CST_ROW_WEIGHT_OTHER : CST_ROW_WEIGHT;
}

enum cst_row cst_weight_row_side(const struct cst_core *core, uint32_t chunk)
{
    return row_of_side(core->chunks[chunk].weight.second);
}

enum cst_row cst_weight_row_newest(const struct cst_core *core, uint32_t chunk)
{
    return row_of_side(core->chunks[chunk].weight.second !=
                       (core->chunks[chunk].weight.rows == CST_ROWS_DELAYED));
}

enum cst_row cst_weight_row_target(const struct cst_core *core, uint32_t chunk)
{
    return row_of_side(core->two_weights && !core->chunks[chunk].weight.second);
}
