/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the plan searches that wait is run next. Pure: no clock, no threads; planner.c runs
 * them.
 *
 * The queue is fair between users: each has an account of the time that its searches took, and the
 * user whose searches took least goes first. Among the searches of one user the smallest goes
 * first. Small searches and large ones have threads of their own, and a user has at most one search
 * of each kind under way, so that a small search never waits for a large one, nor for another
 * user's second.
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

enum cst_search_size { CST_SEARCH_SMALL, CST_SEARCH_LARGE, CST_SEARCH_SIZES };

enum {
    CST_SEARCH_THREADS = 2,       /* searches of each size that run at once */
    CST_SEARCH_SMALL_WORK = 2048, /* most work of a small one */
};

struct cst_search_user; /* private */

/* A search, embedded in the caller's object. */
struct cst_search_turn {
    TAILQ_ENTRY(cst_search_turn) link; /* in its user's list while it waits */
    struct cst_search_user *user;      /* whose it is */
    uint64_t work;                     /* tensors, operators and uses of the model */
    bool running;                      /* it has been returned by next, and is not done */
};

struct cst_search_queue {
    LIST_HEAD(, cst_search_user) users;   /* all that had a search since the queue was idle */
    unsigned n_waiting;                   /* searches */
    unsigned n_running[CST_SEARCH_SIZES]; /* searches */
    uint64_t floor_ns;                    /* what the account of the last user that was chosen said;
                                             accounts of new users begin there */
};

void cst_search_queue_init(struct cst_search_queue *queue);

/* Forget all accounts. Nothing waits or runs. */
void cst_search_queue_close(struct cst_search_queue *queue);

/* @turn, of @uid, waits. CST_ENOMEM. */
int cst_search_queue_add(struct cst_search_queue *queue, struct cst_search_turn *turn, uid_t uid,
                         uint64_t work, struct cst_err *err);

/* The search that is to be run now, which is RUNNING then; NULL: none waits, or all that wait must
 * wait for one that runs. */
struct cst_search_turn *cst_search_queue_next(struct cst_search_queue *queue);

/* @turn, RUNNING, has ended after @ns, which its user's account is charged with. */
void cst_search_queue_done(struct cst_search_queue *queue, struct cst_search_turn *turn,
                           uint64_t ns);

/* @turn, WAITING, is not wanted any more. */
void cst_search_queue_remove(struct cst_search_queue *queue, struct cst_search_turn *turn);

#endif
