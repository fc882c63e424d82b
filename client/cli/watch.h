/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the output of a command once or, with --watch, repeatedly until the user types q or a
 * signal ends the program. */
#ifndef CLI_WATCH_H
#define CLI_WATCH_H

#include "client/cli/cli.h"

/* Get data from the daemon and print it to standard output. False: it failed, and the error was
 * printed to stderr. */
typedef bool (*cli_draw_fn)(struct cli *cli, void *arg);

/* Draw once. With --watch, draw again every cli->watch_seconds; on a terminal each drawing replaces
 * the last one. Returns an enum cli_exit. It ends when one of these happens:
 *   - A drawing fails.
 *   - A signal that ends programs arrives.
 *   - The user types q. Keys are read only if the process is in the foreground of a terminal, and
 *     draws on a terminal.
 * The terminal is then as it was before, except after SIGKILL. */
int cli_watch(struct cli *cli, cli_draw_fn draw, void *arg);

#endif
