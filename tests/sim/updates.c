/* SPDX-License-Identifier: Apache-2.0 */
/* Updates by the engine of a chunk's node: the step, the gradient, and the rows that are
 * written. */
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <string.h>

/* -- issue ------------------------------------------------------------------------------------- */

/* An update before the commit. All contributions to its sum must have been handed in. */
static void submit_early(struct sim *sim, struct job *job)
{
    const struct cst_command *command = &job->command;
    uint32_t c = command->chunk;

    if (sim->overlap != CST_OVERLAP_EARLY || !command->guard || command->hyper.clip_norm != 0.0f) {
        sim_fail(sim, "an update of chunk %u before the commit", c);
    }
    if (sim->ahead[c]) {
        sim_fail(sim, "chunk %u is updated twice in step %" PRIu64, c, sim->step);
    }
    if (command->hyper.lr != script_lr(sim)) {
        sim_fail(sim, "the update of chunk %u has lr %g", c, (double)command->hyper.lr);
    }
    sim->ahead[c] = true;
    sim->ahead_sum[c] = model_sum(sim, c);
    job->sum = sim->ahead_sum[c];
    sim->n_ahead++;
    sim->n_fused += command->n_src > 0;
}

void update_submit(struct sim *sim, struct job *job)
{
    uint64_t t = sim->step - sim->n_skipped;

    if (job->command.kind != CST_COMMAND_UPDATE) {
        return;
    }
    if (job->command.n_replaces > 0 && job->command.mark >= t && job->command.mark <= t + 1) {
        job->sum = sim->ahead[job->command.chunk] ? sim->ahead_sum[job->command.chunk]
                                                  : sim->sums[job->command.chunk];
    } else if (job->command.mark == t + 1) {
        submit_early(sim, job);
    } else if (job->command.mark == t && sim->idle[job->command.chunk]) {
        sim_fail(sim, "update %" PRIu64 " of chunk %u, which has no gradient", t,
                 job->command.chunk);
    } else if (job->command.mark == t) {
        job->sum = sim->sums[job->command.chunk];
    } else {
        sim_fail(sim, "update %" PRIu64 " after %" PRIu64 " updates", job->command.mark, t);
    }
}

/* -- execution --------------------------------------------------------------------------------- */

static uint64_t sum_of(struct sim *sim, const struct job *job)
{
    uint64_t sum = MEMORY_ZERO_SUM;

    for (uint32_t i = 0; i < job->command.n_src; i++) {
        struct spot src = engines_find(sim, job, job->command.src[i]);

        if (src.kind != PLACE_BLOCK || sim->memory.pools[src.rank].tier != 0) {
            sim_fail(sim, "an update sums what is in no pool of the host");
        }
        sum = memory_mix(sum, memory_read(engines_cell(sim, &src)));
    }
    return sum;
}

/* The row that receives the update's weights. */
static enum cst_row target(const struct sim *sim, const struct job *job)
{
    const struct cst_command *command = &job->command;
    struct spot spot;

    if (command->n_out == 0) {
        return CST_ROW_WEIGHT;
    }
    spot = memory_find(&sim->memory, command->out[0].place);
    if (command->n_out != 1 || command->n_in != 0 || command->out[0].row != CST_ROW_WEIGHT ||
        spot.kind != PLACE_ROW || spot.row != CST_ROW_WEIGHT_OTHER ||
        spot.chunk != command->chunk || !spot.at_start) {
        sim_fail(sim, "an update of chunk %u that writes elsewhere", command->chunk);
    }
    return spot.row;
}

static void begin_row(struct sim *sim, struct job *job, enum cst_row row)
{
    const struct cst_layout_chunk *chunk = &sim->layout.chunks[job->command.chunk];

    for (uint32_t k = 0; k < chunk->n_tensors; k++) {
        struct spot dst = {.kind = PLACE_ROW,
                           .row = row,
                           .chunk = job->command.chunk,
                           .tensor = sim->layout.order[chunk->first_tensor + k]};

        job->old[row][k] = engines_cell(sim, &dst)->value;
        engines_begin_write(sim, job, &dst);
    }
}

/* The update makes weights from master weights, whatever the weight row holds. Those of fp32
 * tensors are read from the newest weight row. */
