/* SPDX-License-Identifier: Apache-2.0 */
/* Shows lines of text in a part of a grid. Pure. */
#ifndef CLI_PAGE_H
#define CLI_PAGE_H

#include "client/cli/top/grid.h"

/* Draw @text in @rows rows from @row on, without its first @skip rows. A line that is too long goes
 * on in the next row, after a margin. Returns the number of rows that all of the text takes. */
unsigned cli_page_draw(struct cli_grid *grid, unsigned row, unsigned rows, unsigned skip,
                       const char *text);

#endif
