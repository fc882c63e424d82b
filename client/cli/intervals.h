/* SPDX-License-Identifier: Apache-2.0 */
/* What a job did lately, as the daemon has recorded it: for `cistern trace` and `cistern report`.
 */
#ifndef CLI_INTERVALS_H
#define CLI_INTERVALS_H

#include "client/cli/cli.h"

/* Zeroed: none. */
struct cli_intervals {
    Cistern__TraceInterval *v; /* In the order of their ends, nearly. Owned. */
    size_t n, capacity;
    bool lost; /* There were earlier ones, which the daemon has forgotten. */
};

/* Get the intervals of the job that the command names, as they are now. False: it failed; the error
 * was printed to stderr, and @out is empty. */
bool cli_intervals_get(struct cli *cli, struct cli_intervals *out);

void cli_intervals_close(struct cli_intervals *intervals);

#endif
