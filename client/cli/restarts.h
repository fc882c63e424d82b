/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether a rank that died is started again, and after which pause. The first restart comes
 * at once, the next ones after 1 s, 2 s, 4 s, ... up to 30 s. There is a limit of restarts within
 * CLI_RESTARTS_WINDOW_S seconds, so that a rank that cannot run does not die for ever. Restarts
 * that are longer ago do not count. Pure. */
#ifndef CLI_RESTARTS_H
#define CLI_RESTARTS_H

#include <stdbool.h>
#include <stdint.h>

#define CLI_RESTARTS_WINDOW_S 600
#define CLI_RESTARTS_PAUSE_MAX_S 30
#define CLI_RESTARTS_MAX 100 /* Largest limit. */

/* The restarts of one rank. Zeroed: there was none. */
struct cli_restarts {
    uint64_t at_ms[CLI_RESTARTS_MAX]; /* Times of the restarts within the window. */
    unsigned n;                       /* Number of entries in at_ms. */
    unsigned total;                   /* Number of restarts so far, whenever they were. */
};

/* Count a restart of a rank that has died now, at @now_ms of a clock that does not jump, unless
 * there were @limit restarts within the window already. Returns whether the rank may be started
 * again; *pause_ms is then the time to wait before. */
bool cli_restarts_next(struct cli_restarts *restarts, unsigned limit, uint64_t now_ms,
                       uint64_t *pause_ms);

/* Return whether a program that ended with @status, or with the signal @number (0: none), should be
 * started again. It should not after success, nor if the same command cannot succeed (2: the
 * command line is wrong; 126, 127: the program cannot be started), nor if it was asked to end by
 * SIGHUP, SIGINT or SIGTERM, also if it caught the signal (129, 130, 143). */
bool cli_restarts_wanted(int64_t status, int number);

#endif
