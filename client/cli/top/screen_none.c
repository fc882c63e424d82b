/* SPDX-License-Identifier: Apache-2.0 */
/* The screen of a build without ncurses, which cannot be opened. */
#include "client/cli/top/screen.h"

#include <unistd.h>

bool cli_screen_is_possible(void)
{
    /* cli_screen_open then says what is missing. Output elsewhere needs no ncurses. */
    return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && tcgetpgrp(STDIN_FILENO) == getpgrp();
}

int cli_screen_open(bool colour, struct cst_err *err)
{
    (void)colour;
    return cst_err_set(err, CST_EUNSUPPORTED,
                       "this program was built without ncurses: install libncurses-dev, then "
                       "configure and build again; 'cistern stat' needs no ncurses");
}

void cli_screen_close(void)
{
}

struct cli_grid *cli_screen_grid(void)
{
    static struct cli_grid none;

    return &none;
}

void cli_screen_show(void)
{
}

enum cli_screen_event cli_screen_wait(int fd, double due_s, int *key)
{
    (void)fd;
    (void)due_s;
    *key = 0;
    return CLI_SCREEN_END;
}
