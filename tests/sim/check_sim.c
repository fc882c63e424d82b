/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's main program. --seed=N is the first seed, --runs=N the number of runs, --steps=N
 * the number of steps to commit in each run; --verbose prints every event. Without --nodes the runs
 * are followed by short simulations of clusters: many nodes, and one node with many chunks.
 * --nodes=N --ranks=N --chunks=N --micro-batches=N --deaths=N (per step) --overlap=N (0 update at
 * the commit, 1 early, 2 delayed) simulates only the given cluster. Without any option the program
 * also fails if no run lost an accelerator. */
#include "proto/optimizers.h"
#include "tests/sim/cluster.h"
#include "tests/sim/sim.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* False, with a message, if @n is 0. Used where the seeds are fixed and @what must therefore
 * occur. */
static bool occurred(const char *what, uint64_t n)
{
    if (n == 0) {
        fprintf(stderr, "check_sim: no run had %s: what becomes of them is not tested\n", what);
    }
    return n > 0;
}

static bool losses_occurred(const struct sim_totals *totals)
{
    bool sums = occurred("sums that were lost", totals->lost_sums);
    bool ranks = occurred("workers that lost their accelerator", totals->lost_ranks);
    bool moved = occurred("pools that moved", totals->moved);
    bool landed = occurred("gradients that were copied to landings", totals->landed) &&
                  occurred("sums of landed gradients of several ranks", totals->shared);
    bool fp32 = occurred("fp32 tensors", totals->fp32_runs);

    bool lent = occurred("updates in lent memory", totals->lent);
    bool recalled = occurred("commands that were recalled", totals->recalled);
    bool nodes = occurred("updates by Muon on nodes", totals->muon_nodes);
    bool reservations = occurred("updates by Muon on accelerators", totals->muon_reservations);

    bool slow = occurred("updates of states on an engine that only copies", totals->slow);
    bool released = occurred("pauses without pools", totals->released);
    bool idle = occurred("chunks without a gradient that were skipped", totals->idle);

    return sums && ranks && moved && landed && fp32 && lent && recalled && nodes && reservations &&
           slow && idle && released;
}

/* Run @runs seeds. False if @fixed is set and a kind of loss that must be tested did not occur. */
static bool seeds(struct sim_options options, uint64_t runs, bool fixed)
{
    struct sim_totals totals = {0};

    printf("sim: seeds %" PRIu64 "..%" PRIu64 ", %" PRIu64 " steps each\n", options.seed,
           options.seed + runs - 1, options.n_steps);
    for (uint64_t i = 0; i < runs; i++) {
        sim_run(&options, &totals);
        options.seed++;
    }
    printf("sim: all well: %" PRIu64 " turns, %" PRIu64 " deaths, %" PRIu64
           " runs with GPUs, %" PRIu64 " commands waited for another engine's, %" PRIu64
           " copies by workers, %" PRIu64 " of parts, %" PRIu64 " gradients landed\n",
           totals.turns, totals.deaths, totals.gpu_runs, totals.crossing, totals.fills,
           totals.gathered, totals.landed);
    printf("sim: runs with groups %" PRIu64 ", frozen chunks %" PRIu64 ", a base %" PRIu64
           ", size classes %" PRIu64 ", micro-batches %" PRIu64 ", fp32 tensors %" PRIu64
           "; %" PRIu64 " contributions added early; gradients over weights %" PRIu64 ", %" PRIu64
           " weights made from masters\n",
           totals.group_runs, totals.frozen_runs, totals.base_runs, totals.class_runs,
           totals.micro_runs, totals.fp32_runs, totals.early, totals.over_runs, totals.made);
    printf("sim: early runs %" PRIu64 ", delayed ones %" PRIu64 "; %" PRIu64
           " updates before their commit, %" PRIu64 " of them with the sum, %" PRIu64
           " gradients dropped\n",
           totals.early_runs, totals.delayed_runs, totals.ahead, totals.fused, totals.dropped);
    printf("sim: %" PRIu64 " versions for readers, %" PRIu64
           " runs with two weight rows for them\n",
           totals.versions, totals.two_runs);
    printf("sim: %" PRIu64 " copies to and from reservations, %" PRIu64
           " gradients kept there, %" PRIu64 " commands done twice, %" PRIu64
           " in place of others; states on accelerators %" PRIu64
           ", updates of those on an engine that"
           " only copies %" PRIu64 "; %" PRIu64 " updates lost with their engines, %" PRIu64
           " reservations given up; %" PRIu64 " sums lost, %" PRIu64
           " workers without their accelerator, %" PRIu64 " pools moved\n",
           totals.through, totals.kept, totals.redone, totals.replaces, totals.device_runs,
           totals.slow, totals.lost, totals.given_up, totals.lost_sums, totals.lost_ranks,
           totals.moved);
    printf("sim: %" PRIu64 " updates in lent memory, %" PRIu64
           " commands there recalled; runs with Muon %" PRIu64 ", its updates on nodes %" PRIu64
           ", on accelerators %" PRIu64 "; %" PRIu64 " chunks without a gradient skipped\n",
           totals.lent, totals.recalled, totals.muon_runs, totals.muon_nodes,
           totals.muon_reservations, totals.idle);
    printf("sim: %" PRIu64 " pauses, %" PRIu64 " of them without pools\n", totals.pauses,
           totals.released);
    return !fixed || losses_occurred(&totals);
}

