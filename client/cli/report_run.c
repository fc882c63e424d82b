/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/svg.h"
#include "client/cli/html.h"
#include "client/cli/report.h"
#include "client/cli/table.h"

#include <math.h>
#include <stdlib.h>

enum { RECENT = 33 }; /* Entries of which the median is taken, at most. */

/* -- figures ---------------------------------------------------------------------------------- */

int cli_report_compare(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

double cli_report_step_seconds(const struct cli_report *report)
{
    double seconds[RECENT];
    size_t n = 0;

    for (size_t i = report->n_history; i-- > 0 && n < RECENT;) {
        seconds[n++] = report->history[i].seconds / report->history[i].n_steps;
    }
    if (n == 0) {
        return 0;
    }
    qsort(seconds, n, sizeof *seconds, cli_report_compare);
    return seconds[n / 2];
}

double cli_report_speed(const struct cli_report *report, size_t first, size_t end, bool *tokens)
{
    double seconds = 0, n_steps = 0, n_tokens = 0;

    *tokens = false;
    for (size_t i = 0; i < report->n_history; i++) {
        *tokens = *tokens || report->history[i].has_tokens;
    }
    for (size_t i = first; i < end; i++) {
        seconds += report->history[i].seconds;
        n_steps += report->history[i].n_steps;
        n_tokens += (double)report->history[i].tokens;
    }
    return seconds > 0 ? (*tokens ? n_tokens : n_steps) / seconds : 0;
}

enum {
    MOST_POINTS = 256, /* Points with titles: with more, they would hide the line. */
    MOST_ROWS = 256,   /* Rows of the table: every n-th entry. */
};

#define LINE_HEIGHT 230.0

/* A value of an entry: NaN is a gap. */
typedef double (*value_fn)(const struct cli_report *report, size_t entry);

static double loss_of(const struct cli_report *report, size_t i)
{
    return report->history[i].has_loss ? report->history[i].loss : NAN;
}

static double speed_of(const struct cli_report *report, size_t i)
{
    bool tokens;

    return cli_report_speed(report, i, i + 1, &tokens);
}

/* The step at which an entry is drawn: its last one. */
static double step_of(const struct cli_report *report, size_t i)
{
    return (double)(report->history[i].first + report->history[i].n_steps - 1);
}

static void range_of(const double *v, size_t n, double *low, double *high)
{
    *low = INFINITY;
    *high = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        *low = v[i] < *low ? v[i] : *low;
        *high = v[i] > *high ? v[i] : *high;
    }
}

/* Draw @value over the steps. @from_zero: the axis of the values begins with 0. */
static void draw(const struct cli_report *report, FILE *to, const char *name, value_fn value,
                 bool from_zero)
{
    const size_t n = report->n_history;
    double *x = calloc(2 * n + 1, sizeof *x), *y = x + n, margin;
    struct cli_svg chart;

    if (x == NULL) {
        cli_html_element(to, "p", "There was no memory to draw this.");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        x[i] = step_of(report, i);
        y[i] = value(report, i);
    }
    range_of(x, n, &chart.low_x, &chart.high_x);
    range_of(y, n, &chart.low_y, &chart.high_y);
    margin = (chart.high_y - chart.low_y) / 20;
    chart.low_y = from_zero ? 0 : chart.low_y - margin;
    chart.high_y += from_zero ? chart.high_y / 20 : margin;
    (void)fputs("<figure>\n", to);
    cli_svg_open(&chart, to, LINE_HEIGHT, name);
    cli_svg_axis_y(&chart, CLI_UNIT_NUMBER, 5);
    cli_svg_axis_x(&chart, CLI_UNIT_NUMBER, 10);
    cli_svg_line(&chart, x, y, n, "c1");
    for (size_t i = 0; i < n && n <= MOST_POINTS; i++) {
        if (isfinite(y[i])) {
            cli_svg_point(&chart, x[i], y[i], "c1", "step %.0f: %.5g", x[i], y[i]);
        }
    }
    cli_svg_close(&chart);
    (void)fputs("</figure>\n", to);
    free(x);
}

/* -- tables ----------------------------------------------------------------------------------- */

static void cell(FILE *to, bool known, double value)
{
    if (known) {
        cli_html_element(to, "td", "%.5g", value);
    } else {
        cli_html_element(to, "td", "-");
    }
}

static void write_row(const struct cli_report *report, size_t i, FILE *to)
{
    const Cistern__HistoryEntry *e = &report->history[i];
    char text[CLI_HUMAN_BYTES];

    (void)fputs("<tr>", to);
    if (e->n_steps > 1) {
        cli_html_element(to, "td", "%llu to %llu", (unsigned long long)e->first,
                         (unsigned long long)(e->first + e->n_steps - 1));
    } else {
        cli_html_element(to, "td", "%llu", (unsigned long long)e->first);
    }
    cell(to, e->has_loss, e->loss);
    cell(to, e->has_grad_norm, e->grad_norm);
    cli_html_element(to, "td", "%s", cli_seconds(e->seconds / e->n_steps, text));
    cli_html_element(to, "td", "%s", cli_seconds(e->exposed_seconds / e->n_steps, text));
    cell(to, e->seconds > 0, speed_of(report, i));
    cli_html_element(to, "td", "%u", e->n_skipped);
    (void)fputs("</tr>\n", to);
}

