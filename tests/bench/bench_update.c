/* SPDX-License-Identifier: Apache-2.0 */
/* update_vs_pass and update_vs_three_passes: the fused update of a chunk as the engine runs it,
 * compared with the fastest plain pass over equally many bytes, and with upcast, step and downcast
 * as three passes. update_split_vs_pass28: the update of split masters, which moves 26 bytes,
 * compared with the plain pass over 28. update_FORM: other optimizers and formats of moments,
 * compared with AdamW's time in proportion to their bytes. update_ranks_N: updates that sum
 * contributions, compared with one contribution. All are measured in turns in one process.
 *
 * With --turns, it takes turns with other programs instead: for each line of the standard input, it
 * makes an update with whole master weights and one with split master weights, and prints the
 * nanoseconds per parameter of both. */
#include "tests/bench/pass.h"
#include "tests/bench/team.h"
#include "tests/bench/timing.h"
#include "tests/bench/update_job.h"

#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#define MAX_PASSES 18 /* number of passes in all three tables */
#define TRIAL_RUNS 5  /* runs of each pass in the choice of the fastest */
#define MAX_RUNS 1000

struct options {
    size_t params;
    unsigned threads;
    unsigned runs;
    bool turns;       /* take turns with other programs */
    const char *json; /* path of the result; NULL: no file */
};

struct bench {
    const struct options *options;
    const struct cst_pass *pass; /* the pass that is being run */
    cst_pass_step_fn step;
    /* Scalars of the job's hyper-parameters, for the separate step. */
    struct cst_update_scalars scalars;
    struct cst_update_job job;
};

/* One measurement: what is run, and its time per parameter. */
struct figure {
    char name[64];
    const struct cst_pass *pass; /* NULL: the measurement is not a plain pass */
    double (*measure)(struct bench *bench, struct cst_team *team);
    struct cst_update_way way; /* options of measure_update */
    const char *json;          /* name in the JSON file; NULL: not a result of its own */
    double ns[MAX_RUNS];       /* time per parameter of each run */
};

static void die(const char *what)
{
    fprintf(stderr, "bench_update: %s: %s\n", what, strerror(errno));
    exit(EXIT_FAILURE);
}

static void usage(FILE *to)
{
    fprintf(to, "usage: bench_update [--params N] [--threads N] [--runs N] [--json FILE]\n"
                "       bench_update [--params N] [--threads N] --turns\n");
}

/* Parse a number from 1 to @max. Ends the program on an error. */
static unsigned long long parse(const char *option, const char *words, unsigned long long max)
{
    char *end;
    unsigned long long n;

    errno = 0;
    n = strtoull(words, &end, 10);
    if (errno != 0 || *end != '\0' || n < 1 || n > max) {
        fprintf(stderr, "bench_update: --%s %s: not a number from 1 to %llu\n", option, words, max);
        exit(2);
    }
    return n;
}