static void cluster(struct cluster_options options)
{
    struct cluster_totals totals;

    printf("cluster: seed %" PRIu64 ": %u nodes of %u ranks, %u chunks, %" PRIu64
           " steps of %u, updates %s\n",
           options.seed, options.n_nodes, options.n_ranks, options.n_chunks, options.n_steps,
           options.micro_batches, cst_overlap_names[options.overlap]);
    cluster_run(&options, &totals);
    printf("cluster: all well: %" PRIu64 " events, %" PRIu64 " commands, %" PRIu64
           " deaths, %.3f s of virtual time; %" PRIu64 " early updates, %" PRIu64
           " of them with the sum, %" PRIu64 " gradients dropped\n",
           totals.n_events, totals.n_commands, totals.n_deaths, (double)totals.ns / 1e9,
           totals.n_early, totals.n_fused, totals.n_dropped);
}

static bool number(const char *name, uint64_t least, uint64_t most, uint64_t *out)
{
    char *end;

    *out = strtoull(optarg, &end, 0);
    if (end == optarg || *end != '\0' || *out < least || *out > most) {
        fprintf(stderr, "check_sim: --%s is %" PRIu64 " to %" PRIu64 "\n", name, least, most);
        return false;
    }
    return true;
}

enum { SEED, RUNS, STEPS, NODES, RANKS, CHUNKS, MICRO, DEATHS, OVERLAP, N_NUMBERS };

static const struct {
    uint64_t least, most;
} limits[N_NUMBERS] = {
    [SEED] = {0, UINT64_MAX}, [RUNS] = {0, UINT64_MAX},   [STEPS] = {1, 1u << 20},
    [NODES] = {1, 1u << 16},  [RANKS] = {1, CST_SET_MAX}, [CHUNKS] = {1, 1u << 20},
    [MICRO] = {1, 16},        [DEATHS] = {0, UINT32_MAX}, [OVERLAP] = {0, CST_OVERLAP_COUNT - 1},
};

/* Store the numbers of the command line in @v, which holds the defaults. */
static bool parse(int argc, char **argv, uint64_t *v, bool *verbose)
{
    static const struct option long_options[] = {
        {"seed", required_argument, NULL, SEED},
        {"runs", required_argument, NULL, RUNS},
        {"steps", required_argument, NULL, STEPS},
        {"nodes", required_argument, NULL, NODES},
        {"ranks", required_argument, NULL, RANKS},
        {"chunks", required_argument, NULL, CHUNKS},
        {"micro-batches", required_argument, NULL, MICRO},
        {"deaths", required_argument, NULL, DEATHS},
        {"overlap", required_argument, NULL, OVERLAP},
        {"verbose", no_argument, NULL, 'v'},
        {NULL, 0, NULL, 0},
    };
    int i;
    int c;

    while ((c = getopt_long(argc, argv, "v", long_options, &i)) != -1) {
        if (c == 'v') {
            *verbose = true;
        } else if (c >= N_NUMBERS ||
                   !number(long_options[c].name, limits[c].least, limits[c].most, &v[c])) {
            return false;
        }
    }
    return true;
}

/* Simulate many nodes with each overlap of updates, and one node with many chunks. */
static void clusters(uint64_t seed)
{
    cluster((struct cluster_options){.seed = seed,
                                     .n_nodes = 32,
                                     .n_ranks = 64,
                                     .n_chunks = 8,
                                     .micro_batches = 2,
                                     .n_deaths = 8,
                                     .n_steps = 2});
    /* More ranks than a command adds contributions. */
    cluster((struct cluster_options){.seed = seed,
                                     .n_nodes = 1,
                                     .n_ranks = 300,
                                     .n_chunks = 8,
                                     .micro_batches = 1,
                                     .n_deaths = 3,
                                     .n_steps = 3});
    for (int overlap = CST_OVERLAP_EARLY; overlap < CST_OVERLAP_COUNT; overlap++) {
        for (uint32_t ranks = 2; ranks <= 8; ranks += 6) {
            cluster((struct cluster_options){.seed = seed,
                                             .n_nodes = 16,
                                             .n_ranks = ranks,
                                             .n_chunks = 16,
                                             .micro_batches = ranks > 2 ? 2 : 1,
                                             .overlap = (enum cst_overlap)overlap,
                                             .n_deaths = 4,
                                             .n_steps = 6});
        }
    }
    cluster((struct cluster_options){.seed = seed,
                                     .n_nodes = 1,
                                     .n_ranks = 1,
                                     .n_chunks = 100000,
                                     .micro_batches = 1,
                                     .n_steps = 1});
}

int main(int argc, char **argv)
{
    uint64_t v[N_NUMBERS] = {
        [SEED] = 1, [RUNS] = 200, [STEPS] = 8, [RANKS] = 8, [CHUNKS] = 16, [MICRO] = 2};
    bool verbose = false;

    if (!parse(argc, argv, v, &verbose)) {
        return EXIT_FAILURE;
    }
    if (v[NODES] > 0) {
        cluster((struct cluster_options){.seed = v[SEED],
                                         .n_nodes = (uint32_t)v[NODES],
                                         .n_ranks = (uint32_t)v[RANKS],
                                         .n_chunks = (uint32_t)v[CHUNKS],
                                         .micro_batches = (uint32_t)v[MICRO],
                                         .n_deaths = (uint32_t)v[DEATHS],
                                         .overlap = (enum cst_overlap)v[OVERLAP],
                                         .n_steps = v[STEPS]});
        return EXIT_SUCCESS;
    }
    if (!seeds((struct sim_options){.seed = v[SEED], .n_steps = v[STEPS], .verbose = verbose},
               v[RUNS], argc == 1)) {
        return EXIT_FAILURE;
    }
    clusters(v[SEED]);
    return EXIT_SUCCESS;
}
