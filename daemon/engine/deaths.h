/* SPDX-License-Identifier: Apache-2.0 */
/* Decides when an engine whose processes die repeatedly is given up.
 * - A node's engine is given up after several deaths within a short time; its processes may die
 *   occasionally for as long as the daemon runs.
 * - An accelerator's engine is given up after several deaths with no completed command in between,
 *   however far apart they are. A process on a device that is gone may need seconds to notice, or
 *   hang until it is killed. */
#ifndef CST_DEATHS_H
#define CST_DEATHS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    /* Deaths in a row that are tolerated; after one more the engine is given up. */
    CSTD_DEATHS_MAX = 5,
    /* Period in seconds within which the deaths of a node's engine must fall. */
    CSTD_DEATHS_SECONDS = 10,
};

/* Deaths in a row. The struct is zeroed at the start and after each completed command. */
struct cstd_deaths {
    unsigned n;        /* Number of deaths in this row. */
    uint64_t first_ns; /* Monotonic time of the first death of this row, ns. */
};

/* Count a death at @now (ns). @accelerator: the engine is an accelerator's. Returns true if the
 * engine must be given up. */
bool cstd_deaths_add(struct cstd_deaths *deaths, bool accelerator, uint64_t now);

#endif
