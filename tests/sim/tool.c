/* The tool: reads and writes states at any time, as a checkpoint writer would. */
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

/* Rows whose number a write to @row changes. */
static bool writes_row(enum cst_row row, enum cst_row other)
{
    return other != CST_ROW_GRAD && (row == CST_ROW_MASTER || row == other);
}

void tool_turn(struct sim *sim)
{
    static const enum cst_row rows[] = {CST_ROW_WEIGHT, CST_ROW_MASTER, CST_ROW_EXP_AVG,
                                        CST_ROW_EXP_AVG_SQ, CST_ROW_GRAD};
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

    if (slot == MEMORY_STAGING_SLOTS) {
        return;
    }
    sim_ask(sim, event,
            (struct pending){.rank = sim->world,
                             .slot = slot,
                             .tensor = tensor,
                             .row = row,
                             .lie = event.kind == CST_EV_WRITE && row == CST_ROW_GRAD,
                             .at_least = sim->expected[row][tensor].value});
    if (event.kind == CST_EV_WRITE && row != CST_ROW_GRAD && sim->n_jobs > before) { /* accepted */
        for (uint32_t r = 0; r < CST_ROW_COUNT; r++) {
            sim->expected[r][tensor].value += writes_row(row, (enum cst_row)r);
        }
    }
}

/* One rank's gradient: no sum has such a number. */
static bool is_contribution(const struct sim *sim, uint64_t value)
{
    for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
        for (uint32_t rank = 0; rank < sim->world; rank++) {
            if (sim->handed[c][rank] != 0 && sim->handed[c][rank] == value) {
                return true;
            }
        }
    }
    return false;
}

void tool_reply(struct sim *sim, const struct pending *asked, const struct cst_reply *reply)
{
    uint64_t value = memory_read(&sim->memory.staging[asked->slot]);

    if (asked->lie && reply->status == CST_OK) {
        sim_fail(sim, "tool: gradients were written");
    }
    if (asked->lie || (reply->status == CST_EBUSY &&
                       (asked->kind == CST_EV_WRITE || asked->row == CST_ROW_GRAD))) {
        return;
    }
    if (reply->status != CST_OK) {
        if (reply->status != CST_EIO && sim->p_fatal == 0) {
            sim_fail(sim, "tool: %s: %s", cst_status_name(reply->status), reply->err.text);
        }
        return;
    }
    if (asked->kind == CST_EV_READ && asked->row == CST_ROW_GRAD) {
        if (value == MEMORY_GARBAGE || is_contribution(sim, value)) {
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
