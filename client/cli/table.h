/* SPDX-License-Identifier: Apache-2.0 */
/* Tables for a terminal, with libsmartcols: a column is as wide as its widest cell. Also numbers in
 * a form for people. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CLI_TABLE_MAX_COLUMNS 20

struct cli_table {
    const char *const *titles; /* Borrowed. A title that begins with '>': aligned to the right. */
    unsigned n_columns;        /* Number of titles. */
    char **cells;              /* Row by row. Owned. */
    size_t n_cells;            /* Number of cells that are filled. */
    size_t capacity;           /* Number of entries allocated in cells. */
    bool failed;               /* Memory was short: the table cannot be printed. */
};

/* Begin a table with 2 to CLI_TABLE_MAX_COLUMNS titles, followed by NULL. */
void cli_table_init(struct cli_table *table, const char *const *titles);

/* Add the next cell, row by row. A lack of memory is reported by cli_table_print. */
void cli_table_cell(struct cli_table *table, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Print the titles and all rows to @out, and free the cells. A table without rows prints nothing.
 * If @out is a terminal that is too narrow for all columns, they are printed in several blocks,
 * each with the first column. A stream in memory is as wide as the terminal that is the standard
 * output. False: out of memory; the error was printed to stderr. */
bool cli_table_print(struct cli_table *table, FILE *out);

/* Free the cells of a table that is not printed. Also allowed for all 0. */
void cli_table_free(struct cli_table *table);

#define CLI_HUMAN_BYTES 24

/* Write bytes as "1.5 GiB" or "0 B". Returns @out. */
const char *cli_bytes(uint64_t bytes, char out[CLI_HUMAN_BYTES]);

/* Write a number as "10.2 M" or "12". Returns @out. */
const char *cli_count(uint64_t n, char out[CLI_HUMAN_BYTES]);

/* Write a time as "350 us", "1.25 s", "3 min 5 s", "2 h 10 min" or "4 d 3 h". Returns @out. */
const char *cli_seconds(double seconds, char out[CLI_HUMAN_BYTES]);

/* Write the share @part of @all as "97.5 %", or "-" if @all is 0. Returns @out. */
const char *cli_percent(uint64_t part, uint64_t all, char out[CLI_HUMAN_BYTES]);

#endif
