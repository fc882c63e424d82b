/* SPDX-License-Identifier: Apache-2.0 */
/* Tables for a terminal, by libsmartcols: columns as wide as their widest cell; and numbers as
 * people read them. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CLI_TABLE_MAX_COLUMNS 20

struct cli_table {
    const char *const *titles; /* borrowed; one that begins with '>' is aligned to the right */
    unsigned n_columns;        /* titles */
    char **cells;              /* row by row; owned */
    size_t n_cells;            /* filled so far */
    size_t capacity;           /* of cells */
    bool failed;               /* out of memory: it cannot be printed */
};

/* @titles: 2 to CLI_TABLE_MAX_COLUMNS, ended by NULL. */
void cli_table_init(struct cli_table *table, const char *const *titles);

/* Add the next cell, row by row. */
void cli_table_cell(struct cli_table *table, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Print the titles and all rows to @out and free the cells. Where @out is a terminal that is too
 * narrow for all columns, they are printed in blocks one below the other, each with the first
 * column, by which the rows are known. Nothing is printed without rows. False: out of memory, said
 * on stderr. */
bool cli_table_print(struct cli_table *table, FILE *out);

#define CLI_HUMAN_BYTES 24

/* "1.5 GiB", "0 B". Returns @out. */
const char *cli_bytes(uint64_t bytes, char out[CLI_HUMAN_BYTES]);

/* "10.2 M", "12". Returns @out. */
const char *cli_count(uint64_t n, char out[CLI_HUMAN_BYTES]);

/* "350 us", "1.25 s", "3 min 5 s", "2 h 10 min", "4 d 3 h". Returns @out. */
const char *cli_seconds(double seconds, char out[CLI_HUMAN_BYTES]);

/* @part of @all as "97.5 %", or "-" when @all is 0. Returns @out. */
const char *cli_percent(uint64_t part, uint64_t all, char out[CLI_HUMAN_BYTES]);

#endif
