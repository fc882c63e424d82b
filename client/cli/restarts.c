/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/restarts.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>

/* Forget the restarts before the window that ends at @now_ms. */
static void forget(struct cli_restarts *restarts, uint64_t now_ms)
{
    unsigned n_old = 0;

    while (n_old < restarts->n &&
           restarts->at_ms[n_old] + CLI_RESTARTS_WINDOW_S * 1000u <= now_ms) {
        n_old++;
    }
    restarts->n -= n_old;
    memmove(restarts->at_ms, restarts->at_ms + n_old, restarts->n * sizeof restarts->at_ms[0]);
}

/* Return the pause before a restart after @n others. */
static uint64_t pause_after(unsigned n)
{
    uint64_t seconds = n == 0 ? 0 : n > 5 ? CLI_RESTARTS_PAUSE_MAX_S : 1u << (n - 1);

    return 1000 * seconds;
}

bool cli_restarts_next(struct cli_restarts *restarts, unsigned limit, uint64_t now_ms,
                       uint64_t *pause_ms)
{
    forget(restarts, now_ms);
    if (restarts->n >= limit || restarts->n == CLI_RESTARTS_MAX) {
        return false;
    }
    *pause_ms = pause_after(restarts->n);
    restarts->at_ms[restarts->n++] = now_ms + *pause_ms;
    restarts->total++;
    return true;
}

bool cli_restarts_wanted(int64_t status, int number)
{
    static const int final[] = {0, 2, 126, 127, 128 + SIGHUP, 128 + SIGINT, 128 + SIGTERM};
    const int64_t ended = number != 0 ? 128 + number : status;

    for (size_t i = 0; i < sizeof final / sizeof *final; i++) {
        if (ended == final[i]) {
            return false;
        }
    }
    return true;
}
