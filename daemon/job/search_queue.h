/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which of the plan searches that wait is run next. Pure: no clock, no threads; searches.c
 * runs them.
 *
 * The queue is fair between users: each user has an account of the time that the user's searches
 * took, and the user with the least time goes first. Among the searches of one user the smallest
 * goes first. Small and large searches have threads of their own, and a user has at most one search
 * of each size under way. Hence a small search never waits for a large one, nor for another user's
 * second search.
 *
 *   add --> WAITING --next--> RUNNING --done--> gone
 *              \--remove--> gone */
#ifndef CST_SEARCH_QUEUE_H
#define CST_SEARCH_QUEUE_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

enum cstd_search_size { CSTD_SEARCH_SMALL, CSTD_SEARCH_LARGE, CSTD_SEARCH_SIZES };

enum {
    CSTD_SEARCH_THREADS = 2,       /* Number of searches of each size that run at once. */
    CSTD_SEARCH_SMALL_WORK = 2048, /* Most work of a small search. */
};

struct cstd_search_user; /* private */

/* A search, embedded in the caller's object. */
struct cstd_search_turn {
    TAILQ_ENTRY(cstd_search_turn) link; /* Entry in the user's list while the search waits. */
    struct cstd_search_user *user;      /* The search's owner. */
    uint64_t work;                      /* Sum of the model's tensors, operators and uses. */
    /* The search was returned by cstd_search_queue_next, and is not done. */
    bool running;
};

struct cstd_search_queue {
    LIST_HEAD(, cstd_search_user) users; /* All users who had a search since the queue was idle. */
    unsigned n_waiting;                  /* Number of searches that wait. */
    unsigned n_running[CSTD_SEARCH_SIZES]; /* Number of searches that run. */
    /* The largest time of an account from which a search was chosen. Accounts of new users begin
     * with this time, for a new user not to overtake all others. */
    uint64_t floor_ns;
};

void cstd_search_queue_init(struct cstd_search_queue *queue);

/* Forget all accounts. The caller makes sure that no search waits or runs. */
void cstd_search_queue_close(struct cstd_search_queue *queue);

/* Add @turn, a search of @uid with @work. CST_ENOMEM. */
int cstd_search_queue_add(struct cstd_search_queue *queue, struct cstd_search_turn *turn, uid_t uid,
                          uint64_t work, struct cst_err *err);

/* Choose the search to run now and mark it as RUNNING. NULL: none waits, or all that wait must wait
 * for one that runs. */
struct cstd_search_turn *cstd_search_queue_next(struct cstd_search_queue *queue);

/* @turn, which was RUNNING, has ended after @ns. The time is charged to its user. */
void cstd_search_queue_done(struct cstd_search_queue *queue, struct cstd_search_turn *turn,
                            uint64_t ns);

/* Remove @turn, which is WAITING. */
void cstd_search_queue_remove(struct cstd_search_queue *queue, struct cstd_search_turn *turn);

#endif
