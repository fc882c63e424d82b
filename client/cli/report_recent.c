/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/svg.h"
#include "client/cli/html.h"
#include "client/cli/report.h"
#include "client/cli/residency_map.h"
#include "client/cli/step_times.h"
#include "client/cli/table.h"
#include "proto/job_states.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_RANKS = 8,     /* Ranks that are drawn. */
    MOST_BARS = 96,     /* Bars of the times of steps: one for each step and rank. */
    MOST_MEDIANS = 4,   /* A bar ends at so many times the median. */
    MOST_MAP_RANKS = 4, /* Ranks of the map of residency. */
    MOST_MAP_STEPS = 4,
    MOST_SPANS = 6000,
};

static const char *const colours[] = {"c1", "c2", "c3", "c4", "c5", "c6"};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* -- times of steps --------------------------------------------------------------------------- */

static void draw_bar(const struct cli_svg *chart, const struct cli_step_time *t, double x,
                     double width)
{
    const double xs[] = {x, x + width};
    double ys[2] = {0, 0};
    char text[CLI_HUMAN_BYTES];

    for (unsigned p = 0; p < CLI_STEP_PARTS && ys[0] < chart->high_y; p++) {
        ys[1] = fmin(ys[0] + t->parts[p], chart->high_y);
        if (t->parts[p] > 0) {
            cli_svg_box(chart, xs, ys, colours[p], "step %llu, rank %u: %s %s (%.0f %%)",
                        (unsigned long long)t->step, t->rank, cli_step_part_names[p],
                        cli_seconds(t->parts[p], text), 100 * t->parts[p] / t->seconds);
        }
        ys[0] = ys[1];
    }
}

/* The height of the drawing in seconds: a step that took very much longer than others must not make
 * them invisible. */
static double height_of(const struct cli_step_time *v, size_t n)
{
    double seconds[MOST_BARS], high;

    for (size_t i = 0; i < n; i++) {
        seconds[i] = v[i].seconds;
    }
    qsort(seconds, n, sizeof *seconds, cli_report_compare);
    high = fmin(seconds[n - 1], MOST_MEDIANS * seconds[n / 2]);
    return high < seconds[n - 1] ? high : 1.05 * high;
}

/* Draw a group of bars for each step, and a bar for each rank. */
static void draw_times(const struct cli_step_time *v, size_t n, uint32_t n_ranks, FILE *to)
{
    const double width = 0.86 / n_ranks;
    struct cli_svg chart = {.low_x = (double)v[0].step - 0.5,
                            .high_x = (double)v[n - 1].step + 0.5,
                            .high_y = height_of(v, n)};

    (void)fputs("<figure>\n", to);
    cli_svg_open(&chart, to, 300, "where the time of each step went, by rank");
    cli_svg_axis_y(&chart, CLI_UNIT_SECONDS, 5);
    for (size_t i = 0; i < n; i++) {
        draw_bar(&chart, &v[i], (double)v[i].step - 0.43 + v[i].rank * width, 0.92 * width);
    }
    cli_svg_axis_x(&chart, CLI_UNIT_NUMBER, 16);
    cli_svg_close(&chart);
    cli_svg_legend(to, cli_step_part_names);
    (void)fputs("</figure>\n", to);
}

static void write_times_table(const struct cli_step_time *v, size_t n, FILE *to)
{
    static const char *const columns[] = {"step",
                                          "rank",
                                          "time",
                                          "compute",
                                          "wait for weights",
                                          "exposed update",
                                          "wait for gradients or commit",
                                          "other",
                                          NULL};
    char text[CLI_HUMAN_BYTES];

    cli_html_table_begin(to, "Table of times", columns);
    for (size_t i = 0; i < n; i++) {
        (void)fputs("<tr>", to);
        cli_html_element(to, "td", "%llu", (unsigned long long)v[i].step);
        cli_html_element(to, "td", "%u", v[i].rank);
        cli_html_element(to, "td", "%s", cli_seconds(v[i].seconds, text));
        for (unsigned p = 0; p < CLI_STEP_PARTS; p++) {
            cli_html_element(to, "td", "%s", cli_seconds(v[i].parts[p], text));
        }
        (void)fputs("</tr>\n", to);
    }
    cli_html_table_end(to);
}

