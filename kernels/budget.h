/* SPDX-License-Identifier: Apache-2.0 */
/* A budget of memory bandwidth: while copies wait or are under way, threads that compute stand back
 * from time to time, so that over some milliseconds they are busy at most 1 - share of it. Each
 * thread for itself, between its pieces: for work of t while there were copies it owes
 * t x share / (1 - share), less what it waits for work or for a processor in any case. It stands
 * back when it owes enough for a sleep, which is never as short as a small piece; what it
 * oversleeps is to its credit, and what it still owes when copies end is kept for the next ones, up
 * to one sleep.
 *
 *   copies    |     ______________________|      begin: the first came    end: the last is done
 *   a thread  |=|=|=|=|=|=|=|....|=|=|=|=|=|=|=|      what counts here are four and four pieces
 *
 * It knows the copies that its owner tells it of, and those that accelerators' engines have in the
 * table of proto/traffic.h, which is looked at between pieces. */
#ifndef CST_BUDGET_H
#define CST_BUDGET_H

#include "cistern/status.h"
#include "proto/traffic.h"

#include <pthread.h>
#include <stdint.h>

#define CST_BUDGET_MAX_SHARE 0.9
#define CST_BUDGET_LEAST_NS 500000 /* that is stood back at a time, and most that is credited */

/* What a thread owes. Its own. */
struct cst_budget_debt {
    uint64_t until_ns; /* when its last piece ended */
    int64_t owed_ns;   /* how long it is to stand back from then on; below 0: it has a credit */
};

struct cst_budget {
    double share;                  /* of the time, for copies: 0..CST_BUDGET_MAX_SHARE. Constant */
    struct cst_budget_debt *debts; /* by number of thread. Constant */
    const struct cst_traffic *slots; /* others' copies; borrowed. Constant */
    uint32_t n_slots;                /* same */
    pthread_mutex_t mutex;           /* guards what follows */
    pthread_cond_t quiet;            /* n_copies is 0 */
    uint64_t n_copies;               /* that wait or are under way */
    uint64_t since_ns;               /* monotonic: since when there are some */
    uint64_t held_ns;                /* that threads stood back, all together */
};

/* For threads [0, @n_threads). CST_EINVAL: @share; CST_ENOMEM. */
int cst_budget_open(struct cst_budget *budget, double share, unsigned n_threads,
                    struct cst_err *err);

/* Copies of those @n @slots count as its own from now on. Before any thread uses it. */
void cst_budget_watch(struct cst_budget *budget, const struct cst_traffic *slots, uint32_t n);

/* Nobody uses it any more. */
void cst_budget_close(struct cst_budget *budget);

/* A copy waits from now on; it is done. Any thread, in pairs. */
void cst_budget_begin(struct cst_budget *budget, uint64_t now_ns);
void cst_budget_end(struct cst_budget *budget);

/* Thread @thread did a piece in [@began_ns, @ended_ns), for @busy_ns of which it had a processor.
 * The thread itself. */
void cst_budget_spend(struct cst_budget *budget, unsigned thread, uint64_t began_ns,
                      uint64_t ended_ns, uint64_t busy_ns);

/* Until when @thread stands back, if copies last, at @now_ns; 0: not at all. The thread itself. */
uint64_t cst_budget_due(struct cst_budget *budget, unsigned thread, uint64_t now_ns);

/* Stand back as long as is due: before the thread's next piece. Ends early with the last copy. The
 * thread itself. */
void cst_budget_hold(struct cst_budget *budget, unsigned thread);

/* How long threads stood back, all together. Any thread. */
uint64_t cst_budget_held_ns(struct cst_budget *budget);

#endif
