/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the daemon's standbys: which connection gets the rank of a worker that has died, for how
 * long, and how the wait ends. standby.sh has processes that train. */
#include "tests/lib/child.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { LONG_MS = 600000 };

static _Atomic uint32_t *n_ready; /* Workers that have committed; shared with children. */

static void setup(void)
{
    job_rig_setup();
    n_ready = child_share(sizeof *n_ready);
}

static void teardown(void)
{
    (void)raw_job_remove(&witness, "j");
    child_unshare(n_ready, sizeof *n_ready);
    job_rig_teardown();
}

static void pause_ms(long ms)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* Start a process that commits job "j" as its only rank, and wait until it has. */
static pid_t begin_worker(void)
{
    const uint32_t before = atomic_load(n_ready);
    const pid_t pid = child_start();

    if (pid == 0) {
        struct raw_client client;

        job_rig_commit(&client, 2);
        atomic_fetch_add(n_ready, 1);
        (void)pause();
    }
    while (atomic_load(n_ready) == before) {
        pause_ms(1);
    }
    return pid;
}

static void kill_worker(pid_t pid)
{
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    (void)child_wait(pid);
}

/* Ask for a rank of job @name. Returns the request's id. */
static uint64_t ask(struct raw_client *client, const char *name, uint32_t hold_ms)
{
    Cistern__Standby standby = CISTERN__STANDBY__INIT;

    standby.name = (char *)(uintptr_t)name;
    standby.has_hold_ms = true;
    standby.hold_ms = hold_ms;
    return raw_ask(client, CISTERN__MSG_TYPE__MSG_STANDBY, &standby.base);
}

static void open_standby(struct raw_client *client, uint32_t hold_ms)
{
    raw_open(client, proc.socket);
    (void)ask(client, "j", hold_ms);
}

static void expect_rank(struct raw_client *client, uint32_t rank)
{
    const Cistern__StandbyRank *reply = raw_expect(client, 0, CISTERN__MSG_TYPE__MSG_STANDBY_RANK,
                                                   &cistern__standby_rank__descriptor);

    ck_assert_uint_eq(reply->rank, rank);
}

/* Check that @client still waits, after a request that was served meanwhile. */
static void expect_nothing(const struct raw_client *client)
{
    pause_ms(20);
    (void)raw_stat(&witness);
    ck_assert(raw_is_quiet(client));
}

/* A request that cannot be granted is refused, and the connection can ask again. */
START_TEST(nonsense_is_refused)
{
    static const struct {
        const char *name;
        uint32_t hold_ms;
    } cases[] = {{"", 1}, {"a b", 1}, {".a", 1}, {"j", 0}, {"j", LONG_MS + 1}};
    struct raw_client client;

    raw_open(&client, proc.socket);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(raw_status(&client, ask(&client, cases[i].name, cases[i].hold_ms)),
                         CST_EINVAL);
    }
    (void)ask(&client, "j", LONG_MS);
    ck_assert_int_eq(raw_status(&client, ask(&client, "j", LONG_MS)), CST_EBUSY);
    raw_says(&client, "is a standby of job 'j' already");
    raw_close(&client);
    job_rig_open(&client, 0, 1);
    ck_assert_int_eq(raw_status(&client, ask(&client, "j", LONG_MS)), CST_EINVAL);
    raw_close(&client);
}
END_TEST

/* Of two standbys the first one gets the rank. If its connection ends, the second one gets it. */
START_TEST(one_standby_gets_a_rank)
{
    struct raw_client first, second;
    pid_t worker;

    open_standby(&first, LONG_MS);
    worker = begin_worker();
    open_standby(&second, LONG_MS);
    expect_nothing(&first);
    kill_worker(worker);
    expect_rank(&first, 0);
    expect_nothing(&second);
    raw_close(&first);
    expect_rank(&second, 0);
    raw_close(&second);
}
END_TEST

/* A standby that does not open the job within its time loses the rank to the next one. */
START_TEST(a_reservation_ends)
{
    struct raw_client first, second;

    open_standby(&first, 50);
    open_standby(&second, LONG_MS);
    kill_worker(begin_worker());
    expect_rank(&first, 0);
    expect_rank(&second, 0);
    /* The first one can wait again. */
    (void)ask(&first, "j", LONG_MS);
    raw_close(&second);
    expect_rank(&first, 0);
    raw_close(&first);
}
END_TEST

