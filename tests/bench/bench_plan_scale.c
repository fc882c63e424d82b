/* SPDX-License-Identifier: Apache-2.0 */
/* plan_scale: the time and memory of planning OPT-175B on 64 ranks with all searches, and the time
 * of planning a model of 65 536 tensors of four sizes where the plan chooses the states in device
 * memory. Reports medians of processor time: the planner has one thread and does not wait, and time
 * that other processes take from it is not its own.
 *
 * Usage: bench_plan_scale [--json FILE] */
#include "offload/plan/plan.h"
#include "offload/plan/preset.h"
#include "tests/bench/timing.h"
#include "tests/lib/declare.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { RUNS = 5, MANY = 65536, MANY_RUNS = 1 };

static void die(const char *what)
{
    (void)fprintf(stderr, "bench_plan_scale: %s\n", what);
    exit(1);
}

/* Processor time of this process, in seconds. */
static double used(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double plan(void)
{
    const struct cst_plan_budget budget = {.device_bytes = 80000000000,
                                           .host_bytes = CST_PLAN_NO_LIMIT};
    const struct cst_preset_options options = {.world = 64, .batch = 1, .recompute = true};
    double before = used();
    struct cst_plans plans;
    struct cst_rates rates;
    struct cst_model model;
    struct cst_err err;
    const struct cst_plan_config config = {.model = &model,
                                           .world = 64,
                                           .budget = &budget,
                                           .rates = &rates,
                                           .micro_batches = 1,
                                           .recompute = true};

    cst_rates_a100(&rates, 64);
    cst_model_init(&model);
    if (cst_preset_declare(&model, cst_preset_find("opt-175b"), &options, &err) != CST_OK ||
        cst_plan_search(&plans, &config, &err) != CST_OK) {
        die(err.text);
    }
    cst_model_close(&model);
    return used() - before;
}

/* Time of a plan for a model of operators with one tensor each. */
static double plan_many(void)
{
    static const int64_t sizes[] = {1000, 10000, 50000, 200000};
    const struct cst_plan_budget budget = {.device_bytes = 20000000000,
                                           .host_bytes = CST_PLAN_NO_LIMIT};
    double before;
    struct cst_plans plans;
    struct cst_rates rates;
    struct cst_model model;
    struct cst_err err;
    const struct cst_plan_config config = {.model = &model,
                                           .world = 1,
                                           .budget = &budget,
                                           .rates = &rates,
                                           .micro_batches = 1,
                                           .device_update_bytes = CST_PLAN_DEVICE_UPDATE_AUTO,
                                           .device_states = CST_PLAN_DEVICE_UPDATE_AUTO,
                                           .max_events = 200000};

    cst_rates_a100(&rates, 1);
    cst_model_init(&model);
    for (uint32_t t = 0; t < bench_sized(MANY, 256); t++) {
        char name[32];

        (void)snprintf(name, sizeof name, "t%" PRIu32, t);
        if (declare_tensor(&model, name, &sizes[t % 4], 1, 1, 1, &err) != CST_OK ||
            cst_model_operator(&model, name, &t, 1, NULL, &err) != CST_OK) {
            die(err.text);
        }
    }
    before = used();
    if (cst_plan_search(&plans, &config, &err) != CST_OK) {
        die(err.text);
    }
    before = used() - before;
    cst_model_close(&model);
    return before;
}

static void tell(FILE *file, const char *name, double value, const char *unit, double goal,
                 int runs)
{
    printf("%s: %.3f %s\n", name, value, unit);
    if (file != NULL) {
        (void)fprintf(file,
                      "{\"name\": \"%s\", \"value\": %.3f, \"unit\": \"%s\", \"yardstick\": %.0f, "
                      "\"ratio\": %.3f, \"runs\": %d}\n",
                      name, value, unit, goal, value / goal, runs);
    }
}

int main(int argc, char **argv)
{
    const char *json = argc == 3 && strcmp(argv[1], "--json") == 0 ? argv[2] : NULL;
    FILE *file = json == NULL ? NULL : fopen(json, "ae");
    unsigned runs = bench_sized(RUNS, 1);
    double seconds[RUNS];
    struct rusage usage;

    if ((argc != 1 && json == NULL) || (json != NULL && file == NULL)) {
        die("usage: bench_plan_scale [--json FILE]");
    }
    for (unsigned i = 0; i < runs; i++) {
        seconds[i] = plan();
    }
    bench_sort(seconds, runs);
    (void)getrusage(RUSAGE_SELF, &usage);
    tell(file, "plan_opt175b_s", seconds[runs / 2], "s", 2, RUNS);
    tell(file, "plan_opt175b_mb", (double)usage.ru_maxrss / 1024, "MiB", 200, RUNS);
    for (unsigned i = 0; i < MANY_RUNS; i++) {
        seconds[i] = plan_many();
    }
    bench_sort(seconds, MANY_RUNS);
    tell(file, "plan_many_s", seconds[MANY_RUNS / 2], "s", 5, MANY_RUNS);
    return file == NULL || fclose(file) == 0 ? 0 : 1;
}
