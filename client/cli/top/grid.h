/* SPDX-License-Identifier: Apache-2.0 */
/* A picture of the terminal: characters with their looks, in rows and columns. Whatever is drawn
 * outside of it is cut off. screen.h shows it. It knows nothing of terminals. */
#ifndef CLI_GRID_H
#define CLI_GRID_H

#include <stdbool.h>
#include <stdint.h>

/* A look is a colour, and perhaps these. */
enum cli_look {
    CLI_LOOK_COLOUR = 7, /* Mask of the colour: 0 is that of the terminal, others as in curses. */
    CLI_LOOK_RED = 1,
    CLI_LOOK_GREEN = 2,
    CLI_LOOK_YELLOW = 3,
    CLI_LOOK_CYAN = 6,
    CLI_LOOK_BOLD = 8,
    CLI_LOOK_REVERSE = 16,
};

struct cli_cell {
    uint32_t ch;  /* Code point of a character that is one column wide. */
    uint8_t look; /* See enum cli_look. */
};

struct cli_grid {
    unsigned rows, cols;    /* Size. */
    bool utf8;              /* Characters that are not ASCII can be shown. */
    struct cli_cell *cells; /* Row by row. Owned. */
};

/* Set the size and clear all cells. False: out of memory; the grid then has the size 0. */
bool cli_grid_reset(struct cli_grid *grid, unsigned rows, unsigned cols);

/* Free the cells. */
void cli_grid_free(struct cli_grid *grid);

/* Set one cell. */
void cli_grid_put(struct cli_grid *grid, unsigned row, unsigned col, unsigned look, uint32_t ch);

/* Read the next character of the UTF-8 text *text and advance *text. A byte that is not part of a
 * character is U+FFFD. 0: the text is at its end. */
uint32_t cli_grid_next(const char **text);

/* Return the number of characters of @text. */
unsigned cli_grid_width(const char *text);

/* Draw @text in @width columns from @col on: cut off if it is longer, and followed by blanks if it
 * is shorter. With @right, the blanks precede it. Returns the column after them. */
unsigned cli_grid_field(struct cli_grid *grid, unsigned row, unsigned col, unsigned width,
                        bool right, unsigned look, const char *text);

/* Draw a text of any length. Returns the column after it. */
unsigned cli_grid_print(struct cli_grid *grid, unsigned row, unsigned col, unsigned look,
                        const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#endif
