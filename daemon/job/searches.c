/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/searches.h"

#include <sys/resource.h>

void cstd_searches_init(struct cstd_searches *searches, uv_loop_t *loop,
                        struct cstd_deferred_queue *later, uint32_t limit_s)
{
    *searches = (struct cstd_searches){
        .loop = loop, .later = later, .limit_ns = limit_s * UINT64_C(1000000000)};
    cstd_search_queue_init(&searches->queue);
}

static void on_work(uv_work_t *work)
{
    struct cstd_search_task *task = work->data;

    /* This affects only the calling thread, which runs nothing but searches and layouts. */
    (void)setpriority(PRIO_PROCESS, 0, CSTD_SEARCHES_NICE);
    task->ops->run(task);
}

static void run_next(struct cstd_searches *searches);

/* The task's turn is over: charge its time to its user and start the next task. */
static void give_turn_back(struct cstd_search_task *task)
{
    uint64_t ns = task->began_ns != 0 ? uv_hrtime() - task->began_ns : 0;

    cstd_search_queue_done(&task->searches->queue, &task->turn, ns);
    run_next(task->searches);
}

static void on_worked(uv_work_t *work, int status)
{
    struct cstd_search_task *task = work->data;

    (void)status; /* libuv's cancellation is not used. */
    give_turn_back(task);
    task->ops->end(task);
}

static void on_end_later(struct cstd_deferred *later)
{
    struct cstd_search_task *task = cstd_owner_of(later, struct cstd_search_task, later);

    task->ops->end(task);
}

static bool start(struct cstd_search_task *task)
{
    struct cstd_searches *searches = task->searches;

    if (!task->ops->prepare(task)) {
        return false;
    }
    task->began_ns = uv_hrtime();
    task->deadline_ns = task->began_ns + searches->limit_ns;
    if (uv_queue_work(searches->loop, &task->work, on_work, on_worked) != 0) {
        task->began_ns = 0;
        return false;
    }
    return true;
}

static void run_next(struct cstd_searches *searches)
{
    struct cstd_search_turn *turn;

    while ((turn = cstd_search_queue_next(&searches->queue)) != NULL) {
        struct cstd_search_task *task = cstd_owner_of(turn, struct cstd_search_task, turn);

        if (!start(task)) {
            cstd_search_queue_done(&searches->queue, turn, 0);
            cstd_deferred_add(searches->later, &task->later);
        }
    }
}

int cstd_searches_add(struct cstd_searches *searches, struct cstd_search_task *task,
                      const struct cstd_search_task_ops *ops, uid_t uid, uint64_t work,
                      struct cst_err *err)
{
    int rc;

    task->searches = searches;
    task->ops = ops;
    task->later = (struct cstd_deferred){.fn = on_end_later};
    task->work.data = task;
    task->began_ns = task->deadline_ns = 0;
    atomic_init(&task->cancelled, false);
    rc = cstd_search_queue_add(&searches->queue, &task->turn, uid, work, err);
    if (rc == CST_OK) {
        run_next(searches);
    }
    return rc;
}

void cstd_search_task_cancel(struct cstd_search_task *task)
{
    struct cstd_searches *searches = task->searches;

    if (atomic_exchange(&task->cancelled, true)) {
        return;
    }
    if (task->began_ns == 0 && !task->later.queued) { /* The task has not started. */
        cstd_search_queue_remove(&searches->queue, &task->turn);
        cstd_deferred_add(searches->later, &task->later);
    }
}

bool cstd_search_task_stops(const struct cstd_search_task *task)
{
    return atomic_load(&task->cancelled) || uv_hrtime() >= task->deadline_ns;
}
