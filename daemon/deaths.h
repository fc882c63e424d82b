/* SPDX-License-Identifier: Apache-2.0 */
/* Deaths of an engine's processes in a row: when starting another one is no use. A node's engine
 * may die now and then for as long as the daemon runs. An accelerator's that does nothing between
 * its deaths is given up however far apart they are: a process on a device that is gone may need
 * seconds to find out, or hang until it is killed. */
#ifndef CST_DEATHS_H
#define CST_DEATHS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    CST_DEATHS_MAX = 5,      /* in a row: one more, and it is given up ... */
    CST_DEATHS_SECONDS = 10, /* ... a node's if they came within so long */
};

struct cst_deaths {    /* zeroed: none; again when it has done something */
    unsigned n;        /* in a row */
    uint64_t first_ns; /* when that row began */
};

/* One more, at @now (ns); true: it is to be given up. @accelerator: its engine's, no node's. */
bool cst_deaths_add(struct cst_deaths *deaths, bool accelerator, uint64_t now);

#endif
