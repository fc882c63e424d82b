/* SPDX-License-Identifier: Apache-2.0 */
/* Drawing once, or with --watch again and again until the reader types q, or ends the program. */
#ifndef CLI_WATCH_H
#define CLI_WATCH_H

#include "client/cli/cli.h"

/* Ask the daemon and print to standard output; false: it failed, which was said on stderr. */
typedef bool (*cli_draw_fn)(struct cli *cli, void *arg);

/* Draw once; with --watch also every cli->watch_seconds, on a terminal over the last drawing. Ends
 * when drawing fails, when a signal that ends programs comes, or when q does: keys are read where
 * this process is in the foreground of the terminal that it draws on. However it ends, but for
 * SIGKILL, the terminal is then as it was. Returns an enum cli_exit. */
int cli_watch(struct cli *cli, cli_draw_fn draw, void *arg);

#endif