static void parse_options(struct options *options, int argc, char **argv)
{
    static const struct option names[] = {
        {"params", required_argument, NULL, 'p'},
        {"threads", required_argument, NULL, 't'},
        {"runs", required_argument, NULL, 'r'},
        {"json", required_argument, NULL, 'j'},
        {"turns", no_argument, NULL, 'u'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int c;

    *options = (struct options){.params = 100000000, .threads = cst_team_cpus(), .runs = 9};
    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (c) {
        case 'p':
            options->params = parse("params", optarg, 1ull << 36);
            break;
        case 't':
            options->threads = (unsigned)parse("threads", optarg, 1024);
            break;
        case 'r':
            options->runs = (unsigned)parse("runs", optarg, MAX_RUNS);
            break;
        case 'j':
            options->json = optarg;
            break;
        case 'u':
            options->turns = true;
            break;
        case 'h':
            usage(stdout);
            exit(EXIT_SUCCESS);
        default:
            usage(stderr);
            exit(2);
        }
    }
    if (optind != argc) {
        usage(stderr);
        exit(2);
    }
    options->params = (options->params + 31) / 32 * 32;
}

static void pass_share(void *arg, unsigned index)
{
    const struct bench *bench = arg;
    const struct cst_rows *rows = &bench->job.work.rows;
    size_t first;
    size_t n;

    cst_update_job_share(&bench->job, index, &first, &n);
    bench->pass->run(
        &(struct cst_pass_rows){.n = n,
                                .grad = rows->grad + first,
                                .weight = rows->weight + first,
                                .wide = bench->job.wide + first,
                                .master = bench->job.master + first,
                                .exp_avg = (float *)rows->moments[0].values + first,
                                .exp_avg_sq = (float *)rows->moments[1].values + first});
}

static double measure_pass(struct bench *bench, struct cst_team *team)
{
    return cst_team_run(team, pass_share, bench);
}

static void update_share(void *arg, unsigned index)
{
    struct bench *bench = arg;
    size_t first;
    size_t n;

    cst_update_job_share(&bench->job, index, &first, &n);
    bench->job.updated[index] =
        cst_tile_update_range(&bench->job.work, &bench->job.hyper, first / CST_TILE_ELEMS,
                              cst_table_n_tiles(n), &bench->job.undo[index])
            .n_elems;
}

static double measure_update(struct bench *bench, struct cst_team *team)
{
    uint64_t updated = 0;
    double s;

    bench->job.work.mark++;
    s = cst_team_run(team, update_share, bench);
    for (unsigned i = 0; i < bench->options->threads; i++) {
        updated += bench->job.updated[i];
    }
    if (updated != bench->options->params) {
        fprintf(stderr, "bench_update: updated %llu of %zu\n", (unsigned long long)updated,
                bench->options->params);
        exit(EXIT_FAILURE);
    }
    return s;
}

static void upcast_share(void *arg, unsigned index)
{
    const struct bench *bench = arg;
    size_t first;
    size_t n;

    cst_update_job_share(&bench->job, index, &first, &n);
    bench->job.work.kernels->upcast(n, bench->job.work.rows.grad + first, bench->job.wide + first);
}

static void step_share(void *arg, unsigned index)
{
    const struct bench *bench = arg;
    const struct cst_rows *rows = &bench->job.work.rows;
    size_t first;
    size_t n;

    cst_update_job_share(&bench->job, index, &first, &n);
    bench->step(&bench->scalars, n, bench->job.wide + first, bench->job.master + first,
                (float *)rows->moments[0].values + first, (float *)rows->moments[1].values + first);
}

static void downcast_share(void *arg, unsigned index)
{
    const struct bench *bench = arg;
    size_t first;
    size_t n;

    cst_update_job_share(&bench->job, index, &first, &n);
    bench->job.work.kernels->cast(n, bench->job.master + first,
                                  bench->job.work.rows.weight + first);
}

static double measure_upcast(struct bench *bench, struct cst_team *team)
{
    return cst_team_run(team, upcast_share, bench);
}

static double measure_step(struct bench *bench, struct cst_team *team)
{
    return cst_team_run(team, step_share, bench);
}

static double measure_downcast(struct bench *bench, struct cst_team *team)
{
    return cst_team_run(team, downcast_share, bench);
}

static double measure_three(struct bench *bench, struct cst_team *team)
{
    return measure_upcast(bench, team) + measure_step(bench, team) + measure_downcast(bench, team);
}

static double median(const double *values, unsigned n)
{
    double sorted[MAX_RUNS];

    memcpy(sorted, values, n * sizeof *values);
    return bench_median(sorted, n);
}

/* Append the passes of an instruction set to @n others, if this CPU supports it. Returns the new
 * number. */
static unsigned add_passes_of(struct figure *figures, unsigned n, const struct cst_pass *passes)
{
    for (; passes->name != NULL && cst_kernels_get(passes->isa) != NULL; passes++, n++) {
        snprintf(figures[n].name, sizeof figures[n].name, "pass: %s, %s", passes->isa,
                 passes->name);
        figures[n].pass = passes;
        figures[n].measure = measure_pass;
    }
    return n;
}

static unsigned add_passes(struct figure *figures)
{
    unsigned n = add_passes_of(figures, 0, cst_pass_ref);

#ifdef HAVE_X86_SIMD
    n = add_passes_of(figures, n, cst_pass_avx2);
    n = add_passes_of(figures, n, cst_pass_avx512);
#endif
    return n;
}

/* Choose the separate step with the instruction set of the best kernels. */
static void choose_step(struct bench *bench)
{
    bench->step = cst_pass_step_ref;
#ifdef HAVE_X86_SIMD
    if (cst_kernels_get("avx512") != NULL) {
        bench->step = cst_pass_step_avx512;
    } else if (cst_kernels_get("avx2") != NULL) {
        bench->step = cst_pass_step_avx2;
    }
#endif
}

static void append_json(const struct options *options, const char *name, double value,
                        double yardstick)
{
    FILE *file;

    if (options->json == NULL) {
        return;
    }
    file = fopen(options->json, "a");
    if (file == NULL ||
        fprintf(file,
                "{\"name\": \"%s\", \"value\": %.4f, \"unit\": \"ns/param\", \"yardstick\": %.4f, "
                "\"ratio\": %.3f, \"runs\": %u}\n",
                name, value, yardstick, value / yardstick, options->runs) < 0 ||
        fclose(file) != 0) {
        die(options->json);
    }
}

/* Print one line of the table. Returns the median. */
static double print_figure(const struct figure *figure, unsigned runs)
{
    double m = median(figure->ns, runs);
    double least = figure->ns[0];

    for (unsigned k = 1; k < runs; k++) {
        least = figure->ns[k] < least ? figure->ns[k] : least;
    }
    printf("%-52s %10.3f %10.3f %6u\n", figure->name, m, least, runs);
    return m;
}

/* Run @n measurements in turns, @runs times each, after one run that does not count. */
static void take_turns(struct bench *bench, struct cst_team *team, struct figure *figures,
                       unsigned n, unsigned runs)
{
    for (int run = -1; run < (int)runs; run++) {
        for (unsigned i = 0; i < n; i++) {
            double s;

            bench->pass = figures[i].pass;
            cst_update_job_set(&bench->job, &figures[i].way);
            s = figures[i].measure(bench, team);
            figures[i].ns[run < 0 ? 0 : run] = s * 1e9 / (double)bench->options->params;
        }
    }
}

/* Of @n passes, find the one with the least median in a few runs. It is then measured again, in
 * turns with the update, because the least of many noisy medians would be too good. */
static struct figure best_pass(struct bench *bench, struct cst_team *team, struct figure *passes,
                               unsigned n)
{
    unsigned best = 0;

    take_turns(bench, team, passes, n, TRIAL_RUNS);
    for (unsigned i = 0; i < n; i++) {
        double m = print_figure(&passes[i], TRIAL_RUNS);

        best = m < median(passes[best].ns, TRIAL_RUNS) ? i : best;
    }
    return passes[best];
}

/* Other forms of the update. The bytes of the others are compared with the first; forms with
 * contributions are compared with one another. */
static struct figure forms[] = {
    {.name = "adamw, moments fp32"},
    {.name = "adamw, moments bf16", .way = {.moments = CST_MOMENTS_BF16}, .json = "update_bf16"},
    {.name = "adamw, moments bf16, to nearest",
     .way = {.moments = CST_MOMENTS_BF16, .rounding = CST_ROUNDING_NEAREST},
     .json = "update_bf16_nearest"},
    {.name = "adamw, moments mx8", .way = {.moments = CST_MOMENTS_MX8}, .json = "update_mx8"},
    {.name = "adamw, moments mx8, to nearest",
     .way = {.moments = CST_MOMENTS_MX8, .rounding = CST_ROUNDING_NEAREST},
     .json = "update_mx8_nearest"},
    {.name = "adam, moments fp32", .way = {.optimizer = CST_OPTIMIZER_ADAM}, .json = "update_adam"},
    {.name = "lion, moment fp32", .way = {.optimizer = CST_OPTIMIZER_LION}, .json = "update_lion"},
    {.name = "lion, moment mx8",
     .way = {.optimizer = CST_OPTIMIZER_LION, .moments = CST_MOMENTS_MX8},
     .json = "update_lion_mx8"},
    {.name = "sgd, moment fp32", .way = {.optimizer = CST_OPTIMIZER_SGD}, .json = "update_sgd"},
    {.name = "adamw, sum of 1 in the update", .way = {.n_src = 1}},
    {.name = "adamw, sum of 2 in the update", .way = {.n_src = 2}, .json = "update_ranks_2"},
    {.name = "adamw, sum of 4 in the update", .way = {.n_src = 4}, .json = "update_ranks_4"},
};

/* Expected time of @form: the time with one contribution, or the first form's time in proportion to
 * the bytes. */
static double yardstick(const struct figure *form, double of_first, double of_one)
{
    return form->way.n_src > 1
               ? of_one
               : of_first * cst_update_job_bytes(&form->way) / cst_update_job_bytes(&forms[0].way);
}

static void run_forms(struct bench *bench, struct cst_team *team)
{
    const unsigned n = sizeof forms / sizeof forms[0], runs = bench->options->runs;
    double of_first, of_one = 0.0;

    for (unsigned i = 0; i < n; i++) {
        forms[i].measure = measure_update;
    }
    take_turns(bench, team, forms, n, runs);
    of_first = median(forms[0].ns, runs);
    printf("\n%-32s %8s %10s %10s %8s %10s %8s\n", "form of the update", "bytes", "median", "least",
           "GB/s", "yardstick", "ratio");
    for (unsigned i = 0; i < n; i++) {
        double m = median(forms[i].ns, runs), bytes = cst_update_job_bytes(&forms[i].way);
        double least = forms[i].ns[0], stick;

        for (unsigned k = 1; k < runs; k++) {
            least = forms[i].ns[k] < least ? forms[i].ns[k] : least;
        }
        of_one = forms[i].way.n_src == 1 ? m : of_one;
        stick = yardstick(&forms[i], of_first, of_one);
        printf("%-32s %8.3f %10.3f %10.3f %8.1f %10.3f %8.3f\n", forms[i].name, bytes, m, least,
               bytes / m, stick, m / stick);
        if (forms[i].json != NULL) {
            append_json(bench->options, forms[i].json, m, stick);
        }
    }
}

static void run_all(struct bench *bench, struct cst_team *team)
{
    static struct figure passes[MAX_PASSES];
    static struct figure figures[] = {
        {.name = "best pass again"},
        {.name = "update: fused, tiles with undo and marks", .measure = measure_update},
        {.name = "update: the same with split masters",
         .measure = measure_update,
         .way = {.masters = CST_MASTERS_SPLIT}},
        {.name = "three passes: upcast, step, downcast", .measure = measure_three},
        {.name = "  upcast alone", .measure = measure_upcast},
        {.name = "  step on fp32 gradients alone", .measure = measure_step},
        {.name = "  downcast alone", .measure = measure_downcast},
    };
    const struct options *options = bench->options;
    const unsigned n = sizeof figures / sizeof figures[0];
    double medians[sizeof figures / sizeof figures[0]];

    printf("%-52s %10s %10s %6s\n", "ns per parameter", "median", "least", "runs");
    figures[0] = best_pass(bench, team, passes, add_passes(passes));
    take_turns(bench, team, figures, n, options->runs);
    printf("\n");
    for (unsigned i = 0; i < n; i++) {
        medians[i] = print_figure(&figures[i], options->runs);
    }
    printf("\nupdate_vs_pass          %.3f  (at most 1.08)\n", medians[1] / medians[0]);
    printf("update_split_vs_pass28  %.3f  (at most 0.95)\n", medians[2] / medians[0]);
    printf("update_vs_three_passes  %.3f  (at least 1.7)\n", medians[3] / medians[1]);
    append_json(options, "update_vs_pass", medians[1], medians[0]);
    append_json(options, "update_split_vs_pass28", medians[2], medians[0]);
    append_json(options, "update_vs_three_passes", medians[3], medians[1]);
}

static double update_ns(struct bench *bench, struct cst_team *team, enum cst_masters masters)
{
    cst_update_job_set(&bench->job, &(struct cst_update_way){.masters = masters});
    return measure_update(bench, team) * 1e9 / (double)bench->options->params;
}

static void take_turns_with_others(struct bench *bench, struct cst_team *team)
{
    char line[16];

    while (fgets(line, sizeof line, stdin) != NULL) {
        double whole = update_ns(bench, team, CST_MASTERS_FP32);

        printf("%.4f %.4f\n", whole, update_ns(bench, team, CST_MASTERS_SPLIT));
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    struct options options;
    struct bench bench = {.options = &options};
    struct cst_team *team;

    parse_options(&options, argc, argv);
    choose_step(&bench);
    cst_update_job_open(&bench.job, options.params, options.threads, cst_kernels_get(NULL));
    cst_update_prepare(&bench.scalars, 1e-5, 0.9, 0.999, 1e-8, 0.01, 1.0f, 1000);
    team = cst_team_open(options.threads);
    if (team == NULL) {
        die("threads");
    }
    cst_team_run(team, cst_update_job_fill, &bench.job);
    if (options.turns) {
        take_turns_with_others(&bench, team);
    } else {
        printf("%zu parameters, %u threads, kernels %s\n", options.params, options.threads,
               bench.job.work.kernels->isa);
        run_all(&bench, team);
        run_forms(&bench, team);
    }
    cst_team_close(team);
    free(bench.job.updated);
    return EXIT_SUCCESS;
}
