/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of jobs whose workers have all left: they are done, have no pool, can be continued, and are
 * named if memory is short. After every test the daemon has its initial state. */
#include "cistern/cistern.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* Fixture: pools of 24 MiB, of which a job below uses more than half. */
static void setup_little(void)
{
    daemon_proc_start(&proc, (const char *[]){"--pool-memory=24M", NULL});
    raw_open(&witness, proc.socket);
    base_fds = settle_base_fds(&witness, &proc);
}

/* Fixture: three jobs at a time. */
static void setup_few(void)
{
    daemon_proc_start_with(&proc, "[job]\nmax_jobs = 3\n", NULL);
    raw_open(&witness, proc.socket);
    base_fds = settle_base_fds(&witness, &proc);
}

/* Open job @name of one rank with @n tensors of @elems elements, and sync. Returns the first status
 * that is not CST_OK. */
static int open_sized(struct raw_client *client, const char *name, uint32_t n, int64_t elems)
{
    struct raw_job job = {.name = name, .world = 1};
    int rc;

    raw_open(client, proc.socket);
    rc = raw_job_open(client, &job);
    if (rc == CST_OK) {
        ck_assert_int_eq(raw_declare_many(client, n, elems), CST_OK);
        rc = raw_status(client, raw_commit(client, n, n));
    }
    if (rc == CST_OK) {
        (void)raw_sync(client);
    }
    return rc;
}

static void open_ok(struct raw_client *client, const char *name)
{
    int rc = open_sized(client, name, 2, 1000);

    ck_assert_msg(rc == CST_OK, "%s", client->err.text);
}

static void leave(struct raw_client *client)
{
    ck_assert_int_eq(raw_call(client, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
    raw_close(client);
}

static void expect_state(const char *name, const char *state)
{
    ck_assert_str_eq(raw_job_info(&witness, name)->state, state);
}

/* Wait until the job is done, after the last copies under way. */
static void await_done(const char *name)
{
    const char *state = "";

    while (strcmp(state, "done") != 0) {
        state = raw_job_info(&witness, name)->state;
        ck_assert(strcmp(state, "done") == 0 || strcmp(state, "idle") == 0);
    }
}

/* When the worker has left, the pool is freed, to the last byte, and the arenas stay. A worker that
 * returns gets a pool of equal size, and the states are unchanged. */
START_TEST(the_pool_is_given_back_at_once)
{
    Cistern__PoolGet get = CISTERN__POOL_GET__INIT;
    struct raw_client client;
    uint64_t pool, host;

    open_ok(&client, "j");
    pool = raw_stat(&witness)->pool_used;
    host = raw_stat(&witness)->host_used;
    ck_assert_uint_gt(pool, 0);
    for (unsigned i = 0; i < 3; i++) {
        leave(&client);
        await_done("j");
        ck_assert_uint_eq(raw_stat(&witness)->pool->capacity, 0);
        while (raw_stat(&witness)->pool_used > 0) { /* until the engine has dropped the pool */
        }
        ck_assert_uint_eq(raw_stat(&witness)->host_used, host);
        open_ok(&client, "j");
        expect_state("j", "training");
        ck_assert_uint_eq(raw_stat(&witness)->pool_used, pool);
        ck_assert_uint_eq(raw_stat(&witness)->pool->capacity, pool);
        ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_POOL, &get.base), CST_OK);
        ck_assert_uint_ge(client.reply.n_fds, 1);
        cst_frame_close_fds(&client.reply);
    }
    leave(&client);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}
END_TEST

/* A job is not done if only some of its ranks have left, nor if its worker died: then its pool
 * stays. */
START_TEST(who_is_missed_keeps_the_pool)
{
    struct raw_client clients[2], client;
    struct raw_job job = {.name = "two", .world = 2};
    uint64_t ids[2];

    for (uint32_t r = 0; r < 2; r++) {
        job.rank = r;
        raw_open(&clients[r], proc.socket);
        ck_assert_int_eq(raw_job_open(&clients[r], &job), CST_OK);
        ck_assert_int_eq(raw_declare_many(&clients[r], 1, 1000), CST_OK);
        ids[r] = raw_commit(&clients[r], 1, 1);
    }
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_int_eq(raw_status(&clients[r], ids[r]), CST_OK);
        ids[r] = raw_ask(&clients[r], CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    }
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_int_eq(raw_status(&clients[r], ids[r]), CST_OK);
    }
    leave(&clients[0]);
    expect_state("two", "idle");
    ck_assert_uint_gt(raw_stat(&witness)->pool->capacity, 0);
    leave(&clients[1]);
    await_done("two");
    ck_assert_uint_eq(raw_stat(&witness)->pool->capacity, 0);
    open_ok(&client, "j");
    raw_close(&client);
    while (raw_stat(&witness)->n_sessions > 1) {
    }
    expect_state("j", "interrupted");
    ck_assert_uint_gt(raw_stat(&witness)->pool->capacity, 0);
    settle_remove_jobs(&witness);
}
END_TEST

