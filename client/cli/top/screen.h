/* SPDX-License-Identifier: Apache-2.0 */
/* The terminal as a screen that is drawn as a whole, and the keys that are typed there. Text that
 * was on the terminal is shown again afterwards. One screen per process, which has one thread.
 * screen.c needs ncurses; without it, screen_none.c only says so. */
#ifndef CLI_SCREEN_H
#define CLI_SCREEN_H

#include "cistern/status.h"
#include "client/cli/top/grid.h"

/* Keys that are no characters. */
enum {
    CLI_KEY_UP = 0x200,
    CLI_KEY_DOWN,
    CLI_KEY_LEFT,
    CLI_KEY_RIGHT,
    CLI_KEY_PAGE_UP,
    CLI_KEY_PAGE_DOWN,
    CLI_KEY_HOME,
    CLI_KEY_END,
    CLI_KEY_ENTER,
    CLI_KEY_ESCAPE,
};

/* True if input and output are a terminal, and the process is in its foreground. Another process
 * would be stopped when it changes the terminal. */
bool cli_screen_is_possible(void);

/* Take the terminal over until cli_screen_close, or until a signal ends the program. @colour: use
 * colours if the terminal has them. CST_EUNSUPPORTED: it cannot be used, and @err has the remedy.
 */
int cli_screen_open(bool colour, struct cst_err *err);

/* Give the terminal back as it was. Does nothing if it is not taken over. */
void cli_screen_close(void);

/* Return an empty grid of the present size of the terminal. It belongs to the screen. */
struct cli_grid *cli_screen_grid(void);

/* Show the grid. */
void cli_screen_show(void);

enum cli_screen_event {
    CLI_SCREEN_KEY,     /* A key was typed. */
    CLI_SCREEN_READY,   /* The descriptor can be read. */
    CLI_SCREEN_DUE,     /* The time has come. */
    CLI_SCREEN_RESIZED, /* The terminal has another size. */
    CLI_SCREEN_END,     /* A signal asks the program to end, or the terminal is gone. */
};

/* Wait for one of these events: a key, which is in *key; @fd (-1: none) can be read; the monotonic
 * clock (proto/clock.h) shows @due_s. A second signal of those that ask the program to end, ends it
 * at once. */
enum cli_screen_event cli_screen_wait(int fd, double due_s, int *key);

#endif
