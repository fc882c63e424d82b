/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/train_rig.h"

#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

struct train_report *reports[TRAIN_MAX_WORLD];
struct train_order train_like;

static const struct train_bad none = {.step = TRAIN_NEVER};

bool train_rig_logged(const char *text)
{
    return daemon_proc_logged(&proc, text);
}

void train_rig_start(const char *config, const char *const *options)
{
    train_like = (struct train_order){
        .n_steps = TRAIN_RIG_STEPS, .bad = none, .die_at = UINT32_MAX, .kill_at = UINT32_MAX};
    for (int r = 0; r < TRAIN_MAX_WORLD; r++) {
        reports[r] = train_report_new();
    }
    daemon_proc_start_with(&proc, config, options);
    ck_assert_int_eq(shutdown(proc.notify, SHUT_RD), 0);
    raw_open(&witness, proc.socket);
    base_fds = settle_base_fds(&witness, &proc);
}

void train_rig_stop(void)
{
    settle_balanced(&witness);
    settle_remove_jobs(&witness);
    settle(&witness, &proc, settle_fds(&witness, base_fds));
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    for (int r = 0; r < TRAIN_MAX_WORLD; r++) {
        train_report_free(reports[r]);
    }
}

/* Return the process id of engine @engine. */
static pid_t engine_pid(unsigned engine)
{
    return raw_stat(&witness)->engines[engine]->pid;
}

/* -- jobs ------------------------------------------------------------------------------------- */

struct train_order train_rig_order(const struct train_placement *at, const char *name,
                                   uint32_t rank)
{
    struct train_order order = train_like;

    order.socket = proc.socket;
    order.name = name;
    order.rank = rank;
    order.world = at->world;
    order.device = at->devices[rank];
    return order;
}

pid_t train_rig_send(const struct train_order *order)
{
    memset(reports[order->rank], 0, sizeof *reports[order->rank]);
    return train_worker_start(order, reports[order->rank]);
}

void train_rig_run_like(const struct train_placement *at, const struct train_order *like,
                        uint64_t from)
{
    pid_t pids[TRAIN_MAX_WORLD];

    for (uint32_t r = 0; r < at->world; r++) {
        struct train_order order = *like;

        order.rank = r;
        order.device = at->devices[r];
        pids[r] = train_rig_send(&order);
    }
    for (uint32_t r = 0; r < at->world; r++) {
        train_worker_join(pids[r], reports[r]);
    }
    train_check(reports, at->world, from, like->n_steps, like->bad);
}

void train_rig_run(const struct train_placement *at, const char *name, uint64_t pool_bytes)
{
    struct train_order order = train_rig_order(at, name, 0);

    order.pool_bytes = pool_bytes;
    train_rig_run_like(at, &order, 0);
}

void train_rig_bits(const struct train_placement *at)
{
    const struct cst_plan *plan = &reports[0]->plan;

    train_rig_run(at, at->name, 0);
    ck_assert_uint_gt(plan->n_blocks, plan->min_blocks);
    train_rig_run(at, "smallest", plan->min_blocks * plan->block_bytes);
    ck_assert_uint_eq(plan->n_blocks, plan->min_blocks);
}

/* -- deaths ----------------------------------------------------------------------------------- */

/* Bytes of a small pool. @plan: plan of a dry run. */
static uint64_t small_pool(const struct cst_plan *plan)
{
    return train_like.mixture ? train_smallest_pool(plan) : 6ull * 2 * TRAIN_CHUNK_ELEMS;
}

/* Make two orders with the pools of train_like, or alternately with the largest pool that they can
 * use and with @small bytes. */
static void order_two(const struct train_placement *at, const char *name, uint32_t point,
                      uint64_t small, struct train_order orders[2])
{
    for (uint32_t r = 0; r < 2; r++) {
        orders[r] = train_rig_order(at, name, r);
        if (orders[r].pool_bytes == 0 && point % 2 != 0) {
            orders[r].pool_bytes = small;
        }
    }
}

void train_rig_replace(struct train_order orders[2], uint32_t victim, bool killed)
{
    pid_t pids[2] = {train_rig_send(&orders[0]), train_rig_send(&orders[1])};

    if (killed) {
        ck_assert_msg(train_worker_join_dying(pids[victim], reports[victim]), "point %u",
                      orders[victim].die_at);
    } else {
        train_worker_join_failing(pids[victim]);
    }
    orders[victim].die_at = UINT32_MAX;
    orders[victim].setting = NULL;
    pids[victim] = train_worker_start(&orders[victim], reports[victim]);
    train_worker_join(pids[victim], reports[victim]);
    train_worker_join(pids[1 - victim], reports[1 - victim]);
    train_check_states(reports, 2, orders[0].n_steps, none);
    settle_remove_jobs(&witness);
}

bool train_rig_kill_worker(const struct train_placement *at, uint32_t victim,
                           struct train_points points)
{
    uint32_t n_points, n = 0, n_redone = 0;
    uint64_t small;

    train_rig_run(at, "dry", 0);
    n_points = reports[victim]->n_points;
    small = small_pool(&reports[0]->plan);
    for (uint32_t point = points.first + points.step * suite_first(points.sparse); point < n_points;
         point += points.step * suite_stride(points.sparse), n++) {
        struct train_order orders[2];
        char name[32];

        (void)snprintf(name, sizeof name, "killed-%u", point);
        order_two(at, name, point, small, orders);
        orders[victim].die_at = point;
        train_rig_replace(orders, victim, true);
        n_redone += reports[1 - victim]->n_syncs;
    }
    return n_redone > n / 2;
}

void train_rig_kill_engine(const struct train_placement *at, unsigned engine,
                           struct train_points points)
{
    uint64_t n_kills = 0, small;
    uint32_t n_points;

    train_rig_run(at, "dry", 0);
    n_points = reports[0]->n_points;
    small = small_pool(&reports[0]->plan);
    for (uint32_t point = points.first + points.step * suite_first(points.sparse); point < n_points;
         point += points.step * suite_stride(points.sparse)) {
        struct train_order orders[2];
        pid_t pids[2];
        char name[32];

        (void)snprintf(name, sizeof name, "engine-%u", point);
        order_two(at, name, point, small, orders);
        orders[0].kill_at = point;
        orders[0].victim = engine_pid(engine);
        ck_assert_int_gt(orders[0].victim, 0);
        for (uint32_t r = 0; r < 2; r++) {
            pids[r] = train_rig_send(&orders[r]);
        }
        for (uint32_t r = 0; r < 2; r++) {
            train_worker_join(pids[r], reports[r]);
            ck_assert_uint_eq(reports[r]->n_syncs, 0);
        }
        train_check(reports, 2, 0, orders[0].n_steps, none);
        settle_remove_jobs(&witness);
        ck_assert_uint_eq(raw_stat(&witness)->engines[engine]->restarts, ++n_kills);
    }
}
