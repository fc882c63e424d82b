/* SPDX-License-Identifier: Apache-2.0 */
/* Simulates jobs on several machines (tests/sim/machines.h). --seed=N is the first seed, --runs=N
 * the number of runs, --steps=N the number of steps of each, --machines=N that of machines, which
 * are otherwise drawn; --verbose prints every event. Without --runs the environment variable
 * CST_TEST_MACHINES is the number of runs. */
#include "tests/sim/machines.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { SEED, RUNS, STEPS, MACHINES, N_NUMBERS };

static bool parse(int argc, char **argv, uint64_t *v, bool *verbose)
{
    static const struct option long_options[] = {
        {"seed", required_argument, NULL, SEED},   {"runs", required_argument, NULL, RUNS},
        {"steps", required_argument, NULL, STEPS}, {"machines", required_argument, NULL, MACHINES},
        {"verbose", no_argument, NULL, 'v'},       {NULL, 0, NULL, 0},
    };
    int c;

    while ((c = getopt_long(argc, argv, "v", long_options, NULL)) != -1) {
        if (c == 'v') {
            *verbose = true;
        } else if (c >= N_NUMBERS) {
            return false;
        } else {
            v[c] = strtoull(optarg, NULL, 0);
        }
    }
    if (v[STEPS] == 0 || v[STEPS] > MACHINES_STEPS || v[MACHINES] > MACHINES_MOST) {
        fprintf(stderr, "check_machines: --steps is 1 to %d, --machines 0 to %d\n", MACHINES_STEPS,
                MACHINES_MOST);
        return false;
    }
    return true;
}

/* False, with a message, if something did not happen in any of the runs that `make check` makes. */
static bool all_occurred(const struct machines_totals *t)
{
    const struct {
        const char *what;
        uint64_t n;
    } counts[] = {
        {"ranks that died", t->deaths},
        {"ranks that hung up", t->hangups},
        {"ranks that were shut out", t->shut_out},
        {"machines that were killed", t->kills},
        {"machines that were lost for good", t->losses},
        {"machines that took their places", t->replaced},
        {"links that were cut", t->cuts},
        {"transfers that failed", t->faults},
        {"epochs without a machine", t->without},
        {"steps that were skipped", t->skipped},
        {"jobs that failed", t->fatal},
        {"bytes as by the formula", t->exact},
        {"versions for readers", t->versions},
        {"copies of states", t->copies},
        {"fp32 partials", t->fp32},
        {"one machine alone", t->alone},
        {"fp32 tensors", t->tensors},
        {"tensors of one rank", t->single},
        {"reads", t->reads},
        {"tensors without a gradient that were skipped", t->idle},
        {"tensors with a gradient of one rank alone", t->lone},
        {"gradients that were discarded", t->discards},
        {"gradients that a rank alone has discarded", t->lies},
        {"models with stages on several machines", t->staged},
        {"rank blocks of such models, several of which are on a machine", t->several},
        {"tensors of several stages", t->tied},
        {"ranks that came back to the attempt in which they had ended", t->rejoined},
    };
    bool all = true;

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (counts[i].n == 0) {
            fprintf(stderr, "check_machines: no run had %s\n", counts[i].what);
            all = false;
        }
    }
    return all;
}

int main(int argc, char **argv)
{
    const char *runs = getenv("CST_TEST_MACHINES");
    uint64_t v[N_NUMBERS] = {[SEED] = 1, [RUNS] = 150, [STEPS] = 5};
    struct machines_totals totals = {0};
    bool verbose = false;

    v[RUNS] = runs != NULL ? strtoull(runs, NULL, 0) : v[RUNS];
    if (!parse(argc, argv, v, &verbose)) {
        return EXIT_FAILURE;
    }
    printf("machines: seeds %" PRIu64 "..%" PRIu64 ", %" PRIu64 " steps each\n", v[SEED],
           v[SEED] + v[RUNS] - 1, v[STEPS]);
    for (uint64_t i = 0; i < v[RUNS]; i++) {
        struct machines_options options = {.seed = v[SEED] + i,
                                           .n_machines = (uint32_t)v[MACHINES],
                                           .n_steps = v[STEPS],
                                           .verbose = verbose};

        machines_run(&options, &totals);
    }
    printf("machines: all well: %" PRIu64 " runs, %" PRIu64 " events, %" PRIu64
           " commands, %" PRIu64 " messages, %" PRIu64 " reads, %" PRIu64
           " bytes copied, as by the formula in %" PRIu64 " runs; %" PRIu64
           " versions for readers\n",
           totals.runs, totals.events, totals.commands, totals.messages, totals.reads, totals.bytes,
           totals.exact, totals.versions);
    printf("machines: %" PRIu64 " ranks died or hung up, of which %" PRIu64 " hung up and %" PRIu64
           " were shut out, %" PRIu64 " machines were killed, %" PRIu64 " lost for good, %" PRIu64
           " of them replaced, %" PRIu64 " links cut, %" PRIu64 " transfers failed, %" PRIu64
           " epochs without a machine; ranks began %" PRIu64 " attempts in vain; %" PRIu64
           " steps skipped, %" PRIu64 " jobs failed; runs with copies %" PRIu64
           ", with fp32 partials %" PRIu64 ", on one machine %" PRIu64 "; fp32 tensors %" PRIu64
           ", tensors of one rank of each machine %" PRIu64 "\n",
           totals.deaths, totals.hangups, totals.shut_out, totals.kills, totals.losses,
           totals.replaced, totals.cuts, totals.faults, totals.without, totals.interrupted,
           totals.skipped, totals.fatal, totals.copies, totals.fp32, totals.alone, totals.tensors,
           totals.single);
    printf("machines: %" PRIu64 " runs skipped tensors without a gradient, %" PRIu64
           " times on several machines, with %" PRIu64 " messages; %" PRIu64
           " times one rank alone had a gradient, %" PRIu64 " times it was discarded, %" PRIu64
           " times by a rank alone\n",
           totals.skips, totals.idle, totals.unused, totals.lone, totals.discards, totals.lies);
    printf("machines: %" PRIu64 " runs on several machines had stages, with several rank blocks on "
           "one of them %" PRIu64 ", with a tensor of several stages %" PRIu64
           "; ranks did %" PRIu64 " units, and came back to their attempt %" PRIu64 " times\n",
           totals.staged, totals.several, totals.tied, totals.units, totals.rejoined);
    return argc > 1 || runs != NULL || all_occurred(&totals) ? EXIT_SUCCESS : EXIT_FAILURE;
}
