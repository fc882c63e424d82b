/* SPDX-License-Identifier: Apache-2.0 */
/* The tool reads and writes states at any time, as a checkpoint writer would. */
#include "tests/sim/sim.h"

#include <inttypes.h>

static uint32_t free_slot(const struct sim *sim)
{
    for (uint32_t slot = 0; slot < MEMORY_STAGING_SLOTS; slot++) {
        bool used = false;

        for (unsigned i = 0; i < SIM_MAX_TAGS; i++) {
            used |= sim->pending[i].tag != 0 && sim->pending[i].rank == sim->world &&
                    sim->pending[i].slot == slot;
        }
        if (!used) {
            return slot;
        }
    }
    return MEMORY_STAGING_SLOTS;
}

static bool has_begun(const struct sim *sim)
{
    struct cst_core_stats stats;

    cst_core_stats(sim->core, &stats);
    return stats.initialised;
}

/* True if a write to row @row of a tensor also changes the number of row @other. A write of master
 * weights clears the moments until the job has @begun. */
static bool writes_row(const struct sim *sim, uint32_t chunk, enum cst_row row, enum cst_row other,
                       bool begun)
{
    if (!model_is_trained(sim, chunk)) {
        return other == CST_ROW_WEIGHT;
    }
    if (model_is_fp32(sim, chunk) && row == CST_ROW_WEIGHT) { /* Those are the master weights. */
        return other == CST_ROW_WEIGHT || other == CST_ROW_MASTER;
    }
    if (row == CST_ROW_MASTER && (other == CST_ROW_MOMENT || other == CST_ROW_MOMENT + 1)) {
        return !begun;
    }
    return other != CST_ROW_GRAD && (row == CST_ROW_MASTER || row == other);
}

/* Gradients, and the memory of a base job, must not be written. A frozen tensor has only
 * weights. */
static bool must_be_refused(const struct sim *sim, const struct cst_event *event)
{
    uint32_t chunk = sim->model.tensors[event->tensor].chunk;
    bool write = event->kind == CST_EV_WRITE;

    if (!model_is_trained(sim, chunk) && event->row != CST_ROW_WEIGHT &&
        !(write && event->row == CST_ROW_MASTER)) {
        return true;
    }
    if (sim->layout.chunks[chunk].muon && event->row == CST_ROW_MOMENT + 1) {
        return true;
    }
    return write && (event->row == CST_ROW_GRAD || model_is_base(sim, chunk) ||
                     (event->row == CST_ROW_WEIGHT && over_shares(sim, chunk)));
}

void tool_turn(struct sim *sim)
{
    static const enum cst_row rows[] = {CST_ROW_WEIGHT, CST_ROW_MASTER, CST_ROW_MOMENT,
                                        CST_ROW_MOMENT + 1, CST_ROW_GRAD};
    uint32_t tensor = sim_below(sim, sim->model.n_tensors);
    uint32_t slot = free_slot(sim);
    enum cst_row row = rows[sim_below(sim, 5)];
    uint64_t first = sim_below(sim, (uint32_t)sim->model.tensors[tensor].n_elems);
    struct cst_event event = {
        .kind = sim_chance(sim, 5000) ? CST_EV_READ : CST_EV_WRITE,
        .tensor = tensor,
        .row = row,
        .first = first,
        .n_elems = 1 + sim_below(sim, (uint32_t)(sim->model.tensors[tensor].n_elems - first)),
        .place = {.segment = MEMORY_STAGING_SEGMENT, .offset = (uint64_t)slot * MEMORY_SLOT_BYTES},
    };
    size_t before = sim->n_jobs;
    bool begun = has_begun(sim);

    if (slot == MEMORY_STAGING_SLOTS) {
        return;
    }
    sim_ask(sim, event,
            (struct pending){.rank = sim->world,
                             .slot = slot,
                             .tensor = tensor,
                             .row = row,
                             .lie = must_be_refused(sim, &event),
                             .at_least = sim->expected[row][tensor].value});
    if (event.kind == CST_EV_WRITE && sim->n_jobs > before) { /* the write was accepted */
        for (uint32_t r = 0; r < CST_ROW_COUNT; r++) {
            sim->expected[r][tensor].value +=
                writes_row(sim, sim->model.tensors[tensor].chunk, row, (enum cst_row)r, begun);
        }
        for (uint32_t t = 0;
             t < sim->model.n_tensors && (row == CST_ROW_MASTER || row == CST_ROW_WEIGHT); t++) {
            /* A write of weights ends the delay of updates. */
            sim->reads[t].value = sim->expected[CST_ROW_WEIGHT][t].value;
        }
    }
}

/* True if @value is one rank's gradient or a partial sum. No complete sum has the number of a
 * partial one. */
static bool is_part(const struct sim *sim, uint32_t c, uint64_t value)
{
    uint64_t sum = MEMORY_ZERO_SUM;
    bool part = false;

    for (uint32_t m = 0; m < sim->micro_batches; m++) {
        for (uint32_t rank = 0; rank < sim->world; rank++) {
            uint64_t handed = sim->handed[c][rank][m];

            if (handed != 0) {
                part = part || handed == value || (sum != MEMORY_ZERO_SUM && sum == value);
                sum = memory_mix(sum, handed);
            }
        }
    }
    return part;
}

void tool_reply(struct sim *sim, const struct pending *asked, const struct cst_reply *reply)
{
    uint64_t value = memory_read(&sim->memory.staging[asked->slot]);

    if (asked->lie && reply->status == CST_OK) {
        sim_fail(sim, "tool: tensor %u: what must be refused was done", asked->tensor);
    }
    if (asked->lie || (reply->status == CST_EBUSY &&
                       (asked->kind == CST_EV_WRITE || asked->row == CST_ROW_GRAD ||
                        (sim->overlap == CST_OVERLAP_EARLY && asked->row != CST_ROW_WEIGHT)))) {
        return;
    }
    if (reply->status == CST_EUNSUPPORTED && asked->kind == CST_EV_READ &&
        asked->row == CST_ROW_GRAD && (sim->grad_over || sim->overlap == CST_OVERLAP_EARLY)) {
        return; /* The row holds weights again, or the gradient was summed in its update. */
    }
    if (reply->status != CST_OK) {
        if (reply->status != CST_EIO && sim->p_fatal == 0 && sim->p_lost == 0) {
            sim_fail(sim, "tool: %s: %s", cst_status_name(reply->status), reply->err.text);
        }
        return;
    }
    if (asked->kind == CST_EV_READ && asked->row == CST_ROW_GRAD) {
        if (value == MEMORY_GARBAGE || value < MEMORY_ZERO_SUM ||
            is_part(sim, sim->model.tensors[asked->tensor].chunk, value)) {
            sim_fail(sim, "tool: the gradient of tensor %u is no sum", asked->tensor);
        }
    } else if (asked->kind == CST_EV_READ &&
               (value == MEMORY_GARBAGE || value < asked->at_least ||
                value > sim->expected[asked->row][asked->tensor].value)) {
        sim_fail(sim,
                 "tool: row %d of tensor %u reads %" PRIu64 ", which is none of %" PRIu64
                 "..%" PRIu64,
                 (int)asked->row, asked->tensor, value, asked->at_least,
                 sim->expected[asked->row][asked->tensor].value);
    }
}