/* The process of a standby opens the job with another connection: the rank is not given again. */
START_TEST(a_process_takes_its_rank)
{
    struct raw_client first, second, worker;
    struct raw_job job = {.name = "j", .world = 1};

    open_standby(&first, LONG_MS);
    open_standby(&second, LONG_MS);
    kill_worker(begin_worker());
    expect_rank(&first, 0);
    raw_open(&worker, proc.socket);
    ck_assert_int_eq(raw_job_open(&worker, &job), CST_OK);
    raw_close(&first);
    expect_nothing(&second);
    raw_close(&second);
    raw_close(&worker);
}
END_TEST

/* A connection that waits and opens a job is no standby any more. */
START_TEST(a_worker_does_not_wait)
{
    struct raw_client client;
    struct raw_job job = {.name = "other", .world = 1};
    uint64_t waits;

    raw_open(&client, proc.socket);
    waits = ask(&client, "j", LONG_MS);
    (void)raw_job_ask(&client, &job);
    ck_assert_int_eq(raw_status(&client, waits), CST_ECANCELLED);
    raw_close(&client);
}
END_TEST

/* A rank whose place somebody has taken is not given to a standby that comes later. */
START_TEST(a_rank_that_is_taken_is_not_given)
{
    struct raw_client standby;
    pid_t worker;

    kill_worker(begin_worker());
    worker = begin_worker();
    open_standby(&standby, LONG_MS);
    expect_nothing(&standby);
    kill_worker(worker);
    expect_rank(&standby, 0);
    raw_close(&standby);
}
END_TEST

/* A rank that has left is not given. A standby is told that the job is over when all ranks have
 * left meanwhile; one that comes later waits for a worker. */
START_TEST(ranks_that_leave_end_the_wait)
{
    struct raw_client standby, late, worker;

    job_rig_commit(&worker, 2);
    open_standby(&standby, LONG_MS);
    expect_nothing(&standby);
    ck_assert_int_eq(raw_call(&worker, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
    raw_close(&worker);
    ck_assert_int_eq(raw_status(&standby, 0), CST_ECANCELLED);
    raw_says(&standby, "job 'j' has ended: all its ranks have left");
    open_standby(&late, LONG_MS);
    expect_nothing(&late);
    job_rig_commit(&worker, 2);
    expect_nothing(&late);
    ck_assert_int_eq(raw_call(&worker, CISTERN__MSG_TYPE__MSG_LEAVE, NULL), CST_OK);
    ck_assert_int_eq(raw_status(&late, 0), CST_ECANCELLED);
    raw_close(&late);
    raw_close(&worker);
    raw_close(&standby);
}
END_TEST

/* The removal of a job ends the wait, but not the end of one that was never committed, whose
 * workers are started again. */
START_TEST(a_removed_job_ends_the_wait)
{
    struct raw_client standby, worker;
    pid_t child;

    open_standby(&standby, LONG_MS);
    job_rig_declare(&worker, 0, 1, 2);
    raw_close(&worker);
    expect_nothing(&standby);
    child = begin_worker();
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
    ck_assert_int_eq(raw_status(&standby, 0), CST_ECANCELLED);
    raw_says(&standby, "job 'j' has ended: job 'j' was removed");
    raw_close(&standby);
    kill_worker(child);
}
END_TEST

/* A job that is removed while a standby has its rank leaves nothing behind. */
START_TEST(a_removed_job_has_no_standby)
{
    struct raw_client standby;

    open_standby(&standby, LONG_MS);
    kill_worker(begin_worker());
    expect_rank(&standby, 0);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
    (void)ask(&standby, "j", LONG_MS);
    expect_nothing(&standby);
    raw_close(&standby);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("standby");
    TCase *tcase = suite_case(suite, "standby", setup, teardown);

    tcase_add_test(tcase, nonsense_is_refused);
    tcase_add_test(tcase, one_standby_gets_a_rank);
    tcase_add_test(tcase, a_reservation_ends);
    tcase_add_test(tcase, a_process_takes_its_rank);
    tcase_add_test(tcase, a_worker_does_not_wait);
    tcase_add_test(tcase, a_rank_that_is_taken_is_not_given);
    tcase_add_test(tcase, ranks_that_leave_end_the_wait);
    tcase_add_test(tcase, a_removed_job_ends_the_wait);
    tcase_add_test(tcase, a_removed_job_has_no_standby);
    return suite_run(suite);
}
