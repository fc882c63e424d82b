/* SPDX-License-Identifier: Apache-2.0 */
/* Totals of all runs: kinds of jobs, and counts of what happened. */
#include "tests/sim/sim.h"

static bool has_gpu(const struct sim *sim)
{
    for (uint32_t rank = 0; rank < sim->world; rank++) {
        if (sim->memory.pools[rank].tier != 0) {
            return true;
        }
    }
    return false;
}

void totals_add_kinds(struct sim_totals *totals, const struct sim *sim)
{
    bool frozen = false;
    bool base = false;
    bool fp32 = false;
    bool muon = false;

    for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
        frozen = frozen || !model_is_trained(sim, c);
        base = base || model_is_base(sim, c);
        muon = muon || sim->layout.chunks[c].muon;
        fp32 = fp32 || (model_is_trained(sim, c) && model_is_fp32(sim, c));
    }
    totals->gpu_runs += has_gpu(sim);
    totals->group_runs += sim->model.n_groups > 1;
    totals->frozen_runs += frozen;
    totals->base_runs += base;
    totals->class_runs += sim->layout.n_classes > 1;
    totals->versions += sim->n_versions;
    totals->two_runs += sim->two_rows && sim->overlap == CST_OVERLAP_COMMIT;
    totals->early_runs += sim->overlap == CST_OVERLAP_EARLY;
    totals->delayed_runs += sim->overlap == CST_OVERLAP_DELAYED;
    totals->over_runs += sim->grad_over;
    totals->micro_runs += sim->micro_batches > 1;
    totals->fp32_runs += fp32;
    totals->muon_runs += muon;
}

void totals_add(struct sim_totals *totals, const struct sim *sim,
                const struct cst_core_stats *stats)
{
    totals->turns += sim->n_turns;
    totals->deaths += sim->n_deaths;
    totals->crossing += sim->n_crossing;
    totals->fills += sim->n_fills;
    totals->landed += sim->n_landed;
    totals->shared += sim->n_shared;
    totals->gathered += sim->n_gathered;
    totals->early += sim->n_early;
    totals->replaces += sim->n_replaces;
    totals->lost += sim->n_lost;
    totals->lost_sums += sim->n_lost_sums;
    totals->lost_ranks += sim->n_lost_ranks;
    totals->moved += sim->n_moved;
    totals->lent += stats->n_lent_updates;
    totals->recalled += sim->n_recalled;
    totals->muon_nodes += sim->n_muon_nodes;
    totals->muon_reservations += sim->n_muon_reservations;
    totals->given_up += stats->n_reservations_given_up;
    totals->ahead += sim->n_ahead;
    totals->fused += sim->n_fused;
    totals->dropped += stats->n_dropped;
    totals->made += sim->n_made;
    totals->through += sim->n_through;
    totals->idle += sim->n_idle;
    totals->redone += sim->n_redone;
    totals->kept += sim->n_kept;
    totals->device_runs += sim->has_devices;
    totals->slow += sim->n_slow;
    totals->pauses += sim->n_pauses;
    totals->released += sim->n_released;
}
