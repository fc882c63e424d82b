/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the limits in [quota], each of which holds a user or a group, and of the age at which
 * the daemon removes a user's job. */
#include "tests/lib/child.h"
#include "tests/lib/suite.h"
#include "tests/lib/user.h"
#include "tests/lib/user_rig.h"

#include <check.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One user gets half of 64 jobs, and is told the key of the limit. The other one gets his half.
 * Root, who runs the daemon, is not limited unless a section says so. */
START_TEST(half_of_the_jobs)
{
    static struct raw_client clients[40];
    struct raw_client bob, root;
    char name[16];
    unsigned n = 0;

    user_rig_start("");
    for (; n < 40; n++) {
        (void)snprintf(name, sizeof name, "j%u", n);
        if (user_rig_open_job(&clients[n], USER_ALICE, name) != CST_OK) {
            break;
        }
    }
    ck_assert_uint_eq(n, 32);
    ck_assert_int_eq(clients[n].err.status, CST_EBUDGET);
    raw_says(&clients[n], "uid 61001 has 32 of 32 jobs (jobs in [quota], by default 50%): job "
                          "'j32' wants 1 more");
    ck_assert_int_eq(clients[n].err.reason, CST_REASON_JOBS);
    ck_assert_int_eq(user_rig_open_job(&bob, USER_BOB, "j0"), CST_OK);
    for (unsigned i = 0; i <= n; i++) {
        raw_close(&clients[i]);
    }
    raw_close(&bob);
    for (unsigned i = 0; i < 40; i++) {
        (void)snprintf(name, sizeof name, "r%u", i);
        ck_assert_msg(user_rig_open_job(&root, 0, name) == CST_OK, "%s", root.err.text);
        raw_close(&root);
    }
    user_rig_stop();
}
END_TEST

/* Connections of one user beyond the limit are told so, or are closed. They take no place of
 * another user's, even if they never read the message. */
START_TEST(half_of_the_connections)
{
    static struct raw_client clients[200];
    struct raw_client bob;

    user_rig_start("[job]\nmax_sessions = 20\n");
    for (unsigned i = 0; i < 10; i++) {
        user_rig_open(&clients[i], USER_ALICE);
    }
    ck_assert_int_eq(user_rig_greet(&clients[10], USER_ALICE), CST_EBUSY);
    raw_says(&clients[10], "uid 61001 has 10 of 10 connections (sessions in [quota], by default "
                           "50%): this process wants 1 more");
    raw_expect_closed(&clients[10]);
    for (unsigned i = 11; i < 200; i++) { /* these connections send nothing */
        user_rig_open_in_group(&clients[i], USER_ALICE, USER_ALICE);
    }
    for (unsigned i = 0; i < 9; i++) {
        user_rig_open(&bob, USER_BOB);
        raw_close(&bob);
    }
    for (unsigned i = 0; i < 200; i++) {
        raw_close(&clients[i]);
    }
    user_rig_stop();
}
END_TEST

/* Host memory and pools are each limited by their own key. A refused request costs nothing, and
 * freed memory can be used again. */
START_TEST(bytes)
{
    struct raw_client client, bob;

    user_rig_start("[quota]\nhost = 4M\npool = 256K\n[quota uid:61002]\nhost = 16M\npool = none\n");
    ck_assert_int_eq(user_rig_commit(&client, USER_ALICE, "large", 1 << 19, 0), CST_EBUDGET);
    raw_says(&client, "of host memory (host in [quota]): large wants");
    ck_assert_int_eq(client.err.reason, CST_REASON_HOST_MEMORY);
    raw_close(&client);
    ck_assert_int_eq(user_rig_commit(&client, USER_ALICE, "wide", 1 << 17, 1 << 19), CST_EBUDGET);
    raw_says(&client, "uid 61001 has 0 B of 256.0 KiB of pools of the host device (pool in "
                      "[quota]): wide wants");
    ck_assert_int_eq(client.err.reason, CST_REASON_POOL_MEMORY);
    raw_close(&client);
    for (int i = 0; i < 3; i++) {
        ck_assert_msg(user_rig_commit(&client, USER_ALICE, "fits", 1 << 17, 1 << 18) == CST_OK,
                      "%s", client.err.text);
        raw_close(&client);
        ck_assert_int_eq(user_rig_remove(&witness, "fits", USER_ALICE), CST_OK);
    }
    ck_assert_int_eq(user_rig_commit(&bob, USER_BOB, "large", 1 << 19, 2 << 20), CST_OK);
    raw_close(&bob);
    user_rig_stop();
}
END_TEST

/* A worker that asks for no size gets a pool within the limit, as on a small device. */
START_TEST(a_pool_within_the_limit)
{
    struct raw_client client;

    user_rig_start("[quota]\npool = 1M\n");
    ck_assert_msg(user_rig_commit(&client, USER_ALICE, "j", 1 << 20, 0) == CST_OK, "%s",
                  client.err.text);
    ck_assert_uint_le(raw_stat(&witness)->pool_used, 1 << 20);
    raw_close(&client);
    user_rig_stop();
}
END_TEST

