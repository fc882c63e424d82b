/* SPDX-License-Identifier: Apache-2.0 */
/* Bars and lines of small columns in a grid, and the history that the latter show. Pure. */
#ifndef CLI_CHART_H
#define CLI_CHART_H

#include "client/cli/top/grid.h"

#define CLI_HISTORY_MAX 256 /* Values that are kept: the last ones. */

/* The last values of a number. All 0: there are none. */
struct cli_spark_history {
    double v[CLI_HISTORY_MAX]; /* A ring. */
    unsigned n;                /* Number of values in v. */
    unsigned next;             /* Where the next value goes. */
};

/* Add a value, which may be NaN or infinite. */
void cli_spark_history_add(struct cli_spark_history *history, double value);

/* Return the value that was added @age values before the last one; @age < n. */
double cli_spark_history_get(const struct cli_spark_history *history, unsigned age);

/* Find the least and largest finite number of the last @n values. False: there is none. */
bool cli_spark_history_range(const struct cli_spark_history *history, unsigned n, double *least,
                             double *most);

#define CLI_SPARK_LEVELS 8

/* Return the height of @value, from 0 to CLI_SPARK_LEVELS - 1, between @least and @most. If both
 * are equal, it is in the middle. */
unsigned cli_spark_level(double value, double least, double most);

/* Draw the last values of @history in at most @width columns from @col on, the last one at the end
 * of them. The scale reaches from the least of these values to the largest; with @from_zero, from
 * 0. A value that is not finite is '!'. */
void cli_spark_draw(struct cli_grid *grid, unsigned row, unsigned col, unsigned width,
                    unsigned look, const struct cli_spark_history *history, bool from_zero);

/* A part of a bar. */
struct cli_bar_part {
    double size;   /* In any unit. */
    uint32_t ch;   /* Character of its cells. */
    unsigned look; /* Look of its cells. */
};

/* Draw @parts in their order as a bar of @width columns, brackets included, of which @whole fills
 * all. A part that ends beyond @whole is cut off. */
void cli_bar_draw(struct cli_grid *grid, unsigned row, unsigned col, unsigned width,
                  const struct cli_bar_part *parts, unsigned n_parts, double whole);

#endif