static bool write_times(const struct cli_report *report, FILE *to)
{
    const uint32_t n_ranks = least(report->job->world, MOST_RANKS);
    bool failed;
    size_t n;
    struct cli_step_time *v =
        cli_step_times(&report->intervals, n_ranks, MOST_BARS / n_ranks, &n, &failed);

    if (failed) {
        return false;
    }
    cli_html_element(to, "h2", "Where the time of each step went");
    if (n == 0) {
        cli_html_element(to, "p", "The daemon remembers no whole step.");
    } else {
        cli_html_element(
            to, "p",
            "The last %zu steps, from commit to commit. One bar for each rank%s. A rank computes "
            "while it holds weights or gradients and waits for nothing. The exposed update is "
            "the time by which the step would have been shorter if updates took none. A bar ends "
            "at %d times the median.",
            n / n_ranks, n_ranks < report->job->world ? ", of the first ones" : "", MOST_MEDIANS);
        draw_times(v, n, n_ranks, to);
        write_times_table(v, n, to);
    }
    free(v);
    return true;
}

/* -- memory ----------------------------------------------------------------------------------- */

static const char *const memory_names[] = {"states and buffers", "pool, in use", "pool, cached",
                                           "pool, free", NULL};
enum { OTHER, IN_USE, CACHED, FREE, N_PARTS };

enum { MOST_TIERS = 64 };

/* The memory of the job in one place. */
struct tier {
    const char *name;
    uint64_t parts[N_PARTS]; /* Bytes. */
};

struct tiers {
    struct tier v[MOST_TIERS];
    unsigned n;
};

/* Return the name of the place of a rank's pool, as in JobMemory. */
static const char *place_of(const Cistern__StatReply *stat, const Cistern__RankInfo *rank,
                            char out[CLI_HUMAN_BYTES])
{
    const char *device = rank->device != NULL ? rank->device : "host";

    for (size_t i = 0; i < stat->n_gpus; i++) {
        if (strcmp(stat->gpus[i]->uuid, device) == 0 && strncmp(device, "paced", 5) != 0) {
            (void)snprintf(out, CLI_HUMAN_BYTES, "cuda:%u", stat->gpus[i]->index);
            return out;
        }
    }
    return strcmp(device, "host") == 0 ? "pools" : device;
}

/* Divide what is a pool of @rank in @tier by the state of its blocks. */
static void add_pool(struct tier *tier, const Cistern__Books *pool)
{
    const uint64_t in_use = pool->capacity - pool->cached - pool->free;

    tier->parts[IN_USE] += in_use;
    tier->parts[CACHED] += pool->cached;
    tier->parts[FREE] += pool->free;
    tier->parts[OTHER] -= tier->parts[OTHER] < pool->capacity ? tier->parts[OTHER] : pool->capacity;
}

static struct tiers get_tiers(const struct cli_report *report)
{
    const Cistern__JobInfo *job = report->job;
    struct tiers tiers = {.n = 0};
    char text[CLI_HUMAN_BYTES];

    for (size_t i = 0; i < job->n_memory && tiers.n < MOST_TIERS; i++) {
        tiers.v[tiers.n++] =
            (struct tier){.name = job->memory[i]->place, .parts = {job->memory[i]->bytes}};
    }
    for (size_t r = 0; r < job->n_ranks; r++) {
        for (unsigned i = 0; i < tiers.n && job->ranks[r]->pool != NULL; i++) {
            if (strcmp(tiers.v[i].name, place_of(report->stat, job->ranks[r], text)) == 0) {
                add_pool(&tiers.v[i], job->ranks[r]->pool);
            }
        }
    }
    return tiers;
}

static uint64_t sum_of(const struct tier *tier)
{
    uint64_t sum = 0;

    for (unsigned p = 0; p < N_PARTS; p++) {
        sum += tier->parts[p];
    }
    return sum;
}

