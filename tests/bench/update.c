/* update_vs_pass and update_vs_three_passes: the fused update of a chunk as the engine runs it,
 * against the best plain pass over the same bytes and against upcast, step and downcast done
 * separately. All in one process, in turns. */
#include "kernels/tile.h"
#include "tests/bench/pass.h"
#include "tests/bench/team.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#define MAX_PASSES 12 /* in all three tables */
#define TRIAL_RUNS 5  /* of each pass, to find the best */
#define MAX_RUNS 1000

struct options {
    size_t params;
    unsigned threads;
    unsigned runs;
    const char *json; /* NULL: no file */
};

/* One job of one tensor, in shared memory like an arena. */
struct bench {
    const struct options *options;
    const struct cst_kernels *kernels;
    const struct cst_pass *pass; /* the one that is run */
    cst_pass_step_fn step;
    struct cst_tile_work work;
    struct cst_tile_hyper hyper;
    struct cst_update_scalars adamw; /* same, for the separate step */
    struct cst_undo_slot *undo;      /* one per thread */
    uint64_t *updated;               /* elements, by each thread */
    float *wide;                     /* the upcast gradients */
};

/* A figure: what is run, and how long it took per parameter. */
struct figure {
    char name[64];
    const struct cst_pass *pass; /* NULL: fn is no plain pass */
    double (*measure)(struct bench *bench, struct cst_team *team);
    double ns[MAX_RUNS]; /* per parameter */
};

static void die(const char *what)
{
    fprintf(stderr, "bench_update: %s: %s\n", what, strerror(errno));
    exit(EXIT_FAILURE);
}

static void usage(FILE *to)
{
    fprintf(to, "usage: bench_update [--params N] [--threads N] [--runs N] [--json FILE]\n");
}

/* A number of at least 1 and at most @max, or the end of the program. */
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
        {"params", required_argument, NULL, 'p'}, {"threads", required_argument, NULL, 't'},
        {"runs", required_argument, NULL, 'r'},   {"json", required_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0},
    };
    int c;

    *options = (struct options){.params = 100000000, .threads = cst_team_cpus(), .runs = 15};
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

/* Elements [*first, *first + *n) are thread @index's: whole tiles, the same in every run. */
static void share(const struct bench *bench, unsigned index, size_t *first, size_t *n)
{
    size_t tiles = cst_table_n_tiles(bench->options->params);
    size_t from = tiles * index / bench->options->threads;
    size_t to = tiles * (index + 1) / bench->options->threads;
    size_t end = to * CST_TILE_ELEMS;

    *first = from * CST_TILE_ELEMS;
    end = end < bench->options->params ? end : bench->options->params;
    *n = end - *first;
}

static void *map_shared(size_t bytes)
{
    int fd = memfd_create("bench_update", MFD_CLOEXEC);
    void *p;

    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        die("memfd");
    }
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        die("mmap");
    }
    close(fd);
    return p;
}

/* Random gradients and states, of the size they have in training, each written by the thread that
 * will use them. */
static void fill(void *arg, unsigned index)
{
    struct bench *bench = arg;
    struct cst_rows *rows = &bench->work.rows;
    uint64_t x = 0x9e3779b97f4a7c15ull * (index + 1);
    size_t first;
    size_t n;

    share(bench, index, &first, &n);
    for (size_t i = first; i < first + n; i++) {
        float unit;

        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        unit = (float)(x >> 40) * 0x1p-24f - 0.5f;
        rows->grad[i] = cst_fp32_to_bf16(unit * 0.1f);
        rows->weight[i] = 0;
        rows->master[i] = unit;
        ((float *)rows->moments[0].values)[i] = unit * 0.01f;
        ((float *)rows->moments[1].values)[i] = unit * unit * 0.001f;
        bench->wide[i] = 0.0f;
    }
}

static void open_job(struct bench *bench)
{
    const size_t params = bench->options->params;
    struct cst_rows *rows = &bench->work.rows;
    struct cst_table_header header;

    cst_table_size(&header, 1, 1, cst_table_n_tiles(params));
    bench->work.table = map_shared(header.total_bytes);
    *bench->work.table = header;
    cst_table_chunks(bench->work.table)[0] =
        (struct cst_table_chunk){.n_elems = params, .n_spans = 1};
    cst_table_spans(bench->work.table)[0] =
        (struct cst_table_span){.n_elems = params, .lr_scale = 1.0f, .decay_scale = 1.0f};
    bench->undo = map_shared(bench->options->threads * sizeof *bench->undo);
    bench->updated = calloc(bench->options->threads, sizeof *bench->updated);
    if (bench->updated == NULL) {
        die("memory");
    }
    rows->weight = map_shared(params * sizeof *rows->weight);
    rows->grad = map_shared(params * sizeof *rows->grad);
    rows->master = map_shared(params * sizeof *rows->master);
    rows->moments[0].values = map_shared(params * sizeof(float));
    rows->moments[1].values = map_shared(params * sizeof(float));
    bench->wide = map_shared(params * sizeof *bench->wide);
    bench->hyper = (struct cst_tile_hyper){.lr = 1e-5,
                                           .beta1 = 0.9,
                                           .beta2 = 0.999,
                                           .eps = 1e-8,
                                           .weight_decay = 0.01,
                                           .grad_scale = 1.0f};
    cst_update_prepare(&bench->adamw, 1e-5, 0.9, 0.999, 1e-8, 0.01, 1.0f, 1000);
}

