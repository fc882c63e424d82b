/* SPDX-License-Identifier: Apache-2.0 */
/* A budget of memory bandwidth. While copies wait or are under way, the threads that compute pause
 * from time to time. Over some milliseconds they are busy for at most (1 - share) of the time.
 *
 * Each thread keeps its own account and pauses between its pieces. A thread that worked for time t
 * while there were copies owes a pause of t x share / (1 - share). Time in which the thread waits
 * for work or for a processor reduces the debt. The thread pauses when its debt is long enough for
 * a sleep; a small piece of work is shorter than the shortest sleep. Time that a thread oversleeps
 * is credited. When copies end, the remaining debt is kept for the next copies, up to the length of
 * one sleep.
 *
 *   copies    |     ______________________|      begin: first copy       end: last copy is done
 *   a thread  |=|=|=|=|=|=|=|....|=|=|=|=|=|=|=|  four pieces before the pause and four after count
 *
 * The budget counts the copies that its owner reports, and the copies that the engines of
 * accelerators enter in the table of proto/traffic.h. The table is read between pieces. */
#ifndef CSTE_BANDWIDTH_SHARE_H
#define CSTE_BANDWIDTH_SHARE_H

#include "cistern/status.h"
#include "proto/traffic.h"

#include <pthread.h>
#include <stdint.h>

#define CSTE_BANDWIDTH_SHARE_MAX_SHARE 0.9
/* Shortest pause of a thread, and the largest credit, in nanoseconds. */
#define CSTE_BANDWIDTH_SHARE_LEAST_NS 500000

/* The account of one thread. Only the thread itself uses it. */
struct cste_bandwidth_share_debt {
    uint64_t until_ns; /* Time when the last piece of the thread ended. */
    /* Pause that the thread owes, counted from until_ns. A negative value is a credit. */
    int64_t owed_ns;
};

/* A budget of one engine, shared by its team and its lanes. */
struct cste_bandwidth_share {
    /* Share of the time that is left to copies, 0 to CSTE_BANDWIDTH_SHARE_MAX_SHARE. Constant. */
    double share;
    /* Owned array of accounts, indexed by thread number. Constant. */
    struct cste_bandwidth_share_debt *debts;
    const struct cst_traffic *slots; /* Copies of other engines; borrowed. Constant. */
    uint32_t n_slots;                /* Number of slots. Constant. */
    pthread_mutex_t mutex;           /* Guards the fields below. */
    pthread_cond_t quiet;            /* Signalled when n_copies becomes 0. */
    uint64_t n_copies;               /* Number of copies that wait or are under way. */
    uint64_t since_ns;               /* Monotonic time since when n_copies has not been 0. */
    uint64_t held_ns;                /* Total time that all threads have paused. */
};

/* Open a budget for threads [0, @n_threads). CST_EINVAL: @share is out of range; CST_ENOMEM. */
int cste_bandwidth_share_open(struct cste_bandwidth_share *budget, double share, unsigned n_threads,
                              struct cst_err *err);

/* Count the copies in @slots (@n of them; borrowed) as well. Called before any thread uses the
 * budget. */
void cste_bandwidth_share_watch(struct cste_bandwidth_share *budget,
                                const struct cst_traffic *slots, uint32_t n);

/* Release the budget. No thread uses it any more. */
void cste_bandwidth_share_close(struct cste_bandwidth_share *budget);

/* cste_bandwidth_share_begin: a copy waits from @now_ns on. cste_bandwidth_share_end: the copy is
 * done. Every begin is followed by one end. Any thread. */
void cste_bandwidth_share_begin(struct cste_bandwidth_share *budget, uint64_t now_ns);
void cste_bandwidth_share_end(struct cste_bandwidth_share *budget);

/* Record a piece that thread @thread ran from @began_ns to @ended_ns. @busy_ns is the processor
 * time that the thread used for the piece. Called by the thread itself. */
void cste_bandwidth_share_spend(struct cste_bandwidth_share *budget, unsigned thread,
                                uint64_t began_ns, uint64_t ended_ns, uint64_t busy_ns);

/* Returns the time until which @thread has to pause if copies continue, seen at @now_ns; 0: no
 * pause is due. Called by the thread itself. */
uint64_t cste_bandwidth_share_due(struct cste_bandwidth_share *budget, unsigned thread,
                                  uint64_t now_ns);

/* Pause as long as is due; called before the next piece of the thread. The pause ends early when
 * the last copy ends. Called by the thread itself. */
void cste_bandwidth_share_hold(struct cste_bandwidth_share *budget, unsigned thread);

/* Returns the total time that all threads have paused. Any thread. */
uint64_t cste_bandwidth_share_held_ns(struct cste_bandwidth_share *budget);

#endif
