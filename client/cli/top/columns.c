/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/top/columns.h"

#include "client/cli/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- cells ------------------------------------------------------------------------------------ */

#define CELL(name)                                                                                 \
    static void name##_cell(const struct cli_top_model *model, const struct cli_top_job *job,      \
                            char out[CLI_TOP_CELL])
#define KEY(name)                                                                                  \
    static double name##_key(const struct cli_top_model *model, const struct cli_top_job *job)

static void put(char out[CLI_TOP_CELL], const char *text)
{
    (void)snprintf(out, CLI_TOP_CELL, "%s", text);
}

/* Write a rate of bytes. 0 is a dash, because most jobs use no drive. */
static void put_bytes(char out[CLI_TOP_CELL], double bytes)
{
    char text[CLI_HUMAN_BYTES];

    put(out, bytes > 0 ? cli_bytes((uint64_t)bytes, text) : "-");
}

static void put_percent(char out[CLI_TOP_CELL], double part)
{
    (void)snprintf(out, CLI_TOP_CELL, isnan(part) ? "-" : "%.1f %%", 100 * part);
}

CELL(name)
{
    (void)model;
    put(out, job->name);
}

CELL(user)
{
    (void)model;
    put(out, job->user);
}

CELL(state)
{
    (void)model;
    put(out, job->state);
}

KEY(ranks)
{
    (void)model;
    return job->world;
}

CELL(ranks)
{
    (void)model;
    (void)snprintf(out, CLI_TOP_CELL, "%u", job->world);
}

KEY(step)
{
    (void)model;
    return (double)job->step;
}

CELL(step)
{
    (void)model;
    (void)snprintf(out, CLI_TOP_CELL, "%llu", (unsigned long long)job->step);
}

KEY(time)
{
    (void)model;
    return job->step_s > 0 ? job->step_s : NAN;
}

/* Also long steps fit in the least width. */
CELL(time)
{
    char text[CLI_HUMAN_BYTES];

    (void)model;
    if (job->step_s < 60) {
        put(out, job->step_s > 0 ? cli_seconds(job->step_s, text) : "-");
    } else {
        (void)snprintf(out, CLI_TOP_CELL, "%.0f s", job->step_s);
    }
}

KEY(loss)
{
    (void)model;
    return job->has_loss ? job->loss : NAN;
}

CELL(loss)
{
    (void)model;
    (void)snprintf(out, CLI_TOP_CELL, job->has_loss ? "%.4f" : "-", job->loss);
}

KEY(memory)
{
    (void)model;
    return job->bytes;
}

CELL(memory)
{
    put_bytes(out, memory_key(model, job));
}

KEY(hit)
{
    (void)model;
    return cli_top_hit_rate(job);
}

CELL(hit)
{
    put_percent(out, hit_key(model, job));
}

KEY(wait)
{
    return cli_top_wait_rate(model, job);
}

CELL(wait)
{
    put_percent(out, wait_key(model, job));
}

KEY(update)
{
    return cli_top_rate_get(model, job, CLI_TOP_UPDATES);
}

CELL(update)
{
    const double rate = update_key(model, job);
    char text[CLI_HUMAN_BYTES];

    put(out, rate > 0 ? cli_count((uint64_t)rate, text) : "-");
}

KEY(link)
{
    return cli_top_rate_get(model, job, CLI_TOP_LINK);
}

CELL(link)
{
    put_bytes(out, link_key(model, job));
}

KEY(read)
{
    return cli_top_rate_get(model, job, CLI_TOP_READ);
}

CELL(read)
{
    put_bytes(out, read_key(model, job));
}

KEY(write)
{
    return cli_top_rate_get(model, job, CLI_TOP_WRITE);
}

CELL(write)
{
    put_bytes(out, write_key(model, job));
}

/* The least widths of the columns up to WAIT, with the mark of a job, are 80. */
const struct cli_top_column cli_top_columns[CLI_TOP_COLUMNS] = {
    {"JOB", 10, 24, false, name_cell, NULL},
    {"USER", 6, 16, false, user_cell, NULL},
    {"STATE", 8, 11, false, state_cell, NULL},
    {"RANKS", 5, 5, true, ranks_cell, ranks_key},
    {"STEP", 6, 9, true, step_cell, step_key},
    {"TIME", 7, 7, true, time_cell, time_key},
    {"LOSS", 7, 9, true, loss_cell, loss_key},
    {"MEMORY", 8, 8, true, memory_cell, memory_key},
    {"HITS", 6, 7, true, hit_cell, hit_key},
    {"WAIT", 6, 7, true, wait_cell, wait_key},
    {"PARAMS/s", 8, 8, true, update_cell, update_key},
    {"LINK/s", 8, 8, true, link_cell, link_key},
    {"READ/s", 8, 8, true, read_cell, read_key},
    {"WRITE/s", 8, 8, true, write_cell, write_key},
};

/* -- order ------------------------------------------------------------------------------------ */

/* What qsort_r hands to the comparison. */
struct order {
    const struct cli_top_model *model;
    const struct cli_top_column *column;
};

static int compare_names(const struct cli_top_job *a, const struct cli_top_job *b)
{
    const int names = strcmp(a->name, b->name);

    return names != 0 ? names : (a->uid > b->uid) - (a->uid < b->uid);
}

static int compare_texts(const struct order *order, const struct cli_top_job *a,
                         const struct cli_top_job *b)
{
    char of_a[CLI_TOP_CELL], of_b[CLI_TOP_CELL];

    order->column->cell(order->model, a, of_a);
    order->column->cell(order->model, b, of_b);
    return strcmp(of_a, of_b);
}

static int compare_numbers(const struct order *order, const struct cli_top_job *a,
                           const struct cli_top_job *b)
{
    const double of_a = order->column->key(order->model, a),
                 of_b = order->column->key(order->model, b);

    if (isnan(of_a) || isnan(of_b)) {
        return (isnan(of_a) != 0) - (isnan(of_b) != 0);
    }
    return (of_a < of_b) - (of_a > of_b);
}

static int compare(const void *a, const void *b, void *arg)
{
    const struct order *order = arg;
    const struct cli_top_job *job_a = *(struct cli_top_job *const *)a,
                             *job_b = *(struct cli_top_job *const *)b;
    const int rc = order->column->key != NULL ? compare_numbers(order, job_a, job_b)
                                              : compare_texts(order, job_a, job_b);

    return rc != 0 ? rc : compare_names(job_a, job_b);
}

void cli_top_sort(struct cli_top_model *model, unsigned column)
{
    struct order order = {.model = model, .column = &cli_top_columns[column]};

    if (model->n_jobs > 0) {
        qsort_r(model->jobs, model->n_jobs, sizeof(struct cli_top_job *), compare, &order);
    }
}

void cli_top_widths(unsigned width, unsigned widths[CLI_TOP_COLUMNS])
{
    unsigned used = CLI_TOP_COLUMNS - 1;

    for (unsigned c = 0; c < CLI_TOP_COLUMNS; c++) {
        widths[c] = cli_top_columns[c].least;
        used += widths[c];
    }
    for (unsigned c = 0; c < CLI_TOP_COLUMNS && used < width; c++) {
        unsigned more = cli_top_columns[c].most - widths[c];

        more = more < width - used ? more : width - used;
        widths[c] += more;
        used += more;
    }
}
