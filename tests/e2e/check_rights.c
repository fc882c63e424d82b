/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of who may do what: other users' jobs, users whom the daemon refuses, and limits of
 * connections. */
#include "tests/lib/daemon_proc.h"
#include "tests/lib/raw_client.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static struct daemon_proc proc;

static void setup(void)
{
    daemon_proc_start(&proc, NULL);
}

static void teardown(void)
{
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
}

/* Run @fn in a child process as another user who can reach the sockets. True if @fn returned. */
static bool as_nobody(void (*fn)(void))
{
    int status;
    pid_t pid;

    ck_assert_int_eq(chmod(proc.dir, 0711), 0);
    ck_assert_int_eq(chmod(proc.socket, 0666), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        ck_assert_int_eq(setgid(NOBODY), 0);
        ck_assert_int_eq(setuid(NOBODY), 0);
        fn();
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Commit job "j" of one rank, and close the connection. */
static void leave_a_job(void)
{
    struct raw_job job = {.name = "j", .world = 1};
    struct raw_client client;

    raw_open(&client, proc.socket);
    ck_assert_msg(raw_job_open(&client, &job) == CST_OK, "%s", client.err.text);
    ck_assert_int_eq(raw_declare_many(&client, 3, 1000), CST_OK);
    ck_assert_msg(raw_status(&client, raw_commit(&client, 3, 3)) == CST_OK, "%s", client.err.text);
    raw_close(&client);
}

/* A job of another user cannot be removed on the workers' socket, not even by root. On the
 * managers' socket it can. */
START_TEST(other_users_jobs_are_the_managers)
{
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    struct raw_client worker, manager;

    if (geteuid() != 0) {
        return; /* this process cannot become another user */
    }
    ck_assert(as_nobody(leave_a_job));
    raw_open(&worker, proc.socket);
    raw_open(&manager, proc.manager);
    name.name = (char *)(uintptr_t) "j";
    ck_assert_int_eq(raw_call(&worker, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &name.base),
                     CST_ENOTFOUND);
    name.has_uid = 1;
    name.uid = NOBODY;
    ck_assert_int_eq(raw_call(&worker, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &name.base), CST_EDENIED);
    ck_assert_int_eq(raw_call(&manager, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &name.base), CST_OK);
    ck_assert_uint_eq(raw_stat(&worker)->n_jobs, 0);
    raw_close(&worker);
    raw_close(&manager);
}
END_TEST

/* Start another daemon, with @text as its configuration. */
static void restart_with(const char *text)
{
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    daemon_proc_start_with(&proc, text, NULL);
}

static void expect_denied(void)
{
    struct raw_client client;

    raw_connect(&client, proc.socket);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_HELLO, NULL), CST_EDENIED);
    ck_assert_ptr_nonnull(strstr(client.err.text, "uid 65534"));
    ck_assert(!raw_receive(&client));
}

/* A user whom 'access' does not name is refused, and the message names the user and the rule. */
START_TEST(access_rules_hold)
{
    if (geteuid() != 0) {
        return;
    }
    restart_with("[daemon]\naccess = uid:12345, gid:12345\n");
    ck_assert(as_nobody(expect_denied));
}
END_TEST

/* A connection beyond the limit is told so and closed. When another one closes, there is space
 * again. */
START_TEST(sessions_are_limited)
{
    struct raw_client first, second, third;

    restart_with("[job]\nmax_sessions = 2\n");
    raw_open(&first, proc.socket);
    raw_open(&second, proc.socket);
    raw_connect(&third, proc.socket);
    ck_assert_int_eq(raw_call(&third, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_EBUSY);
    ck_assert(!raw_receive(&third));
    raw_close(&third);
    raw_close(&second);
    while (raw_stat(&first)->n_sessions > 1) {
    }
    raw_open(&second, proc.socket);
    raw_close(&first);
    raw_close(&second);
}
END_TEST

/* Users' connections that send nothing, up to the limit and beyond, do not keep a manager out. They
 * are closed after ten seconds, so that users can connect again. */
START_TEST(silence_is_no_lockout)
{
    static struct raw_client silent[300];
    struct raw_client manager, user;
    const unsigned n = sizeof silent / sizeof *silent;

    for (unsigned i = 0; i < n; i++) {
        raw_connect(&silent[i], proc.socket);
    }
    raw_open(&manager, proc.manager);
    (void)raw_stat(&manager);
    raw_close(&manager);
    for (unsigned i = 0; i < n; i++) {
        raw_expect_closed(&silent[i]);
        raw_close(&silent[i]);
    }
    ck_assert(daemon_proc_logged(&proc, "has sent no Hello"));
    raw_open(&user, proc.socket);
    ck_assert_uint_eq(raw_stat(&user)->n_sessions, 1);
    raw_close(&user);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rights");
    TCase *tc = suite_case(suite, "rights", setup, teardown);

    tcase_add_test(tc, other_users_jobs_are_the_managers);
    tcase_add_test(tc, access_rules_hold);
    tcase_add_test(tc, sessions_are_limited);
    tcase_add_test(tc, silence_is_no_lockout);
    return suite_run(suite);
}