static void pass_share(void *arg, unsigned index)
{
    const struct bench *bench = arg;
    const struct cst_rows *rows = &bench->work.rows;
    size_t first;
    size_t n;

    share(bench, index, &first, &n);
    bench->pass->run(
        &(struct cst_pass_rows){.n = n,
                                .grad = rows->grad + first,
                                .weight = rows->weight + first,
                                .master = rows->master + first,
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

    share(bench, index, &first, &n);
    bench->updated[index] =
        cst_tile_update_range(&bench->work, &bench->hyper, first / CST_TILE_ELEMS,
                              cst_table_n_tiles(n), &bench->undo[index]);
}

static double measure_update(struct bench *bench, struct cst_team *team)
{
    uint64_t updated = 0;
    double s;

    bench->work.mark++;
    s = cst_team_run(team, update_share, bench);
    for (unsigned i = 0; i < bench->options->threads; i++) {
        updated += bench->updated[i];
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

    share(bench, index, &first, &n);
    bench->kernels->upcast(n, bench->work.rows.grad + first, bench->wide + first);
}

static void step_share(void *arg, unsigned index)
{
    const struct bench *bench = arg;
    const struct cst_rows *rows = &bench->work.rows;
    size_t first;
    size_t n;

    share(bench, index, &first, &n);
    bench->step(&bench->adamw, n, bench->wide + first, rows->master + first,
                (float *)rows->moments[0].values + first, (float *)rows->moments[1].values + first);
}

static void downcast_share(void *arg, unsigned index)
{
    const struct bench *bench = arg;
    size_t first;
    size_t n;

    share(bench, index, &first, &n);
    bench->kernels->cast(n, bench->work.rows.master + first, bench->work.rows.weight + first);
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

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(const double *values, unsigned n)
{
    double sorted[MAX_RUNS];

    memcpy(sorted, values, n * sizeof *values);
    qsort(sorted, n, sizeof *sorted, by_value);
    return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0;
}

/* Add the passes of an instruction set, if this CPU has it, behind @n others; how many there are
 * then. */
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

/* The best kernels and the separate step of the same instruction set. */
static void choose_kernels(struct bench *bench)
{
    bench->kernels = bench->work.kernels = cst_kernels_get(NULL);
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

/* One line of the table; returns the median. */
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

/* Run @n figures in turns, @runs times each after one that is not counted. */
static void take_turns(struct bench *bench, struct cst_team *team, struct figure *figures,
                       unsigned n, unsigned runs)
{
    for (int run = -1; run < (int)runs; run++) {
        for (unsigned i = 0; i < n; i++) {
            double s;

            bench->pass = figures[i].pass;
            s = figures[i].measure(bench, team);
            figures[i].ns[run < 0 ? 0 : run] = s * 1e9 / (double)bench->options->params;
        }
    }
}

/* Of @n passes, the one with the least median in a few runs. It is then measured afresh, in turns
 * with the update: the least of many noisy medians would be too good. */
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

static void run_all(struct bench *bench, struct cst_team *team)
{
    static struct figure passes[MAX_PASSES];
    static struct figure figures[] = {
        {.name = "best pass again"},
        {.name = "update: fused, tiles with undo and marks", .measure = measure_update},
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
    printf("\nupdate_vs_pass          %.3f  (at most 1.10)\n", medians[1] / medians[0]);
    printf("update_vs_three_passes  %.3f  (at least 1.7)\n", medians[2] / medians[1]);
    append_json(options, "update_vs_pass", medians[1], medians[0]);
    append_json(options, "update_vs_three_passes", medians[2], medians[1]);
}

int main(int argc, char **argv)
{
    struct options options;
    struct bench bench = {.options = &options};
    struct cst_team *team;

    parse_options(&options, argc, argv);
    choose_kernels(&bench);
    open_job(&bench);
    team = cst_team_open(options.threads);
    if (team == NULL) {
        die("threads");
    }
    printf("%zu parameters, %u threads, kernels %s\n", options.params, options.threads,
           bench.kernels->isa);
    cst_team_run(team, fill, &bench);
    run_all(&bench, team);
    cst_team_close(team);
    free(bench.updated);
    return EXIT_SUCCESS;
}
