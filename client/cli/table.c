/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/table.h"

#include <libsmartcols.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void cli_table_init(struct cli_table *table, const char *const *titles)
{
    *table = (struct cli_table){.titles = titles};
    while (titles[table->n_columns] != NULL) {
        table->n_columns++;
    }
}

void cli_table_cell(struct cli_table *table, const char *fmt, ...)
{
    va_list ap;
    char *text = NULL;

    if (table->n_cells == table->capacity) {
        size_t capacity = table->capacity == 0 ? 64 : 2 * table->capacity;
        char **moved = realloc(table->cells, capacity * sizeof *moved);

        if (moved == NULL) {
            table->failed = true;
            return;
        }
        table->cells = moved;
        table->capacity = capacity;
    }
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0) {
        text = NULL;
        table->failed = true;
    }
    va_end(ap);
    if (text != NULL) {
        table->cells[table->n_cells++] = text;
    }
}

static bool right(const char *title)
{
    return title[0] == '>';
}

static const char *words(const char *title)
{
    return right(title) ? title + 1 : title;
}

static void measure(const struct cli_table *table, unsigned *widths)
{
    for (unsigned c = 0; c < table->n_columns; c++) {
        widths[c] = (unsigned)strlen(words(table->titles[c]));
    }
    for (size_t i = 0; i < table->n_cells; i++) {
        unsigned n = (unsigned)strlen(table->cells[i]), *width = &widths[i % table->n_columns];

        *width = n > *width ? n : *width;
    }
}

/* Return the width of the terminal @out; UINT_MAX: it is not a terminal, or its width is unknown. A
 * stream in memory is for the terminal that is the standard output. */
static unsigned room_of(FILE *out)
{
    const int fd = fileno(out) >= 0 ? fileno(out) : STDOUT_FILENO;
    struct winsize size;

    return isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                                                                              : UINT_MAX;
}

/* Find the columns that fit beside the first column, from column @from on, of @n. Returns the index
 * after the last of these columns. There is at least one, even if it is too wide. */
static unsigned fitting(const unsigned *widths, unsigned from, unsigned n, unsigned room)
{
    unsigned used = widths[0], end = from;

    while (end < n) {
        used += 2 + widths[end];
        if (used > room && end > from) {
            break;
        }
        end++;
    }
    return end;
}

static bool add_column(struct libscols_table *shape, const char *title)
{
    return scols_table_new_column(shape, words(title), 0, right(title) ? SCOLS_FL_RIGHT : 0) !=
           NULL;
}

/* Print the first column, which identifies the rows, and columns @from to @end - 1 of all rows.
 * False: out of memory. */
static bool print_block(const struct cli_table *table, FILE *out, unsigned from, unsigned end)
{
    struct libscols_table *shape = scols_new_table();
    bool good = shape != NULL && scols_table_set_column_separator(shape, "  ") == 0 &&
                scols_table_set_termforce(shape, SCOLS_TERMFORCE_NEVER) == 0 &&
                add_column(shape, table->titles[0]);

    for (unsigned c = from; good && c < end; c++) {
        good = add_column(shape, table->titles[c]);
    }
    for (size_t row = 0; good && row < table->n_cells; row += table->n_columns) {
        struct libscols_line *line = scols_table_new_line(shape, NULL);

        good = line != NULL && scols_line_set_data(line, 0, table->cells[row]) == 0;
        for (unsigned c = from; good && c < end; c++) {
            good = scols_line_set_data(line, 1 + c - from, table->cells[row + c]) == 0;
        }
    }
    good = good && scols_table_set_stream(shape, out) == 0 && scols_print_table(shape) == 0;
    scols_unref_table(shape);
    return good;
}

static bool print_blocks(const struct cli_table *table, FILE *out)
{
    unsigned widths[CLI_TABLE_MAX_COLUMNS], room = room_of(out), n = table->n_columns, end;
    bool good = true;

    measure(table, widths);
    while (n > 1 && widths[n - 1] == 0) {
        n--; /* A column without a title, in which there is nothing. */
    }
    for (unsigned from = 1; good && from < n; from = end) {
        end = fitting(widths, from, n, room);
        good = print_block(table, out, from, end);
        if (end < n) {
            (void)fprintf(out, "\n");
        }
    }
    return good;
}

void cli_table_free(struct cli_table *table)
{
    for (size_t i = 0; i < table->n_cells; i++) {
        free(table->cells[i]);
    }
    free(table->cells);
    *table = (struct cli_table){0};
}

bool cli_table_print(struct cli_table *table, FILE *out)
{
    bool good = !table->failed && print_blocks(table, out);

    if (!good) {
        (void)fprintf(stderr, "cistern: out of memory\n");
    }
    cli_table_free(table);
    return good;
}

/* Write @value with about three digits, in units that differ by the factor @base. */
static const char *scale(double value, double base, const char *const *units, unsigned n_units,
                         char *out)
{
    unsigned u = 0;

    while (value >= base && u + 1 < n_units) {
        value /= base;
        u++;
    }
    if (u == 0 || value >= 100) {
        (void)snprintf(out, CLI_HUMAN_BYTES, "%.0f%s%s", value, units[u][0] != '\0' ? " " : "",
                       units[u]);
    } else {
        (void)snprintf(out, CLI_HUMAN_BYTES, "%.*f %s", value >= 10 ? 1 : 2, value, units[u]);
    }
    return out;
}

const char *cli_bytes(uint64_t bytes, char out[CLI_HUMAN_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};

    return scale((double)bytes, 1024, units, 6, out);
}

const char *cli_count(uint64_t n, char out[CLI_HUMAN_BYTES])
{
    static const char *const units[] = {"", "k", "M", "G", "T"};

    return scale((double)n, 1000, units, 5, out);
}

const char *cli_seconds(double seconds, char out[CLI_HUMAN_BYTES])
{
    uint64_t s = seconds > 0 ? (uint64_t)seconds : 0;
    unsigned long long n = s;

    if (seconds < 1e-3) {
        (void)snprintf(out, CLI_HUMAN_BYTES, "%.0f us", seconds * 1e6);
    } else if (seconds < 0.9995) { /* From here on, %.3g would write 1e+03 ms. */
        (void)snprintf(out, CLI_HUMAN_BYTES, "%.3g ms", seconds * 1e3);
    } else if (s < 60) {
        (void)snprintf(out, CLI_HUMAN_BYTES, "%.3g s", seconds);
    } else if (s < 3600) {
        (void)snprintf(out, CLI_HUMAN_BYTES, "%llu min %llu s", n / 60, n % 60);
    } else if (s < 86400) {
        (void)snprintf(out, CLI_HUMAN_BYTES, "%llu h %llu min", n / 3600, n / 60 % 60);
    } else {
        (void)snprintf(out, CLI_HUMAN_BYTES, "%llu d %llu h", n / 86400, n / 3600 % 24);
    }
    return out;
}

const char *cli_percent(uint64_t part, uint64_t all, char out[CLI_HUMAN_BYTES])
{
    if (all == 0) {
        (void)snprintf(out, CLI_HUMAN_BYTES, "-");
    } else {
        (void)snprintf(out, CLI_HUMAN_BYTES, "%.1f %%", 100.0 * (double)part / (double)all);
    }
    return out;
}
