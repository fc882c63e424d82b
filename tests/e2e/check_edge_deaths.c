/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of waits for arrays of edges, which end however the other rank or the daemon dies: all
 * waits are told of it, and nothing of an earlier attempt is taken. */
#include "client/lib/job.h"
#include "proto/edge_memory.h"
#include "proto/shared.h"
#include "tests/lib/child.h"
#include "tests/lib/edge_job.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RELAYED = 4, STEPS = 3, CALLS = STEPS * RELAYED * 2 };

static uint32_t n_calls, dies_before; /* Number of calls of this process; UINT32_MAX: no death. */

static void count_call(void)
{
    if (n_calls++ == dies_before) {
        (void)raise(SIGKILL);
    }
}

/* The first byte of array @number in the present attempt. */
static uint8_t mark_of(const struct worker *w, uint32_t number)
{
    return (uint8_t)(w->job->attempt * 16 + number);
}

/* Pass RELAYED arrays there and back. Each array names the attempt in which it was put. The status
 * is CST_EPEERDIED if the other rank died. */
static int relay(struct worker *w, uint32_t rank)
{
    uint8_t data[SLOT];
    int rc = CST_OK;

    for (uint32_t i = 0; i < RELAYED && rc == CST_OK; i++) {
        for (int half = 0; half < 2 && rc == CST_OK; half++) {
            int edge = half == 0 ? THERE : BACK;
            bool puts = (rank == 0) == (half == 0);

            data[0] = puts ? mark_of(w, i) : 0;
            count_call();
            rc = puts ? cst_put(w->job, edge, i, data, 1, &w->err)
                      : cst_take(w->job, edge, i, data, 1, &w->err);
            suite_must(rc != CST_OK || data[0] == mark_of(w, i),
                       "array %u of another attempt was taken", i);
        }
    }
    return rc;
}

/* Do the steps that are left, and repeat those in which the other rank died. */
static void train(struct worker *w, uint32_t rank)
{
    const struct cst_hyper_params params = {.lr = 0.1};
    struct cst_step_result result;
    char other[16];
    int rc = CST_EPEERDIED;

    (void)snprintf(other, sizeof other, "rank %u ", 1 - rank);
    while (w->step < STEPS) {
        if (rc != CST_OK) {
            rc = cst_sync(w->job, &w->step, &w->err);
        }
        rc = rc == CST_OK ? relay(w, rank) : rc;
        rc = rc == CST_OK ? cst_step(w->job, &params, &result, &w->err) : rc;
        w->step = rc == CST_OK ? result.step : w->step;
        suite_must(rc == CST_OK || (rc == CST_EPEERDIED && strstr(w->err.text, other) != NULL),
                   "%d: %s", rc, w->err.text);
    }
}

/* Start a process that trains as @rank, and kills itself before call number @dies of an edge. */
static pid_t start_trainer(uint32_t rank, uint32_t dies)
{
    pid_t pid = child_start();
    struct worker w = {0};

    if (pid == 0) {
        dies_before = dies;
        edge_job_open(&w, rank, 2);
        (*reached)++;
        w.step = cst_job_steps(w.job);
        train(&w, rank);
        worker_leave(&w);
        _exit(0);
    }
    return pid;
}

/* A rank dies before each of its calls, in turn. The other one is told which rank it was, wherever
 * it waits, and both do the step again. Nothing of the earlier attempt is taken. */
START_TEST(the_death_of_a_rank_ends_all_waits)
{
    uint32_t dying = (uint32_t)_i % 2, call = (uint32_t)_i / 2 * 5 % CALLS;
    pid_t pids[2];

    for (uint32_t r = 0; r < 2; r++) {
        pids[r] = start_trainer(r, r == dying ? call : UINT32_MAX);
    }
    ck_assert(child_join(pids[dying], "the rank should have been killed"));
    pids[dying] = start_trainer(dying, UINT32_MAX);
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert(!child_join(pids[r], "a rank failed"));
    }
}
END_TEST

/* A rank is killed at any moment, within a call too. It is named, and both do the step again. */
START_TEST(the_death_of_a_rank_at_any_moment_is_named)
{
    unsigned seed = (unsigned)_i + 1;
    uint32_t dying = (uint32_t)_i % 2;
    pid_t pids[2];

    for (uint32_t r = 0; r < 2; r++) {
        pids[r] = start_trainer(r, UINT32_MAX);
    }
    worker_await(reached, 2);
    (void)usleep((unsigned)rand_r(&seed) % 12000);
    ck_assert_int_eq(kill(pids[dying], SIGKILL), 0);
    if (child_join(pids[dying], "a rank failed")) {
        pids[dying] = start_trainer(dying, UINT32_MAX);
    } else {
        pids[dying] = 0; /* It had ended. */
    }
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert(pids[r] == 0 || !child_join(pids[r], "a rank failed"));
    }
}
END_TEST

/* Wait as rank 0 for what never comes, in a child process that has the edge's call @_i. Returns
 * when the child waits. The child expects the status @status and the words @words. */