static void begin_weights(struct sim *sim, struct job *job, enum cst_row row)
{
    const struct cst_layout_chunk *chunk = &sim->layout.chunks[job->command.chunk];
    uint64_t newest[SIM_MAX_CHUNKS];

    for (uint32_t k = 0; k < chunk->n_tensors; k++) {
        newest[k] = memory_newest(&sim->memory, sim->layout.order[chunk->first_tensor + k]);
    }
    begin_row(sim, job, row);
    if (!job->begun) {
        memcpy(job->weights, newest, sizeof newest);
    }
    if (over_shares(sim, job->command.chunk)) {
        memcpy(job->old[CST_ROW_WEIGHT], job->old[CST_ROW_MASTER], sizeof job->old[0]);
    }
    job->begun = true;
}

/* The scratch of the node is used by one update at a time. */
static void begin_scratch(struct sim *sim, const struct job *job)
{
    uint32_t node = job->command.node;

    if (!sim->layout.chunks[job->command.chunk].muon) {
        return;
    }
    if (sim->scratch_used[node] || job->command.n_dst > 0) {
        sim_fail(sim,
                 "update %" PRIu64 " of chunk %u: the scratch of node %u is in use, or another"
                 " one is named",
                 job->command.mark, job->command.chunk, node);
    }
    sim->scratch_used[node] = true;
}

static void end_scratch(struct sim *sim, const struct job *job, bool torn)
{
    if (sim->layout.chunks[job->command.chunk].muon) {
        sim->scratch_used[job->command.node] = false;
        sim->n_muon_nodes += !torn;
    }
}

void update_begin(struct sim *sim, struct job *job)
{
    uint32_t c = job->command.chunk;
    bool fused = job->command.n_src > 0;
    uint64_t sum = fused ? sum_of(sim, job) : memory_read(&sim->memory.grads[c]);

    if (sum != job->sum) {
        sim_fail(sim, "update %" PRIu64 " of chunk %u: its gradient is not the sum",
                 job->command.mark, c);
    }
    if (fused) {
        sim->tiles[c] = MEMORY_GARBAGE;
    } else {
        job->changes = sim->memory.grads[c].changes;
    }
    begin_scratch(sim, job);
    for (int row = CST_ROW_MASTER; row <= CST_ROW_MOMENT + 1; row++) {
        if (!model_lacks(sim, c, (enum cst_row)row)) {
            begin_row(sim, job, (enum cst_row)row);
        }
    }
    begin_weights(sim, job, target(sim, job));
}

static void end_row(struct sim *sim, struct job *job, enum cst_row row, bool torn)
{
    const struct cst_layout_chunk *chunk = &sim->layout.chunks[job->command.chunk];
    bool weight = row == CST_ROW_WEIGHT || row == CST_ROW_WEIGHT_OTHER;

    for (uint32_t k = 0; k < chunk->n_tensors; k++) {
        uint32_t t = sim->layout.order[chunk->first_tensor + k];
        uint64_t value = over_weight(sim, job->command.chunk, row, job->old[row][k], !torn);

        if (weight && sim->two_rows) {
            value = torn ? MEMORY_GARBAGE : job->weights[k] + 1;
        }
        memory_end(&sim->memory.states[row][t], value);
    }
}

void update_end(struct sim *sim, struct job *job, bool torn)
{
    uint32_t c = job->command.chunk;
    bool fused = job->command.n_src > 0;
    uint64_t changes = fused ? engines_source_changes(sim, job) : sim->memory.grads[c].changes;

    if (!torn && changes != job->changes) {
        sim_fail(sim, "the gradient of chunk %u was written during its update", c);
    }
    if (!torn && fused) {
        sim->tiles[c] = job->sum;
    }
    end_scratch(sim, job, torn);
    for (int row = CST_ROW_MASTER; row <= CST_ROW_MOMENT + 1; row++) {
        if (!model_lacks(sim, c, (enum cst_row)row)) {
            end_row(sim, job, (enum cst_row)row, torn);
        }
    }
    end_row(sim, job, target(sim, job), torn);
    if (!torn) {
        over_end_weights(sim, c);
    }
}
