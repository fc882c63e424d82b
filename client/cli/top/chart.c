/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/top/chart.h"

#include <math.h>

void cli_spark_history_add(struct cli_spark_history *history, double value)
{
    history->v[history->next] = value;
    history->next = (history->next + 1) % CLI_HISTORY_MAX;
    history->n += history->n < CLI_HISTORY_MAX;
}

double cli_spark_history_get(const struct cli_spark_history *history, unsigned age)
{
    return history->v[(history->next + CLI_HISTORY_MAX - 1 - age) % CLI_HISTORY_MAX];
}

bool cli_spark_history_range(const struct cli_spark_history *history, unsigned n, double *least,
                             double *most)
{
    bool any = false;

    for (unsigned age = 0; age < n && age < history->n; age++) {
        const double value = cli_spark_history_get(history, age);

        if (isfinite(value)) {
            *least = any ? fmin(*least, value) : value;
            *most = any ? fmax(*most, value) : value;
            any = true;
        }
    }
    return any;
}

unsigned cli_spark_level(double value, double least, double most)
{
    const double part = most > least ? (value - least) / (most - least) : 0.5;
    const long level = lround(part * (CLI_SPARK_LEVELS - 1));

    return level < 0 ? 0 : level >= CLI_SPARK_LEVELS ? CLI_SPARK_LEVELS - 1 : (unsigned)level;
}

/* Return the character of a column of height @level. */
static uint32_t column(const struct cli_grid *grid, unsigned level)
{
    static const char ascii[] = "_.-~=+*#";

    return grid->utf8 ? 0x2581 + level : (uint32_t)ascii[level];
}

void cli_spark_draw(struct cli_grid *grid, unsigned row, unsigned col, unsigned width,
                    unsigned look, const struct cli_spark_history *history, bool from_zero)
{
    const unsigned n = width < history->n ? width : history->n;
    double least = 0, most = 0;

    (void)cli_spark_history_range(history, n, &least, &most); /* False: all are '!'. */
    if (from_zero) {
        least = fmin(least, 0);
        most = most > 0 ? most : 1; /* Zeros alone are low. */
    }
    for (unsigned i = 0; i < n; i++) {
        const double value = cli_spark_history_get(history, n - 1 - i);

        cli_grid_put(grid, row, col + width - n + i, look,
                     isfinite(value) ? column(grid, cli_spark_level(value, least, most)) : '!');
    }
}

void cli_bar_draw(struct cli_grid *grid, unsigned row, unsigned col, unsigned width,
                  const struct cli_bar_part *parts, unsigned n_parts, double whole)
{
    const unsigned inner = width > 2 ? width - 2 : 0;
    double sum = 0;
    unsigned from = 0;

    cli_grid_put(grid, row, col, 0, '[');
    for (unsigned i = 0; i < n_parts; i++) {
        double end;

        sum += parts[i].size;
        end = whole > 0 ? fmin(sum / whole, 1) * inner : 0;
        for (; from < (unsigned)lround(end); from++) {
            cli_grid_put(grid, row, col + 1 + from, parts[i].look, parts[i].ch);
        }
    }
    for (; from < inner; from++) {
        cli_grid_put(grid, row, col + 1 + from, 0, grid->utf8 ? 0xB7 : '.'); /* A middle dot. */
    }
    cli_grid_put(grid, row, col + 1 + inner, 0, ']');
}
