/* SPDX-License-Identifier: Apache-2.0 */
/* Charts as inline SVG. Colours are CSS classes: c1 to c6 for series, so that a page has light and
 * dark ones. A browser shows the title of a mark when the pointer is on it. Write errors stay in
 * the stream.
 *
 *       top  +-----------------+
 *     high_y | |               |     data (x, y) -> place in the plot
 *            | |     plot      |
 *      low_y | +---------------|
 *            |  low_x   high_x |
 *            +-----------------+ */
#ifndef CLI_SVG_H
#define CLI_SVG_H

#include <stdio.h>

/* What an axis counts. */
enum cli_unit { CLI_UNIT_NUMBER, CLI_UNIT_SECONDS, CLI_UNIT_BYTES, CLI_UNIT_NONE };

struct cli_svg {
    FILE *to;                        /* Borrowed. */
    double low_x, high_x;            /* Range of the data in x; low < high. */
    double low_y, high_y;            /* Range of the data in y; low < high. */
    double left, top, width, height; /* The plot in the drawing, in pixels. */
};

/* Begin a chart of @height pixels, with a name for those who do not see it. The ranges of @chart
 * are set; all else is filled in. A range that is empty is widened. */
void cli_svg_open(struct cli_svg *chart, FILE *to, double height, const char *name);
void cli_svg_close(struct cli_svg *chart);

/* Draw the axes, with at most about @n marks on each. NONE: no marks. */
void cli_svg_axis_x(const struct cli_svg *chart, enum cli_unit unit, unsigned n);
void cli_svg_axis_y(const struct cli_svg *chart, enum cli_unit unit, unsigned n);

/* Write a name at @y, to the left of the plot. */
void cli_svg_label_y(const struct cli_svg *chart, double y, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Draw a line through @n points; one that is NaN is a gap. */
void cli_svg_line(const struct cli_svg *chart, const double *x, const double *y, size_t n,
                  const char *colour);

/* Draw a point, or a rectangle, with a title. */
void cli_svg_point(const struct cli_svg *chart, double x, double y, const char *colour,
                   const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void cli_svg_box(const struct cli_svg *chart, const double x[2], const double y[2],
                 const char *colour, const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Draw a vertical line at @x, across the plot. */
void cli_svg_mark_x(const struct cli_svg *chart, double x);

/* Write the names of series, which have the colours c1, c2, ..., up to NULL. */
void cli_svg_legend(FILE *to, const char *const *names);

#endif
