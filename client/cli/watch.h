/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the output of a command once or, with --watch, repeatedly until the user types q or a
 * signal ends the program. */
#ifndef CLI_WATCH_H
#define CLI_WATCH_H

#include "client/cli/cli.h"

#include <stdio.h>

/* Get data from the daemon and print it to @out. False: it failed, and the error was printed to
 * stderr. */
typedef bool (*cli_draw_fn)(struct cli *cli, FILE *out, void *arg);

/* Draw once. With --watch, draw again every cli->watch_seconds until a drawing fails or a signal
 * ends the program. In the foreground of a terminal (top/screen.h), each drawing replaces the last
 * one, arrows move the text, q ends, and the terminal is then as it was before, except after
 * SIGKILL. JSON, and text for another process, are printed one after the other. Returns an enum
 * cli_exit. */
int cli_watch(struct cli *cli, cli_draw_fn draw, void *arg);

#endif
