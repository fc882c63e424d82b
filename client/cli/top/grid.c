/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/top/grid.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { REPLACEMENT = 0xFFFD, LINE = 1024 };

bool cli_grid_reset(struct cli_grid *grid, unsigned rows, unsigned cols)
{
    const size_t n = (size_t)rows * cols;

    if (rows != grid->rows || cols != grid->cols || grid->cells == NULL) {
        free(grid->cells);
        grid->cells = calloc(n + 1, sizeof *grid->cells);
        grid->rows = grid->cells != NULL ? rows : 0;
        grid->cols = grid->cells != NULL ? cols : 0;
    }
    for (size_t i = 0; grid->cells != NULL && i < n; i++) {
        grid->cells[i] = (struct cli_cell){.ch = ' '};
    }
    return grid->cells != NULL;
}

void cli_grid_free(struct cli_grid *grid)
{
    free(grid->cells);
    *grid = (struct cli_grid){0};
}

void cli_grid_put(struct cli_grid *grid, unsigned row, unsigned col, unsigned look, uint32_t ch)
{
    if (row < grid->rows && col < grid->cols) {
        grid->cells[(size_t)row * grid->cols + col] =
            (struct cli_cell){.ch = ch, .look = (uint8_t)look};
    }
}

/* Return the number of bytes of a character that begins with @first; 0: no character does. */
static unsigned length_of(unsigned char first)
{
    if (first < 0x80) {
        return 1;
    }
    if (first < 0xC2 || first > 0xF4) {
        return 0;
    }
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

uint32_t cli_grid_next(const char **text)
{
    const unsigned char *s = (const unsigned char *)*text;
    const unsigned n = length_of(s[0]);
    uint32_t ch = n <= 1 ? s[0] : s[0] & (0x7Fu >> n);

    if (s[0] == '\0') {
        return 0;
    }
    for (unsigned i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            *text += 1;
            return REPLACEMENT;
        }
        ch = ch << 6 | (s[i] & 0x3F);
    }
    *text += n > 0 ? n : 1;
    return n > 0 ? ch : REPLACEMENT;
}

unsigned cli_grid_width(const char *text)
{
    unsigned n = 0;

    while (cli_grid_next(&text) != 0) {
        n++;
    }
    return n;
}

unsigned cli_grid_field(struct cli_grid *grid, unsigned row, unsigned col, unsigned width,
                        bool right, unsigned look, const char *text)
{
    const unsigned n = cli_grid_width(text), blanks = right && n < width ? width - n : 0;

    for (unsigned i = 0; i < width; i++) {
        uint32_t ch = i >= blanks ? cli_grid_next(&text) : 0;

        cli_grid_put(grid, row, col + i, look, ch != 0 ? ch : ' ');
    }
    return col + width;
}

unsigned cli_grid_print(struct cli_grid *grid, unsigned row, unsigned col, unsigned look,
                        const char *fmt, ...)
{
    char text[LINE] = "";
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return cli_grid_field(grid, row, col, cli_grid_width(text), false, look, text);
}