/* Each device has its own limit: memory in use on the host does not count for an accelerator. */
START_TEST(a_pool_on_an_accelerator)
{
    struct raw_job job = {
        .name = "j", .world = 1, .device = "paced:0", .pool_bytes = 1 << 19, .chunk_elems = 4096};
    struct raw_client client, host;

    user_rig_start("[paced]\ndevices = 1\nmemory = 4M\n[quota]\npool = 256K\n");
    ck_assert_int_eq(user_rig_commit(&host, USER_ALICE, "host", 1 << 16, 1 << 18), CST_OK);
    user_rig_open(&client, USER_ALICE);
    ck_assert_msg(raw_job_open(&client, &job) == CST_OK, "%s", client.err.text);
    ck_assert_int_eq(raw_declare_many(&client, 64, 4096), CST_OK);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 64, 64)), CST_EBUDGET);
    raw_says(&client, "uid 61001 has 0 B of 256.0 KiB of memory of paced:0 (pool in [quota]): j ");
    raw_close(&client);
    job.name = "k";
    job.pool_bytes = 1 << 17;
    user_rig_open(&client, USER_ALICE);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 64, 4096), CST_OK);
    ck_assert_msg(raw_status(&client, raw_commit(&client, 64, 64)) == CST_OK, "%s",
                  client.err.text);
    raw_close(&client);
    raw_close(&host);
    user_rig_stop();
}
END_TEST

/* The limit of pending requests is for all connections of a user together. */
START_TEST(requests_that_wait)
{
    struct raw_client clients[4], bob;

    user_rig_start("[quota]\nrequests = 3\n");
    for (unsigned i = 0; i < 4; i++) {
        char name[8];
        struct raw_job job = {.name = name, .world = 2, .timeout_ms = 60000};

        (void)snprintf(name, sizeof name, "j%u", i);
        user_rig_open(&clients[i], USER_ALICE);
        ck_assert_int_eq(raw_job_open(&clients[i], &job), CST_OK);
        ck_assert_int_eq(raw_declare_many(&clients[i], 1, 10), CST_OK);
        (void)raw_commit(&clients[i], 1, 1); /* waits for rank 1 */
    }
    ck_assert_int_eq(raw_status(&clients[3], 0), CST_ENOCREDIT);
    raw_says(&clients[3],
             "uid 61001 has 3 of 3 requests in flight (requests in [quota]): a request wants 1");
    ck_assert_int_eq(user_rig_commit(&bob, USER_BOB, "his", 4096, 0), CST_OK);
    for (unsigned i = 0; i < 4; i++) {
        raw_close(&clients[i]);
    }
    raw_close(&bob);
    user_rig_stop();
}
END_TEST

static int open_with_ttl(struct raw_client *client, const char *name, uint32_t ttl_s)
{
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;

    user_rig_open(client, USER_ALICE);
    open.name = (char *)(uintptr_t)name;
    open.world = 1;
    open.has_ttl_s = 1;
    open.ttl_s = ttl_s;
    return raw_call(client, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &open.base);
}

/* A ttl beyond the longest is refused with a message, and no job is made. */
START_TEST(longest_ttl)
{
    struct raw_client client;

    user_rig_start("[quota]\nttl = 2h\n");
    ck_assert_int_eq(open_with_ttl(&client, "j", UINT32_MAX), CST_EINVAL);
    raw_says(&client, "uid 61001 may have 7200 seconds to live without a worker (ttl in [quota]): "
                      "job 'j' wants 4294967295");
    ck_assert_uint_eq(user_rig_list(&witness)->n_jobs, 0);
    raw_close(&client);
    ck_assert_int_eq(open_with_ttl(&client, "j", 7200), CST_OK);
    raw_close(&client);
    user_rig_stop();
}
END_TEST

/* If a user is in more groups than usual, the last group counts, too. */
START_TEST(a_group_among_many)
{
    gid_t groups[200];
    struct raw_client client;
    Cistern__Hello hello = CISTERN__HELLO__INIT;

    for (unsigned i = 0; i < 200; i++) {
        groups[i] = 1000 + i;
    }
    groups[199] = USER_ALICE;
    user_rig_start("[quota gid:61001]\nsessions = 0\n");
    ck_assert_int_eq(setgroups(200, groups), 0);
    ck_assert_int_eq(setegid(USER_BOB), 0);
    ck_assert_int_eq(seteuid(USER_BOB), 0);
    raw_connect(&client, proc.socket);
    user_back();
    hello.min_version = hello.max_version = 1;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_HELLO, &hello.base), CST_EBUSY);
    raw_says(&client, "gid 61001 has 0 of 0 connections (sessions in [quota gid:61001])");
    raw_close(&client);
    user_rig_stop();
}
END_TEST

