/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/watch.h"

#include "client/cli/top/page.h"
#include "client/cli/top/screen.h"
#include "proto/clock.h"

#include <limits.h>
#include <poll.h>
#include <stdlib.h>

/* Draw again and again, one drawing after the other, until one fails. */
static bool print_each(struct cli *cli, cli_draw_fn draw, void *arg)
{
    while (draw(cli, stdout, arg) && fflush(stdout) == 0) {
        const double ms = cli->watch_seconds * 1000;

        (void)poll(NULL, 0, ms < INT_MAX ? (int)ms : INT_MAX);
    }
    return false;
}

/* Return a drawing as text, which the caller frees; NULL: it failed, and the error was printed. */
static char *draw_text(struct cli *cli, cli_draw_fn draw, void *arg)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    bool good = out != NULL && draw(cli, out, arg);

    if (out == NULL || fclose(out) != 0) {
        (void)cli_fail(&(struct cst_err){.text = "out of memory"});
        good = false;
    }
    if (!good) {
        free(text);
        return NULL;
    }
    return text;
}

/* Return the number of the first row of the text that @key leads to. */
static unsigned scroll(unsigned skip, unsigned rows, unsigned n_rows, int key)
{
    const unsigned last = n_rows > rows ? n_rows - rows : 0;

    switch (key) {
    case CLI_KEY_UP:
        return skip > 0 ? skip - 1 : 0;
    case CLI_KEY_PAGE_UP:
        return skip > rows ? skip - rows : 0;
    case CLI_KEY_HOME:
        return 0;
    case CLI_KEY_DOWN:
        return skip < last ? skip + 1 : last;
    case CLI_KEY_PAGE_DOWN:
        return skip + rows < last ? skip + rows : last;
    case CLI_KEY_END:
        return last;
    default:
        return skip;
    }
}

/* Show @text until the time @due_s, from row *skip on, which the user can change. False: the user
 * or a signal ends the program. */
static bool show(const char *text, unsigned *skip, double due_s)
{
    for (;;) {
        struct cli_grid *grid = cli_screen_grid();
        const unsigned n_rows = cli_page_draw(grid, 0, grid->rows, *skip, text);
        int key;

        cli_screen_show();
        switch (cli_screen_wait(-1, due_s, &key)) {
        case CLI_SCREEN_KEY:
            if (key == 'q') {
                return false;
            }
            *skip = scroll(*skip, grid->rows, n_rows, key);
            break;
        case CLI_SCREEN_END:
            return false;
        case CLI_SCREEN_DUE:
            return true;
        case CLI_SCREEN_READY:
        case CLI_SCREEN_RESIZED:
            break;
        }
    }
}

/* Draw in place of the last drawing. Returns false if a drawing failed. */
static bool replace_each(struct cli *cli, cli_draw_fn draw, void *arg)
{
    unsigned skip = 0;
    bool goes_on = true;

    while (goes_on) {
        const double due_s = cst_clock_s() + cli->watch_seconds;
        char *text = draw_text(cli, draw, arg);

        if (text == NULL) {
            return false;
        }
        goes_on = show(text, &skip, due_s);
        free(text);
    }
    return true;
}

int cli_watch(struct cli *cli, cli_draw_fn draw, void *arg)
{
    struct cst_err err = {0};
    bool good;

    if (cli->watch_seconds == 0) {
        good = draw(cli, stdout, arg);
    } else if (cli->json || !cli_screen_is_possible()) {
        good = print_each(cli, draw, arg);
    } else if (cli_screen_open(false, &err) != CST_OK) {
        return cli_fail(&err);
    } else {
        good = replace_each(cli, draw, arg);
        cli_screen_close();
    }
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
