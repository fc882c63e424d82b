/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/top/page.h"

#include <stddef.h>

/* The margin of a line that goes on. Paragraphs of `cistern job` begin with words of this width. */
enum { MARGIN = 10 };

/* Return the end of the part of a line from @begin on that fits in @width columns. It is cut at its
 * last blank, if there is one. */
static const char *fitting(const char *begin, unsigned width)
{
    const char *at = begin, *blank = NULL;

    for (unsigned i = 0; *at != '\0' && *at != '\n'; i++) {
        if (i == width) {
            return blank != NULL ? blank : at;
        }
        if (*at == ' ' && at > begin && at[-1] != ' ') {
            blank = at;
        }
        (void)cli_grid_next(&at);
    }
    return at;
}

static void draw(struct cli_grid *grid, unsigned row, unsigned col, const char *begin,
                 const char *end)
{
    while (begin < end) {
        cli_grid_put(grid, row, col++, 0, cli_grid_next(&begin));
    }
}

unsigned cli_page_draw(struct cli_grid *grid, unsigned row, unsigned rows, unsigned skip,
                       const char *text)
{
    const unsigned margin = grid->cols > 3 * MARGIN ? MARGIN : 0;
    unsigned n = 0, col = 0;

    while (*text != '\0' && grid->cols > 0) {
        const char *end = fitting(text, grid->cols - col);

        if (n >= skip && n - skip < rows) {
            draw(grid, row + n - skip, col, text, end);
        }
        n++;
        col = *end == '\n' || *end == '\0' ? 0 : margin;
        while (*end == ' ') {
            end++;
        }
        text = *end == '\n' ? end + 1 : end;
    }
    return n;
}