/* If host memory is short, the refusal names the jobs that are done with the memory that each would
 * free, the largest first. Jobs that are not done are not named. */
START_TEST(a_refusal_names_who_is_done)
{
    struct raw_client small, large, busy, next;

    ck_assert_int_eq(open_sized(&small, "small", 1, 1 << 20), CST_OK);
    leave(&small);
    ck_assert_int_eq(open_sized(&large, "large", 1, 5 << 20), CST_OK);
    leave(&large);
    await_done("small");
    await_done("large");
    ck_assert_int_eq(open_sized(&busy, "busy", 1, 5 << 20), CST_OK);
    ck_assert_int_eq(open_sized(&next, "next", 1, 9 << 20), CST_EBUDGET);
    raw_says(&next, "'cistern rm large' frees");
    ck_assert_ptr_null(strstr(next.err.text, "busy"));
    ck_assert_ptr_nonnull(strstr(strstr(next.err.text, "rm large"), "'cistern rm small' frees"));
    raw_close(&next);
    ck_assert_int_eq(raw_job_remove(&witness, "large"), CST_OK);
    ck_assert_int_eq(open_sized(&next, "next", 1, 9 << 20), CST_OK);
    raw_close(&next);
    raw_close(&busy);
    settle_remove_jobs(&witness);
}
END_TEST

/* If there are too many jobs, the refusal names those that are done, the oldest first. None is
 * removed: its states may be in no checkpoint. */
START_TEST(too_many_jobs_name_who_is_done)
{
    struct raw_client old, busy, new, next;

    ck_assert_int_eq(open_sized(&old, "old", 1, 1000), CST_OK);
    leave(&old);
    await_done("old");
    open_ok(&busy, "busy");
    ck_assert_int_eq(open_sized(&new, "new", 1, 1 << 20), CST_OK);
    leave(&new);
    await_done("new");
    ck_assert_int_eq(open_sized(&next, "next", 1, 1000), CST_EBUDGET);
    raw_says(&next, "3 jobs, the limit is 3 (max_jobs in [job]); these are done, the oldest first: "
                    "'cistern rm old', 'cistern rm new'");
    ck_assert_int_eq(next.err.reason, CST_REASON_JOBS);
    ck_assert_ptr_null(strstr(next.err.text, "busy"));
    raw_close(&next);
    expect_state("old", "done");
    ck_assert_int_eq(raw_job_remove(&witness, "old"), CST_OK);
    open_ok(&next, "next");
    raw_close(&next);
    raw_close(&busy);
    settle_remove_jobs(&witness);
}
END_TEST

/* If another job has the memory of the freed pool, the returning worker is told so, and the job
 * stays done. When there is space again, the job can go on. */
START_TEST(a_pool_that_others_have)
{
    struct raw_client first, second;

    ck_assert_int_eq(open_sized(&first, "first", 16, 1 << 18), CST_OK);
    leave(&first);
    await_done("first");
    while (raw_stat(&witness)->pool_used > 0) { /* until the engine has dropped the pool */
    }
    ck_assert_int_eq(open_sized(&second, "second", 16, 1 << 18), CST_OK);
    ck_assert_int_eq(open_sized(&first, "first", 16, 1 << 18), CST_EBUDGET);
    raw_says(&first, "the pools of job 'first' were freed");
    raw_close(&first);
    await_done("first");
    ck_assert_uint_gt(raw_stat(&witness)->pool_used, 0);
    leave(&second);
    while (raw_stat(&witness)->pool_used > 0) {
    }
    ck_assert_int_eq(open_sized(&first, "first", 16, 1 << 18), CST_OK);
    leave(&first);
    settle_remove_jobs(&witness);
}
END_TEST

/* If the engine dies while the pool is allocated again, the next engine allocates it, and no client
 * notices. */
START_TEST(an_engine_dies_meanwhile)
{
    struct raw_client client;
    struct raw_job job = {.name = "j", .world = 1};
    pid_t engine;
    uint64_t id;

    open_ok(&client, "j");
    leave(&client);
    await_done("j");
    engine = raw_stat(&witness)->engines[0]->pid;
    ck_assert_int_eq(kill(engine, SIGSTOP), 0);
    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 2, 1000), CST_OK);
    id = raw_commit(&client, 2, 2);
    (void)raw_stat(&witness);
    ck_assert(raw_is_quiet(&client)); /* the client waits for the pool */
    ck_assert_int_eq(kill(engine, SIGKILL), 0);
    ck_assert_int_eq(raw_status(&client, id), CST_OK);
    (void)raw_sync(&client);
    leave(&client);
    settle_remove_jobs(&witness);
}
END_TEST

