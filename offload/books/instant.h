/* SPDX-License-Identifier: Apache-2.0 */
/* Exposed update time: how much later a step is because of its updates. Owns the second clock, on
 * which updates take no time, and the times of chunks; see instant.c. core.c tells it the events,
 * actions.c the commands, waiting.c the grants, and commit.c the commits. */
#ifndef CST_INSTANT_H
#define CST_INSTANT_H

#include "offload/base/event.h"
#include "offload/base/flight.h"

struct cst_core;

/* Engines with lanes of their own; all further engines share one more set of lanes. */
#define CST_CLOCK_ENGINES 127

enum cst_clock_lane { CST_CLOCK_UP, CST_CLOCK_DOWN, CST_CLOCK_TEAM, CST_CLOCK_LANES };

/* State of the second clock, on which updates take no time; see instant.c. */
struct cst_clock {
    uint64_t now;    /* Instant of the current event, in ns. */
    uint64_t commit; /* Latest instant of the events that the commit waits for. */
    /* By how many ns the last commit was earlier on this clock than on the first one. */
    uint64_t lag;
    /* Exposed update time of the last step, and of all steps. */
    uint64_t last_exposed_ns, total_exposed_ns;
    /* Per engine: time without a sum on this clock that no delayed sum has used yet. */
    uint64_t idle_ns[CST_CLOCK_ENGINES + 1];
    /* End of the last command of each lane. */
    struct cst_moment lanes[CST_CLOCK_ENGINES + 1][CST_CLOCK_LANES];
};

/* Kinds of commands of a chunk whose undisturbed duration is known: copies into pools in forward
 * and in backward passes, and sums. */
enum cst_quiet { CST_QUIET_FORWARD, CST_QUIET_BACKWARD, CST_QUIET_SUM, CST_QUIETS };

/* Durations and ends of a chunk's commands. */
struct cst_chunk_times {
    /* Time that a GPU works on the chunk, forward and backward; 0: not known. */
    uint64_t work_ns[2];
    /* Duration of copies and sums while no update is in flight; 0: not known. */
    uint64_t quiet_ns[CST_QUIETS];
    struct cst_moment update_end; /* End of the last update. */
    struct cst_moment updated;    /* End of the last update whose weights fetches waited for. */
    struct cst_moment sum_end;    /* End of the last sum of the chunk's gradient. */
    struct cst_moment landed;     /* End of the last copy of the chunk's gradient to a landing. */
};

/* Compute the instant of @event. Must be called before anything else handles the event. */
void cst_instant_begin(struct cst_core *core, const struct cst_event *event);

/* A command is issued: set @flight->issued and, for a REDUCE, @flight->idle. */
void cst_instant_issued(struct cst_core *core, struct cst_flight *flight);

/* A command is complete: compute the instant. Must be called before anything else handles the
 * completion. */
void cst_instant_done(struct cst_core *core, const struct cst_flight *flight);

/* Block @b of @rank is granted. @ahead: the worker does not wait for it. */
void cst_instant_granted(struct cst_core *core, uint32_t rank, uint32_t b, bool ahead);

/* The step is committed. */
void cst_instant_committed(struct cst_core *core);

/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_instant_check(const struct cst_core *core);

#endif
