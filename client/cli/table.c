#include "client/cli/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

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

static void measure(const struct cli_table *table, int *widths)
{
    for (unsigned c = 0; c < table->n_columns; c++) {
        widths[c] = (int)strlen(words(table->titles[c]));
    }
    for (size_t i = 0; i < table->n_cells; i++) {
        int n = (int)strlen(table->cells[i]);

        if (n > widths[i % table->n_columns]) {
            widths[i % table->n_columns] = n;
        }
    }
}

/* The last column has no blanks behind it. */
static void print_cell(FILE *out, const struct cli_table *table, unsigned column, int width,
                       const char *text)
{
    bool last = column + 1 == table->n_columns;

    if (right(table->titles[column])) {
        (void)fprintf(out, "%*s%s", width, text, last ? "\n" : "  ");
    } else if (last) {
        (void)fprintf(out, "%s\n", text);
    } else {
        (void)fprintf(out, "%-*s  ", width, text);
    }
}

bool cli_table_print(struct cli_table *table, FILE *out, unsigned indent)
{
    int widths[CLI_TABLE_MAX_COLUMNS];
    bool good = !table->failed;

    if (good) {
        measure(table, widths);
        for (unsigned c = 0; c < table->n_columns; c++) {
            (void)fprintf(out, "%*s", c == 0 ? (int)indent : 0, "");
            print_cell(out, table, c, widths[c], words(table->titles[c]));
        }
        for (size_t i = 0; i < table->n_cells; i++) {
            unsigned c = (unsigned)(i % table->n_columns);

            (void)fprintf(out, "%*s", c == 0 ? (int)indent : 0, "");
            print_cell(out, table, c, widths[c], table->cells[i]);
        }
    } else {
        (void)fprintf(stderr, "cistern: out of memory\n");
    }
    for (size_t i = 0; i < table->n_cells; i++) {
        free(table->cells[i]);
    }
    free(table->cells);
    *table = (struct cli_table){0};
    return good;
}

/* @value in units that grow by @base, three figures or so. */
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
    } else if (seconds < 0.9995) { /* above, three figures would be 1e+03 */
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