static void draw_tiers(const struct tiers *tiers, FILE *to)
{
    struct cli_svg chart = {.high_y = tiers->n};
    char text[CLI_HUMAN_BYTES];

    for (unsigned i = 0; i < tiers->n; i++) {
        const double sum = (double)sum_of(&tiers->v[i]);

        chart.high_x = sum > chart.high_x ? sum : chart.high_x;
    }
    (void)fputs("<figure class=\"memory\">\n", to);
    cli_svg_open(&chart, to, 42 + 38 * tiers->n, "memory of the job by tier");
    for (unsigned i = 0; i < tiers->n; i++) {
        const double y = tiers->n - 0.5 - i, ys[] = {y - 0.34, y + 0.34};
        double xs[2] = {0, 0};

        for (unsigned p = 0; p < N_PARTS; p++) {
            xs[1] = xs[0] + (double)tiers->v[i].parts[p];
            if (tiers->v[i].parts[p] > 0) {
                cli_svg_box(&chart, xs, ys, colours[p], "%s: %s, %s", tiers->v[i].name,
                            memory_names[p], cli_bytes(tiers->v[i].parts[p], text));
            }
            xs[0] = xs[1];
        }
        cli_svg_label_y(&chart, y, "%.13s", tiers->v[i].name);
    }
    cli_svg_axis_x(&chart, CLI_UNIT_BYTES, 8);
    cli_svg_close(&chart);
    cli_svg_legend(to, memory_names);
    (void)fputs("</figure>\n", to);
}

static void write_memory(const struct cli_report *report, FILE *to)
{
    static const char *const columns[] = {
        "tier", "all", "states and buffers", "pool, in use", "pool, cached", "pool, free", NULL};
    const struct tiers tiers = get_tiers(report);
    char text[CLI_HUMAN_BYTES];

    cli_html_element(to, "h2", "Memory by tier");
    cli_html_element(
        to, "p",
        "What the job has at this moment in host memory, in pools there, on devices and on "
        "drives.");
    if (strcmp(report->job->state, cst_job_state_names[CST_JOB_IS_DONE]) == 0) {
        cli_html_element(to, "p", "The job is done: its pools are given back.");
    }
    if (tiers.n == 0) {
        cli_html_element(to, "p", "The job has no memory.");
        return;
    }
    draw_tiers(&tiers, to);
    cli_html_table_begin(to, "Table of memory", columns);
    for (unsigned i = 0; i < tiers.n; i++) {
        (void)fputs("<tr>", to);
        cli_html_element(to, "td", "%s", tiers.v[i].name);
        cli_html_element(to, "td", "%s", cli_bytes(sum_of(&tiers.v[i]), text));
        for (unsigned p = 0; p < N_PARTS; p++) {
            cli_html_element(to, "td", "%s", cli_bytes(tiers.v[i].parts[p], text));
        }
        (void)fputs("</tr>\n", to);
    }
    cli_html_table_end(to);
}

/* -- residency -------------------------------------------------------------------------------- */

static void draw_span(const struct cli_svg *chart, const struct cli_residency_map *map,
                      const struct cli_residency_span *span)
{
    const double x[] = {(double)(span->begin - map->begin) * 1e-9,
                        (double)(span->end - map->begin) * 1e-9};
    const double y[] = {span->chunk, span->chunk + 1.0};
    char text[CLI_HUMAN_BYTES];

    cli_svg_box(chart, x, y, colours[span->kind], "chunk %u: %s, %s", span->chunk,
                cli_residency_names[span->kind], cli_seconds(x[1] - x[0], text));
}

