/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/svg.h"

#include "client/cli/html.h"
#include "client/cli/table.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

/* Size of a drawing and of its margins, in pixels. */
#define WIDTH 1000.0
#define LEFT 92.0
#define RIGHT 16.0
#define TOP 12.0
#define BOTTOM 30.0

static double place_x(const struct cli_svg *chart, double x)
{
    return chart->left + (x - chart->low_x) / (chart->high_x - chart->low_x) * chart->width;
}

static double place_y(const struct cli_svg *chart, double y)
{
    return chart->top + (1 - (y - chart->low_y) / (chart->high_y - chart->low_y)) * chart->height;
}

static void widen(double *low, double *high)
{
    if (!(*high > *low)) {
        const double room = *low != 0 ? fabs(*low) / 20 : 1;

        *low -= room;
        *high += room;
    }
}

void cli_svg_open(struct cli_svg *chart, FILE *to, double height, const char *name)
{
    chart->to = to;
    chart->left = LEFT;
    chart->top = TOP;
    chart->width = WIDTH - LEFT - RIGHT;
    chart->height = height - TOP - BOTTOM;
    widen(&chart->low_x, &chart->high_x);
    widen(&chart->low_y, &chart->high_y);
    (void)fprintf(to, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", WIDTH, height);
    cli_html_text(to, "%s", name);
    (void)fputs("\">\n", to);
}

void cli_svg_close(struct cli_svg *chart)
{
    (void)fputs("</svg>\n", chart->to);
}

/* -- axes ------------------------------------------------------------------------------------- */

/* Distance between marks: 1, 2 or 5 times a power of ten, of the unit in which bytes are told. */
static double distance_of(double range, enum cli_unit unit, unsigned n)
{
    double scale = 1, step, power;

    while (unit == CLI_UNIT_BYTES && range / scale >= 1024) {
        scale *= 1024;
    }
    step = range / scale / n;
    power = pow(10, floor(log10(step)));
    step /= power;
    return scale * power * (step <= 1 ? 1 : step <= 2 ? 2 : step <= 5 ? 5 : 10);
}

static const char *words_of(double value, double distance, enum cli_unit unit,
                            char out[CLI_HUMAN_BYTES])
{
    if (unit == CLI_UNIT_SECONDS) {
        return value == 0 ? "0" : cli_seconds(value, out);
    }
    if (unit == CLI_UNIT_BYTES) {
        return value < 1 ? "0" : cli_bytes((uint64_t)value, out);
    }
    if (distance >= 1 && value >= 0) {
        return value >= 10000 ? cli_count((uint64_t)value, out)
                              : (snprintf(out, CLI_HUMAN_BYTES, "%.0f", value), out);
    }
    (void)snprintf(out, CLI_HUMAN_BYTES, "%.*f",
                   distance >= 1 ? 0 : (int)ceil(-log10(distance) - 1e-9), value);
    return out;
}

void cli_svg_axis_x(const struct cli_svg *chart, enum cli_unit unit, unsigned n)
{
    const double bottom = chart->top + chart->height;
    const double distance = distance_of(chart->high_x - chart->low_x, unit, n);
    char text[CLI_HUMAN_BYTES];

    (void)fprintf(chart->to, "<path class=\"axis\" d=\"M%.1f %.1fh%.1f\"/>\n", chart->left, bottom,
                  chart->width);
    for (double x = ceil(chart->low_x / distance) * distance;
         unit != CLI_UNIT_NONE && x <= chart->high_x; x += distance) {
        if (unit == CLI_UNIT_NUMBER && x != floor(x)) {
            continue; /* Steps have whole numbers. */
        }
        (void)fprintf(chart->to,
                      "<path class=\"axis\" d=\"M%.1f %.1fv5\"/><text class=\"tick\" x=\"%.1f\" "
                      "y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                      place_x(chart, x), bottom, place_x(chart, x), bottom + 20,
                      words_of(x, distance, unit, text));
    }
}

void cli_svg_axis_y(const struct cli_svg *chart, enum cli_unit unit, unsigned n)
{
    const double distance = distance_of(chart->high_y - chart->low_y, unit, n);
    char text[CLI_HUMAN_BYTES];

    for (double i = ceil(chart->low_y / distance - 1e-9);
         unit != CLI_UNIT_NONE && i * distance <= chart->high_y; i++) {
        const double value = i == 0 ? 0 : i * distance; /* Not -0. */
        const double y = place_y(chart, value);

        (void)fprintf(chart->to,
                      "<path class=\"grid\" d=\"M%.1f %.1fh%.1f\"/><text class=\"tick\" x=\"%.1f\" "
                      "y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                      chart->left, y, chart->width, chart->left - 8, y + 4,
                      words_of(value, distance, unit, text));
    }
}

void cli_svg_label_y(const struct cli_svg *chart, double y, const char *fmt, ...)
{
    char words[64];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    (void)fprintf(chart->to, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">",
                  chart->left - 8, place_y(chart, y) + 4);
    cli_html_text(chart->to, "%s", words);
    (void)fputs("</text>\n", chart->to);
}

void cli_svg_mark_x(const struct cli_svg *chart, double x)
{
    (void)fprintf(chart->to, "<path class=\"mark\" d=\"M%.1f %.1fv%.1f\"/>\n", place_x(chart, x),
                  chart->top, chart->height);
}

/* -- marks ------------------------------------------------------------------------------------ */

void cli_svg_line(const struct cli_svg *chart, const double *x, const double *y, size_t n,
                  const char *colour)
{
    bool drawn = false;

    (void)fprintf(chart->to, "<path class=\"line %s\" d=\"", colour);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(y[i])) {
            drawn = false;
            continue;
        }
        (void)fprintf(chart->to, "%c%.1f %.1f", drawn ? 'L' : 'M', place_x(chart, x[i]),
                      place_y(chart, y[i]));
        drawn = true;
    }
    (void)fputs("\"/>\n", chart->to);
}

static void title(FILE *to, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

static void title(FILE *to, const char *fmt, va_list ap)
{
    char words[256];

    (void)vsnprintf(words, sizeof words, fmt, ap);
    cli_html_element(to, "title", "%s", words);
}

void cli_svg_point(const struct cli_svg *chart, double x, double y, const char *colour,
                   const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)fprintf(chart->to, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\">", colour,
                  place_x(chart, x), place_y(chart, y));
    title(chart->to, fmt, ap);
    (void)fputs("</circle>\n", chart->to);
    va_end(ap);
}

void cli_svg_box(const struct cli_svg *chart, const double x[2], const double y[2],
                 const char *colour, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)fprintf(
        chart->to, "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\">",
        colour, place_x(chart, x[0]), place_y(chart, y[1]),
        place_x(chart, x[1]) - place_x(chart, x[0]), place_y(chart, y[0]) - place_y(chart, y[1]));
    title(chart->to, fmt, ap);
    (void)fputs("</rect>\n", chart->to);
    va_end(ap);
}

void cli_svg_legend(FILE *to, const char *const *names)
{
    (void)fputs("<ul class=\"legend\">", to);
    for (unsigned i = 1; *names != NULL; i++, names++) {
        (void)fprintf(to, "<li><span class=\"key k%u\"></span>", i);
        cli_html_text(to, "%s", *names);
        (void)fputs("</li>", to);
    }
    (void)fputs("</ul>\n", to);
}