static pid_t start_waiter(bool put_too, int status, const char *words)
{
    pid_t pid = child_start();
    struct worker w = {0};
    uint8_t data[SLOT] = {0};
    int rc = CST_OK;

    if (pid != 0) {
        return pid;
    }
    edge_job_begin(&w, 0, 2);
    (*reached)++;
    /* When the job is removed, its memory becomes zeros, and slots look free. */
    for (uint32_t i = 0; put_too && rc == CST_OK; i++) {
        rc = cst_put(w.job, THERE, i, data, 1, &w.err);
    }
    rc = put_too ? rc : cst_take(w.job, BACK, 0, data, 1, &w.err);
    suite_must(rc == status && strstr(w.err.text, words) != NULL, "%d: %s", rc, w.err.text);
    _exit(0);
}

/* A rank waits in a put or a take, and the other one is killed, which does not call anything. */
START_TEST(a_waiting_rank_is_told_of_a_death)
{
    pid_t other = child_start(), waiter;
    struct worker w = {0};

    if (other == 0) {
        edge_job_begin(&w, 1, 2);
        (void)pause();
    }
    waiter = start_waiter(_i == 0, CST_EPEERDIED, "rank 1 ");
    worker_await(reached, 1);
    (void)usleep(20000); /* So that the rank probably sleeps. It must be told in any case. */
    ck_assert_int_eq(kill(other, SIGKILL), 0);
    ck_assert(!child_join(waiter, "the waiting rank failed"));
    ck_assert(child_join(other, "the other rank should have been killed"));
}
END_TEST

/* Clear the first edge again and again, as the daemon does after the removal of a job: the head, so
 * that the waiting rank does not see there that it is over, and the slots so often that no single
 * wait lasts long. */
static void clear_again(struct worker *w)
{
    struct cst_shared_head *head = w->job->edges[THERE].memory.base;

    for (;;) {
        uint64_t until = patience_until(250);

        memset(head, 0, CST_EDGE_PAGE_BYTES);
        while (!patience_over(until)) {
            atomic_store(&head->over, 0);
        }
    }
}

/* A rank waits, and the job is removed or the daemon is killed. */
START_TEST(every_wait_ends)
{
    pid_t other = child_start(), waiter;
    struct worker w = {0};

    if (other == 0) {
        edge_job_begin(&w, 1, 2);
        (*reached)++;
        if (_i == 0) {
            clear_again(&w);
        }
        (void)pause();
    }
    waiter = start_waiter(_i == 0, _i < 2 ? CST_ENOTFOUND : CST_ECONN, _i < 2 ? "removed" : "");
    worker_await(reached, 2); /* Both have synced. */
    if (_i < 2) {
        ck_assert_int_eq(raw_job_remove(&witness, "edges"), CST_OK);
        ck_assert(!child_join(waiter, "the waiting rank failed"));
        ck_assert_int_eq(kill(other, SIGKILL), 0);
        ck_assert(child_join(other, "the other rank should have been killed"));
        return;
    }
    daemon_proc_kill(&proc);
    ck_assert(!child_join(waiter, "the waiting rank failed"));
    ck_assert_int_eq(kill(other, SIGKILL), 0);
    ck_assert(child_join(other, "the other rank should have been killed"));
    daemon_proc_restart(&proc, NULL);
    raw_close(&witness);
    raw_open(&witness, proc.manager);
    base_fds = settle_base_fds(&witness, &proc);
}
END_TEST

/* A rank whose partner neither puts nor takes is told so after timeout_ms. */
START_TEST(a_wait_has_a_limit)
{
    struct worker w = {0}, other = {0};
    uint8_t data[SLOT] = {0};
    pid_t pid = child_start();

    if (pid == 0) {
        edge_job_begin(&other, 1, 2);
        (void)pause();
    }
    edge_job_begin(&w, 0, 2);
    w.job->timeout_ms = 200; /* Of its puts and takes alone. */
    ck_assert_int_eq(cst_take(w.job, BACK, 7, data, 1, &w.err), CST_ETIMEDOUT);
    ck_assert_str_eq(w.err.text, "edge 'back': rank 1 did not put array 7 in 200 ms");
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        worker_must(&w, cst_put(w.job, THERE, i, data, 1, &w.err));
    }
    ck_assert_int_eq(cst_put(w.job, THERE, N_SLOTS, data, 1, &w.err), CST_ETIMEDOUT);
    ck_assert_str_eq(w.err.text, "edge 'there': rank 1 freed no slot in 200 ms (array 3)");
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert(child_join(pid, "the other rank should have been killed"));
    cst_disconnect(w.client);
}
END_TEST

/* Number of runs: @every of "make soak", @few on a machine with little time, or else @usual. */
static int count_runs(int every, int usual, int few)
{
    return suite_stride(3) == 1 ? every : suite_is_sparse() ? few : usual;
}

int main(void)
{
    Suite *suite = suite_create("deaths of ranks with edges");
    TCase *tc = suite_case(suite, "deaths", worker_setup, worker_teardown);

    dies_before = UINT32_MAX;
    tcase_add_loop_test(tc, the_death_of_a_rank_ends_all_waits, 0, count_runs(2 * CALLS, 16, 4));
    tcase_add_loop_test(tc, the_death_of_a_rank_at_any_moment_is_named, 0, count_runs(200, 4, 1));
    tcase_add_loop_test(tc, a_waiting_rank_is_told_of_a_death, 0, 2);
    tcase_add_loop_test(tc, every_wait_ends, 0, 3);
    tcase_add_test(tc, a_wait_has_a_limit);
    return suite_run(suite);
}