/* Draw what is kept first, and uses over it. */
static void draw_rank(const struct cli_report *report, const struct cli_residency_map *map,
                      uint32_t rank, FILE *to)
{
    static const enum cli_residency_kind order[] = {CLI_RESIDENCY_KEPT, CLI_RESIDENCY_LOADING,
                                                    CLI_RESIDENCY_USED, CLI_RESIDENCY_GRADIENT};
    const uint32_t n_chunks = report->job->n_chunks;
    const double rows = n_chunks < 12 ? 14.0 * n_chunks : n_chunks < 40 ? 7.0 * n_chunks : 280;
    struct cli_svg chart = {.high_x = (double)(map->end - map->begin) * 1e-9, .high_y = n_chunks};

    cli_svg_open(&chart, to, 42 + rows, "chunks in the pool over time");
    cli_svg_axis_y(&chart, CLI_UNIT_NUMBER, n_chunks < 6 ? 2 : 5);
    for (unsigned k = 0; k < CLI_RESIDENCY_KINDS; k++) {
        for (size_t i = 0; i < map->n; i++) {
            if (map->v[i].rank == rank && map->v[i].kind == order[k]) {
                draw_span(&chart, map, &map->v[i]);
            }
        }
    }
    for (size_t i = 0; i < report->intervals.n; i++) {
        const Cistern__TraceInterval *step = &report->intervals.v[i];

        if (step->kind == CISTERN__TRACE_INTERVAL__KIND__STEP && step->began_ns >= map->begin &&
            step->began_ns < map->end) {
            cli_svg_mark_x(&chart, (double)(step->began_ns - map->begin) * 1e-9);
        }
    }
    cli_svg_axis_x(&chart, CLI_UNIT_SECONDS, 10);
    cli_svg_close(&chart);
}

/* Shares of the time of the map in which a chunk is in a pool, on the average of all chunks. */
static void write_residency_table(const struct cli_report *report,
                                  const struct cli_residency_map *map, uint32_t n_ranks, FILE *to)
{
    static const char *const columns[] = {"rank",   "being loaded", "kept",
                                          "in use", "gradient",     NULL};
    const double all = (double)(map->end - map->begin) * report->job->n_chunks;
    double sums[MOST_MAP_RANKS][CLI_RESIDENCY_KINDS] = {{0}};

    for (size_t i = 0; i < map->n; i++) {
        sums[map->v[i].rank][map->v[i].kind] += (double)(map->v[i].end - map->v[i].begin);
    }
    cli_html_table_begin(to, "Table of residency: share of the time, on the average of all chunks",
                         columns);
    for (uint32_t r = 0; r < n_ranks; r++) {
        (void)fputs("<tr>", to);
        cli_html_element(to, "td", "%u", r);
        for (unsigned k = 0; k < CLI_RESIDENCY_KINDS; k++) {
            cli_html_element(to, "td", "%.1f %%", 100 * sums[r][k] / all);
        }
        (void)fputs("</tr>\n", to);
    }
    cli_html_table_end(to);
}

static void write_map(const struct cli_report *report, const struct cli_residency_map *map,
                      uint32_t n_ranks, bool kept, FILE *to)
{
    cli_html_element(to, "p",
                     "Chunks (upwards) in the pool of a rank, over the time of steps %llu to %llu. "
                     "Dashed lines are commits. %s",
                     (unsigned long long)map->first_step, (unsigned long long)map->last_step,
                     kept ? "A chunk that is loaded before its next use counts as absent from its "
                            "last use on."
                          : "The workers load weights themselves, so that only uses are known.");
    (void)fputs("<figure class=\"residency\">\n", to);
    for (uint32_t r = 0; r < n_ranks; r++) {
        cli_html_element(to, "h3", "rank %u", r);
        draw_rank(report, map, r, to);
    }
    cli_svg_legend(to, cli_residency_names);
    (void)fputs("</figure>\n", to);
    write_residency_table(report, map, n_ranks, to);
}

static bool write_residency(const struct cli_report *report, FILE *to)
{
    const Cistern__JobInfo *job = report->job;
    const uint32_t n_ranks = least(job->world, MOST_MAP_RANKS);
    const bool kept = job->copies == NULL || strcmp(job->copies, "worker") != 0;
    struct cli_residency_map map;

    if (!cli_residency_map_make(&map, &report->intervals, n_ranks, MOST_MAP_STEPS, MOST_SPANS,
                                kept)) {
        return false;
    }
    cli_html_element(to, "h2", "Residency of chunks");
    if (map.end > map.begin && job->n_chunks > 0) {
        write_map(report, &map, n_ranks, kept, to);
    } else {
        cli_html_element(to, "p", "The daemon remembers no whole step.");
    }
    cli_residency_map_close(&map);
    return true;
}

bool cli_report_recent(const struct cli_report *report, FILE *to)
{
    if (!write_times(report, to)) {
        return false;
    }
    write_memory(report, to);
    return write_residency(report, to);
}