static void write_table(const struct cli_report *report, bool tokens, FILE *to)
{
    const char *const columns[] = {"step",           "loss",
                                   "gradient norm",  "step time",
                                   "exposed update", tokens ? "tokens/s" : "steps/s",
                                   "skipped",        NULL};
    const size_t stride = (report->n_history + MOST_ROWS - 1) / MOST_ROWS;

    cli_html_table_begin(to, "Table of steps", columns);
    for (size_t i = 0; i < report->n_history; i += stride) {
        write_row(report, i, to);
    }
    cli_html_table_end(to);
    if (stride > 1) {
        cli_html_element(to, "p", "The table has one row of %zu.", stride);
    }
}

/* -- plan ------------------------------------------------------------------------------------- */

static void draw_plan(double expected, double measured, FILE *to)
{
    static const char *const names[] = {"expected", "measured", NULL};
    const double values[] = {expected, measured};
    struct cli_svg chart = {.high_x = 1.05 * (expected > measured ? expected : measured),
                            .high_y = 2};
    char text[CLI_HUMAN_BYTES];

    (void)fputs("<figure class=\"plan\">\n", to);
    cli_svg_open(&chart, to, 120, "expected and measured time of a step");
    cli_svg_axis_x(&chart, CLI_UNIT_SECONDS, 6);
    for (unsigned i = 0; i < 2; i++) {
        const double y = 1.5 - i, x[] = {0, values[i]}, ys[] = {y - 0.32, y + 0.32};
        const char *const colours[] = {"c1", "c2"};

        cli_svg_box(&chart, x, ys, colours[i], "%s: %s a step", names[i],
                    cli_seconds(values[i], text));
        cli_svg_label_y(&chart, y, "%s", names[i]);
    }
    cli_svg_close(&chart);
    (void)fputs("</figure>\n", to);
}

static void write_plan_words(const Cistern__JobInfo *job, FILE *to)
{
    if (job->plan == NULL) {
        cli_html_element(to, "p", "The job has no plan.");
        return;
    }
    (void)fputs("<p>", to);
    cli_html_text(to, "Plan: %s.", job->plan);
    if (job->has_plan_prefetch && job->plan_prefetch == 0) {
        cli_html_text(to, " Pools prefetch as many chunks as they have blocks for.");
    } else if (job->has_plan_prefetch) {
        cli_html_text(to, " Pools prefetch %u chunk%s.", job->plan_prefetch,
                      job->plan_prefetch == 1 ? "" : "s");
    }
    if (job->plan_bottleneck != NULL) {
        cli_html_text(to, " The bottleneck is %s.", job->plan_bottleneck);
    }
    (void)fputs("</p>\n", to);
}

static void write_plan(const struct cli_report *report, FILE *to)
{
    const Cistern__JobInfo *job = report->job;
    const double measured = cli_report_step_seconds(report);
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES];

    cli_html_element(to, "h2", "Plan against measurement");
    write_plan_words(job, to);
    if (!job->has_expected_step_seconds || measured <= 0) {
        cli_html_element(to, "p", "No time of a step is expected yet.");
        return;
    }
    cli_html_element(to, "p",
                     "A step is expected to take %s, by the %s. The median of the last steps is "
                     "%s: %+.0f %%.%s",
                     cli_seconds(job->expected_step_seconds, a), job->expected_by,
                     cli_seconds(measured, b), 100 * (measured / job->expected_step_seconds - 1),
                     job->drifted ? " Several steps in a row differed from the expected time by "
                                    "more than 20 %."
                                  : "");
    draw_plan(job->expected_step_seconds, measured, to);
}

/* -- all -------------------------------------------------------------------------------------- */

static void write_loss(const struct cli_report *report, FILE *to)
{
    bool known = false;

    cli_html_element(to, "h2", "Loss");
    for (size_t i = 0; i < report->n_history; i++) {
        known = known || report->history[i].has_loss;
    }
    if (known) {
        draw(report, to, "loss over steps", loss_of, false);
    } else {
        cli_html_element(to, "p", "The workers have given no loss.");
    }
}

void cli_report_run(const struct cli_report *report, FILE *to)
{
    bool tokens;

    (void)cli_report_speed(report, 0, 0, &tokens);
    write_loss(report, to);
    cli_html_element(to, "h2", tokens ? "Tokens per second" : "Steps per second");
    if (report->n_history > 0) {
        draw(report, to, tokens ? "tokens per second over steps" : "steps per second over steps",
             speed_of, true);
        write_table(report, tokens, to);
    } else {
        cli_html_element(to, "p", "The daemon knows of no step.");
    }
    if (report->n_history > 0 && report->history[0].first > 1) {
        cli_html_element(to, "p",
                         "Steps before %llu are not shown: the daemon has taken the job over, or "
                         "it was loaded from a checkpoint.",
                         (unsigned long long)report->history[0].first);
    }
    write_plan(report, to);
}