/* A worker that returns leaves again before the pool is allocated: the job is done after the
 * allocation. */
START_TEST(who_comes_back_leaves_at_once)
{
    struct raw_client client;
    struct raw_job job = {.name = "j", .world = 1};
    pid_t engine;

    open_ok(&client, "j");
    leave(&client);
    await_done("j");
    while (raw_stat(&witness)->pool_used > 0) {
    }
    engine = raw_stat(&witness)->engines[0]->pid;
    ck_assert_int_eq(kill(engine, SIGSTOP), 0);
    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    leave(&client);
    expect_state("j", "idle");
    ck_assert_int_eq(kill(engine, SIGCONT), 0);
    await_done("j");
    settle_remove_jobs(&witness);
}
END_TEST

static struct cst_client *clients[2];
static struct cst_job *jobs[2];

/* Open job "j" of two ranks, which sync; then rank @waits waits in another sync. */
static void wait_in_sync(int waits)
{
    struct cst_err err = {0};
    int rc[2] = {CST_EAGAIN, CST_EAGAIN};

    for (uint32_t r = 0; r < 2; r++) {
        const struct cst_job_spec spec = {.name = "j", .rank = r, .world = 2};
        const int64_t n = 1000;
        int zero = 0;

        ck_assert_int_eq(cst_connect(&clients[r], proc.socket, &err), CST_OK);
        ck_assert_int_eq(cst_job_open(&jobs[r], clients[r], &spec, &err), CST_OK);
        ck_assert_int_eq(cst_tensor(jobs[r], "t", CST_BF16, 1, &n, CST_GROUP_ALL), 0);
        ck_assert_int_eq(cst_operator(jobs[r], "t", &zero, 1), 0);
    }
    while (rc[0] == CST_EAGAIN || rc[1] == CST_EAGAIN) {
        for (int r = 0; r < 2; r++) {
            rc[r] = rc[r] == CST_EAGAIN ? cst_try_commit(jobs[r], NULL, &err) : rc[r];
        }
    }
    ck_assert_msg(rc[0] == CST_OK && rc[1] == CST_OK, "%s", err.text);
    ck_assert_int_eq(cst_try_sync(jobs[0], NULL, &err), CST_EAGAIN);
    ck_assert_int_eq(cst_sync(jobs[1], NULL, &err), CST_OK);
    ck_assert_int_eq(cst_sync(jobs[0], NULL, &err), CST_OK);
    ck_assert_int_eq(cst_try_sync(jobs[waits], NULL, &err), CST_EAGAIN);
}

static void leave_both(void)
{
    struct cst_err err = {0};

    for (int r = 0; r < 2; r++) {
        ck_assert_msg(cst_job_leave(jobs[r], &err) == CST_OK, "%s", err.text);
        cst_disconnect(clients[r]);
    }
    await_done("j");
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
}

/* Ranks that are stopped while they wait for each other in a sync leave in good order. _i: the rank
 * that waits. */
START_TEST(a_sync_that_waits_is_given_up)
{
    wait_in_sync(_i);
    leave_both();
}
END_TEST

/* Fixture: a daemon whose jobs outlive it. */
static void setup_kept(void)
{
    daemon_proc_keep();
    daemon_proc_start(&proc, NULL);
    raw_open(&witness, proc.socket);
}

static void teardown_kept(void)
{
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
}

/* The same when the daemon is killed while the rank waits: the ranks leave the job that the next
 * daemon has. */
START_TEST(the_next_daemon_is_left)
{
    wait_in_sync(_i);
    raw_close(&witness);
    daemon_proc_kill_kept(&proc);
    raw_open(&witness, proc.socket);
    leave_both();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("done");
    TCase *tc = suite_case(suite, "done", job_rig_setup, job_rig_teardown);

    tcase_add_test(tc, the_pool_is_given_back_at_once);
    tcase_add_test(tc, who_is_missed_keeps_the_pool);
    tcase_add_test(tc, a_refusal_names_who_is_done);
    tcase_add_test(tc, an_engine_dies_meanwhile);
    tcase_add_test(tc, who_comes_back_leaves_at_once);
    tc = suite_case(suite, "little", setup_little, job_rig_teardown);
    tcase_add_test(tc, a_pool_that_others_have);
    tcase_add_loop_test(tc, a_sync_that_waits_is_given_up, 0, 2);
    tc = suite_case(suite, "kept", setup_kept, teardown_kept);
    tcase_add_loop_test(tc, the_next_daemon_is_left, 0, 2);
    tc = suite_case(suite, "few", setup_few, job_rig_teardown);
    tcase_add_test(tc, too_many_jobs_name_who_is_done);
    return suite_run(suite);
}