/* Members of a group share its limit, and none can leave it by connecting with another group. */
START_TEST(a_group)
{
    struct raw_client alice, bob, member;

    user_rig_start("[quota gid:61001]\njobs = 1\n");
    user_rig_open_in_group(&member, USER_BOB, USER_ALICE);
    ck_assert_int_eq(user_rig_open_job(&bob, USER_BOB, "his"), CST_OK); /* bob uses his own group */
    ck_assert_int_eq(user_rig_open_job(&alice, USER_ALICE, "hers"), CST_EBUDGET);
    raw_says(&alice, "gid 61001 has 1 of 1 jobs (jobs in [quota gid:61001]): job 'hers' wants 1");
    raw_close(&bob);
    while (user_rig_list(&witness)->n_jobs > 0) {
    }
    raw_close(&alice);
    ck_assert_int_eq(user_rig_open_job(&alice, USER_ALICE, "hers"), CST_OK);
    ck_assert_int_eq(user_rig_open_job(&bob, USER_BOB, "his"), CST_EBUDGET);
    raw_close(&alice);
    raw_close(&bob);
    raw_close(&member);
    user_rig_stop();
}
END_TEST

/* On SIGHUP the daemon reads the limits of the file again. What exceeds them stays. A file with an
 * error changes nothing. */
START_TEST(reload)
{
    struct raw_client first, second;

    user_rig_start("[quota]\njobs = 2\n");
    ck_assert_int_eq(user_rig_open_job(&first, USER_ALICE, "a"), CST_OK);
    ck_assert_int_eq(user_rig_open_job(&second, USER_ALICE, "b"), CST_OK);
    user_rig_write_config("[quota]\njobs = 1\n");
    ck_assert_int_eq(kill(proc.pid, SIGHUP), 0);
    while (!daemon_proc_logged(&proc, "SIGHUP: the limits in [quota] were read again")) {
        raw_stat(&witness);
    }
    ck_assert_uint_eq(user_rig_list(&first)->n_jobs, 2);
    raw_close(&second); /* job "b" ends with it */
    while (user_rig_list(&first)->n_jobs == 2) {
    }
    ck_assert_int_eq(user_rig_open_job(&second, USER_ALICE, "c"), CST_EBUDGET);
    raw_says(&second, "uid 61001 has 1 of 1 jobs (jobs in [quota]): job 'c' wants 1 more");
    raw_close(&second);
    user_rig_write_config("[quota]\njobs = many\n");
    ck_assert_int_eq(kill(proc.pid, SIGHUP), 0);
    while (!daemon_proc_logged(&proc, "the limits of users are unchanged")) {
        raw_stat(&witness);
    }
    ck_assert(daemon_proc_logged(&proc, ":2: [quota] jobs: 'many' is not a limit for jobs"));
    ck_assert_int_eq(user_rig_open_job(&second, USER_ALICE, "c"), CST_EBUDGET);
    raw_close(&second);
    raw_close(&first);
    user_rig_stop();
}
END_TEST

/* -- ageing --------------------------------------------------------------------------------- */

/* A process that closed its connection and lives on does not keep its job: the ttl counts from the
 * hang-up. */
START_TEST(a_job_ages_from_the_hang_up)
{
    int ready[2];
    pid_t holder;
    char byte;

    user_rig_start("");
    ck_assert_int_eq(pipe(ready), 0);
    holder = child_start();
    if (holder == 0) {
        struct raw_client client;

        ck_assert_int_eq(open_with_ttl(&client, "held", 1), CST_OK);
        ck_assert_int_eq(raw_declare_many(&client, 1, 10), CST_OK);
        ck_assert_int_eq(raw_status(&client, raw_commit(&client, 1, 1)), CST_OK);
        raw_close(&client);
        ck_assert_int_eq(write(ready[1], "", 1), 1);
        for (;;) {
            (void)pause();
        }
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    while (user_rig_list(&witness)->n_jobs > 0) { /* the ttl of a second is what is tested */
        (void)usleep(20000);
    }
    ck_assert_int_eq(kill(holder, 0), 0);
    ck_assert(daemon_proc_logged(&proc, "job 'held': removed, because it had no worker for 1 s"));
    ck_assert_int_eq(kill(holder, SIGKILL), 0);
    (void)child_wait(holder);
    (void)close(ready[0]);
    (void)close(ready[1]);
    user_rig_stop();
}
END_TEST

int main(int argc, char **argv)
{
    const char *lacks = user_lacks(argv);
    Suite *suite = suite_create("user_limits");
    TCase *tc = suite_case(suite, "user_limits", NULL, NULL);

    (void)argc;
    if (lacks != NULL) {
        (void)printf("skipped: %s\n", lacks);
        return 77;
    }
    tcase_add_test(tc, half_of_the_jobs);
    tcase_add_test(tc, half_of_the_connections);
    tcase_add_test(tc, bytes);
    tcase_add_test(tc, a_pool_within_the_limit);
    tcase_add_test(tc, a_pool_on_an_accelerator);
    tcase_add_test(tc, requests_that_wait);
    tcase_add_test(tc, longest_ttl);
    tcase_add_test(tc, a_group);
    tcase_add_test(tc, a_group_among_many);
    tcase_add_test(tc, reload);
    tcase_add_test(tc, a_job_ages_from_the_hang_up);
    return suite_run(suite);
}
