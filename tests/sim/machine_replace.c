/* SPDX-License-Identifier: Apache-2.0 */
/* Machines in the places of lost ones. */
#include "tests/sim/machines.h"

#include <inttypes.h>

void replace_soon(struct machines *sim, uint32_t m)
{
    moments_push(&sim->moments, (struct moment){.at = sim->now + 1 + machines_delay(sim, 400000),
                                                .kind = MOMENT_REPLACE,
                                                .node = m});
}

/* True if no member can begin or commit a step before the ranks of the lost machine are back, and
 * all updates are done. */
static bool is_still(const struct machines *sim)
{
    for (uint32_t m = 0; m < sim->n; m++) {
        const struct machine *at = &sim->machines[m];
        struct cst_core_stats stats;

        if (at->core == NULL && !at->lost) {
            return false;
        }
        if ((sim->members >> m & 1) == 0) {
            continue;
        }
        cst_core_stats(at->core, &stats);
        if (at->epoch != sim->epoch || !cst_core_awaits_ranks(at->core) || stats.closing ||
            stats.commands_in_flight > 0) {
            return false;
        }
    }
    return sim->members != 0;
}

/* What the members have is what the machine will restore. */
static void check_members(const struct machines *sim)
{
    const uint64_t step = sim->restored.counters.step;

    for (uint32_t m = 0; m < sim->n; m++) {
        const struct machine *at = &sim->machines[m];

        for (uint32_t c = 0; (sim->members >> m & 1) != 0 && c < sim->n_chunks; c++) {
            if (!values_has_weights(sim, m, c, step) ||
                (values_trained(sim, c) && !at->layout.chunks[c].away &&
                 at->states[c].value != sim->states[step][c])) {
                machines_fail(sim, "machine %u does not have chunk %u of step %" PRIu64, m, c,
                              step);
            }
        }
    }
}

void replace_machine(struct machines *sim, uint32_t m)
{
    const uint32_t first = (uint32_t)__builtin_ctzll(sim->members | UINT64_C(1) << 63);

    if (sim->failed || sim->members == 0) {
        return; /* It stays lost. */
    }
    if (!is_still(sim)) {
        replace_soon(sim, m);
        return;
    }
    sim->totals->replaced++;
    cst_core_record(sim->machines[first].core, &sim->restored);
    cst_core_missed_steps(sim->machines[first].core, sim->restored_missed);
    check_members(sim);
    sim->machines[m].lost = false;
    sim->machines[m].restores = true;
    sim->machines[m].restored_mark = sim->restored.counters.adam_step;
    job_renew(sim, m);
    job_write(sim, m);
    sim->machines[m].n_writes++; /* The RESTORE. */
}

void replace_written(struct machines *sim, uint32_t m)
{
    struct machine *at = &sim->machines[m];

    if (at->restores && at->n_writes == 1) {
        if (sim->skips) {
            machines_feed(sim, m,
                          (struct cst_event){.kind = CST_EV_MISSED,
                                             .n_elems = sim->n_chunks,
                                             .missed = sim->restored_missed});
        }
        machines_feed(
            sim, m,
            (struct cst_event){.kind = CST_EV_RESTORE,
                               .tag = ++sim->tag << MACHINES_TAG_SHIFT | MACHINES_TAG_WRITE,
                               .counters = sim->restored.counters,
                               .record = &sim->restored});
    } else if (at->restores && at->n_writes == 0) {
        at->restores = false;
        sim->members |= UINT64_C(1) << m;
        machines_new_epoch(sim);
    }
}
