/* SPDX-License-Identifier: Apache-2.0 */
/* How long the updates of each step are in flight. Owns the rounds of updates; see exposure.c.
 * Called by the parts that issue and end updates, and by commit.c; instant.c reads the struct. */
#ifndef CST_EXPOSURE_H
#define CST_EXPOSURE_H

#include "offload/base/stats.h"

struct cst_core;

/* Durations of updates; see exposure.c. */
struct cst_exposure {
    /* Updates in flight: UPDATEs in place, and COPYs down after device updates. */
    uint32_t n_updates;
    uint64_t since;         /* If n_updates > 0: update_ns includes the time up to here, in ns. */
    uint64_t quiet_since;   /* If n_updates == 0: end of the last update, in ns. */
    uint64_t update_ns;     /* Total time during which updates were in flight. */
    uint64_t round_from_ns; /* Value of update_ns when the current round began. */
    bool open;              /* A round is open: updates of a step have been issued. */
    bool all_issued; /* The round's step is committed: no further update of it will be issued. */
    uint32_t interleave;      /* k of the round's updates; 0: none is a device update. */
    uint64_t n_rounds;        /* Number of completed rounds. */
    uint32_t last_interleave; /* k of the last completed round. */
    /* Time during which updates of the last completed round were in flight. */
    uint64_t last_update_ns;
    uint64_t total_update_ns; /* Sum of last_update_ns over all rounds. */
};

/* A command that ends an update was issued: an UPDATE in place or a COPY down after a device
 * update. */
void cst_exposure_issued(struct cst_core *core);

/* One command was issued in place of @n commands that end an update. */
void cst_exposure_replaced(struct cst_core *core, uint32_t n);

/* The step is committed and all its updates, if any, are issued. */
void cst_exposure_all_issued(struct cst_core *core);

/* A command that ends an update is done. */
void cst_exposure_done(struct cst_core *core);

/* Fill in the statistics about rounds and durations of updates. */
void cst_exposure_stats(const struct cst_core *core, struct cst_core_stats *out);

/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_exposure_check(const struct cst_core *core);

#endif
