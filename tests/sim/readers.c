/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of versions: what the core calls readable has the weights of the last committed step, and
 * nothing writes there until the core revokes it. Readers keep versions now and then. */
#include "tests/sim/sim.h"

#include <inttypes.h>

static const struct cell *row_of(const struct sim *sim, uint32_t row)
{
    return sim->memory.states[row == 0 ? CST_ROW_WEIGHT : CST_ROW_WEIGHT_OTHER];
}

static void begin(struct sim *sim, uint32_t row, uint64_t step)
{
    struct version *version = &sim->versions[row];

    if (step != sim->step) {
        sim_fail(sim, "the version of step %" PRIu64 " is readable", step);
    }
    for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &sim->layout.chunks[c];

        for (uint32_t k = 0; model_is_trained(sim, c) && k < chunk->n_tensors; k++) {
            uint32_t t = sim->layout.order[chunk->first_tensor + k];
            uint64_t value = memory_read(&row_of(sim, row)[t]);

            if (value != sim->expected[CST_ROW_WEIGHT][t].value) {
                sim_fail(sim,
                         "row %u is readable, and tensor %u has weights %" PRIu64 " there, not "
                         "%" PRIu64,
                         row, t, value, sim->expected[CST_ROW_WEIGHT][t].value);
            }
        }
        version->changes[c] = memory_changes(&sim->memory, row_of(sim, row), c);
    }
    version->readable = true;
    sim->n_versions++;
}

static void end(struct sim *sim, uint32_t row)
{
    struct version *version = &sim->versions[row];

    if (version->n_kept > 0 && sim->timeout == CST_CORE_NEVER && !sim->writes) {
        sim_fail(sim, "row %u is revoked, although %u readers keep it", row, version->n_kept);
    }
    version->readable = false;
    version->n_kept = 0;
}

void readers_act(struct sim *sim, const struct cst_action *a)
{
    if (a->kind == CST_ACT_VERSION) {
        begin(sim, a->version.row, a->version.step);
    } else {
        end(sim, a->version.row);
    }
}

void readers_look(const struct sim *sim)
{
    for (uint32_t row = 0; row < 2; row++) {
        for (uint32_t c = 0; sim->versions[row].readable && c < sim->layout.n_chunks; c++) {
            if (model_is_trained(sim, c) && sim->versions[row].changes[c] !=
                                                memory_changes(&sim->memory, row_of(sim, row), c)) {
                sim_fail(sim, "chunk %u is written in row %u, which is readable", c, row);
            }
        }
    }
}

static void tell(struct sim *sim, enum cst_event_kind kind, uint32_t row)
{
    sim_event(sim, (struct cst_event){.kind = kind, .weight_row = row});
}

void readers_turn(struct sim *sim)
{
    uint32_t row = sim_below(sim, 2);
    struct version *version = &sim->versions[row];

    if (version->n_kept > 0 && sim_chance(sim, 4000)) {
        version->n_kept--;
        tell(sim, CST_EV_UNKEEP, row);
    } else if (version->n_kept < 3 && cst_core_may_keep(sim->core, row) && sim_chance(sim, 300)) {
        version->n_kept++;
        tell(sim, CST_EV_KEEP, row);
    }
}

bool readers_leave(struct sim *sim)
{
    bool any = sim->versions[0].n_kept > 0 || sim->versions[1].n_kept > 0;

    for (uint32_t row = 0; row < 2; row++) {
        while (sim->versions[row].n_kept > 0) {
            sim->versions[row].n_kept--;
            tell(sim, CST_EV_UNKEEP, row);
        }
    }
    return any;
}
