/* SPDX-License-Identifier: Apache-2.0 */
/* The columns of the table of jobs of `cistern top`: titles, widths, cells, and orders. A new
 * column is one row of the table. Pure. */
#ifndef CLI_TOP_COLUMNS_H
#define CLI_TOP_COLUMNS_H

#include "client/cli/top/model.h"

#define CLI_TOP_CELL 64 /* Bytes of a cell. */

struct cli_top_column {
    const char *title;
    unsigned least, most; /* Width on narrow terminals, and the largest one. */
    bool right;           /* Aligned to the right. */
    /* Write the cell of @job. */
    void (*cell)(const struct cli_top_model *model, const struct cli_top_job *job,
                 char out[CLI_TOP_CELL]);
    /* The number by which jobs are sorted, the largest first; NaN: last. NULL: they are sorted by
     * the texts of their cells. */
    double (*key)(const struct cli_top_model *model, const struct cli_top_job *job);
};

#define CLI_TOP_COLUMNS 14
#define CLI_TOP_FIRST_OF_STEP 5 /* The columns from TIME on are about steps. */

extern const struct cli_top_column cli_top_columns[CLI_TOP_COLUMNS];

/* Sort the jobs of @model by column @column. Jobs that are equal there are sorted by name. */
void cli_top_sort(struct cli_top_model *model, unsigned column);

/* Divide @width columns of a terminal: set the width of each column, which are separated by blanks.
 * All widths are at least `least`, even if that is more than @width. */
void cli_top_widths(unsigned width, unsigned widths[CLI_TOP_COLUMNS]);

#endif
