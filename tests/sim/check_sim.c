/* The simulator's main: --seed=N the first seed, --runs=N how many, --steps=N to commit in each,
 * --verbose every event. */
#include "tests/sim/sim.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    static const struct option long_options[] = {
        {"seed", required_argument, NULL, 's'},
        {"runs", required_argument, NULL, 'r'},
        {"steps", required_argument, NULL, 'n'},
        {"verbose", no_argument, NULL, 'v'},
        {NULL, 0, NULL, 0},
    };
    struct sim_options options = {.seed = 1, .n_steps = 8};
    uint64_t runs = 200;
    struct sim_totals totals = {0};
    int c;

    while ((c = getopt_long(argc, argv, "s:r:n:v", long_options, NULL)) != -1) {
        if (c == 's') {
            options.seed = strtoull(optarg, NULL, 0);
        } else if (c == 'r') {
            runs = strtoull(optarg, NULL, 0);
        } else if (c == 'n') {
            options.n_steps = strtoull(optarg, NULL, 0);
        } else if (c == 'v') {
            options.verbose = true;
        } else {
            fprintf(stderr, "usage: check_sim [--seed=N] [--runs=N] [--steps=N] [--verbose]\n");
            return EXIT_FAILURE;
        }
    }
    printf("sim: seeds %" PRIu64 "..%" PRIu64 ", %" PRIu64 " steps each\n", options.seed,
           options.seed + runs - 1, options.n_steps);
    for (uint64_t i = 0; i < runs; i++) {
        sim_run(&options, &totals);
        options.seed++;
    }
    printf("sim: all well: %" PRIu64 " turns, %" PRIu64 " deaths, %" PRIu64
           " runs with GPUs, %" PRIu64 " commands waited for another engine's, %" PRIu64
           " copies by workers\n",
           totals.turns, totals.deaths, totals.gpu_runs, totals.crossing, totals.fills);
    printf("sim: runs with groups %" PRIu64 ", frozen chunks %" PRIu64 ", a base %" PRIu64
           ", size classes %" PRIu64 ", micro-batches %" PRIu64 "; %" PRIu64
           " contributions added early\n",
           totals.group_runs, totals.frozen_runs, totals.base_runs, totals.class_runs,
           totals.micro_runs, totals.early);
    return EXIT_SUCCESS;
}
