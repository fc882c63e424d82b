/* SPDX-License-Identifier: Apache-2.0 */
/* Runs plan searches in threads beside the loop, in the order of search_queue.h, each for a bounded
 * time. Knows nothing of plans and jobs: a search is a task with three functions. Loop thread only,
 * but for cst_search_task_stops and the task's run. */
#ifndef CST_SEARCHES_H
#define CST_SEARCHES_H

#include "daemon/later.h"
#include "daemon/search_queue.h"

#include <stdatomic.h>
#include <uv.h>

struct cst_search_task;

struct cst_searches {
    uv_loop_t *loop;               /* the daemon's */
    struct cst_later_queue *later; /* the daemon's */
    uint64_t limit_ns;             /* longest that a search may run; see cst_search_task_stops */
    struct cst_search_queue queue;
};

struct cst_search_task_ops {
    /* Loop thread, when the task's turn has come. False: there is nothing to run, end follows. */
    bool (*prepare)(struct cst_search_task *task);
    /* In a thread; touches nothing that the loop thread touches meanwhile. */
    void (*run)(struct cst_search_task *task);
    /* Loop thread, never from within a call of this header, when all is over; may free the task. */
    void (*end)(struct cst_search_task *task);
};

/* Embedded in the caller's object, which lives until end is called. */
struct cst_search_task {
    struct cst_searches *searches;
    const struct cst_search_task_ops *ops;
    struct cst_search_turn turn;
    struct cst_later later; /* calls end where nothing is run */
    uv_work_t work;
    uint64_t began_ns;     /* when its thread began; 0: it has not run */
    uint64_t deadline_ns;  /* when it is to stop */
    atomic_bool cancelled; /* nobody wants the result */
};

void cst_searches_init(struct cst_searches *searches, uv_loop_t *loop,
                       struct cst_later_queue *later, uint32_t limit_s);

/* Run @task, of @uid, when its turn comes; ops->end is called once for it. @work: tensors,
 * operators and uses of the model. CST_ENOMEM: nothing will be called. */
int cst_searches_add(struct cst_searches *searches, struct cst_search_task *task,
                     const struct cst_search_task_ops *ops, uid_t uid, uint64_t work,
                     struct cst_err *err);

/* Nobody wants the result of @task any more. If it runs it is told to stop; else it will not run.
 * Its end follows. */
void cst_search_task_cancel(struct cst_search_task *task);

/* It has been cancelled, or has run for as long as it may. Any thread. */
bool cst_search_task_stops(const struct cst_search_task *task);

#endif
