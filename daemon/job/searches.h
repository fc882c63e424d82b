/* SPDX-License-Identifier: Apache-2.0 */
/* Runs plan searches in threads, in the order of search_queue.h, each for a limited time. Knows
 * nothing of plans and jobs: a search is a task with three functions. Loop thread only, except for
 * cstd_search_task_stops and the task's function run. */
#ifndef CST_SEARCHES_H
#define CST_SEARCHES_H

#include "daemon/base/deferred.h"
#include "daemon/job/search_queue.h"

#include <stdatomic.h>
#include <uv.h>

/* Niceness of searches, and of what else runs in the daemon's threads. If processors are few,
 * engines and workers go first: a search has limited time, and the best plan that it has found by
 * then is used. */
#define CSTD_SEARCHES_NICE 5

struct cstd_search_task;

struct cstd_searches {
    uv_loop_t *loop;                   /* belongs to the daemon */
    struct cstd_deferred_queue *later; /* belongs to the daemon */
    uint64_t limit_ns;                 /* Longest time of a search; see cstd_search_task_stops. */
    struct cstd_search_queue queue;
};

struct cstd_search_task_ops {
    /* Called on the loop thread when the task's turn has come. False: there is nothing to run, and
     * end follows. */
    bool (*prepare)(struct cstd_search_task *task);
    /* Called in a thread of its own. Must not touch what the loop thread may touch meanwhile. */
    void (*run)(struct cstd_search_task *task);
    /* Called on the loop thread at the end, never within a call of this header. May free the
     * task. */
    void (*end)(struct cstd_search_task *task);
};

/* A search, embedded in the caller's object, which must live until end is called. */
struct cstd_search_task {
    struct cstd_searches *searches;
    const struct cstd_search_task_ops *ops;
    struct cstd_search_turn turn;
    struct cstd_deferred later; /* Calls end if nothing was run. */
    uv_work_t work;
    uint64_t began_ns;     /* When the thread began; 0: it has not. */
    uint64_t deadline_ns;  /* When the task must stop. */
    atomic_bool cancelled; /* The result is not wanted any more. */
};

void cstd_searches_init(struct cstd_searches *searches, uv_loop_t *loop,
                        struct cstd_deferred_queue *later, uint32_t limit_s);

/* Run @task of @uid when its turn comes; ops->end is called once at its end. @work: number of
 * tensors, operators and uses of the model. CST_ENOMEM: no function will be called. */
int cstd_searches_add(struct cstd_searches *searches, struct cstd_search_task *task,
                      const struct cstd_search_task_ops *ops, uid_t uid, uint64_t work,
                      struct cst_err *err);

/* The result of @task is not wanted any more. A task that runs is told to stop; a task that waits
 * will not run. ops->end follows in both cases. */
void cstd_search_task_cancel(struct cstd_search_task *task);

/* Return whether @task has been cancelled or has used up its time. Any thread. */
bool cstd_search_task_stops(const struct cstd_search_task *task);

#endif
