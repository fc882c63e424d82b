/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the daemon with a service manager that does not read: the daemon never waits for it, and
 * sends all messages that are still valid when it reads again. */
#include "tests/lib/daemon_proc.h"
#include "tests/lib/raw_client.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>
#include <sys/socket.h>

static struct daemon_proc proc;

static void teardown(void)
{
    if (proc.pid != 0) {
        ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    }
}

/* Commit a job "j" of one rank. */
static void open_committed(struct raw_client *client)
{
    struct raw_job job = {.name = "j", .world = 1};

    raw_open(client, proc.socket);
    ck_assert_msg(raw_job_open(client, &job) == CST_OK, "%s", client->err.text);
    ck_assert_int_eq(raw_declare_many(client, 3, 1000), CST_OK);
    ck_assert_msg(raw_status(client, raw_commit(client, 3, 3)) == CST_OK, "%s", client->err.text);
}

/* Open and close jobs, each of which changes the daemon's status. */
static void change_status(unsigned times)
{
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    struct raw_client client;

    name.name = (char *)(uintptr_t) "j";
    for (unsigned i = 0; i < times; i++) {
        open_committed(&client);
        ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &name.base), CST_OK);
        raw_close(&client);
    }
}

/* A service manager that does not read does not delay the daemon. When it reads again, it gets the
 * present status. */
START_TEST(a_deaf_manager_is_not_waited_for)
{
    struct raw_job job = {.name = "second", .world = 1};
    struct raw_client client, second;

    daemon_proc_start(&proc, NULL);
    change_status(20);
    open_committed(&client);
    raw_open(&second, proc.socket);
    ck_assert_int_eq(raw_job_open(&second, &job), CST_OK);
    ck_assert(daemon_proc_logged(&proc, "does not read its socket"));
    daemon_proc_hear(&proc, "STATUS=2 jobs");
    raw_close(&client);
    raw_close(&second);
}
END_TEST

/* READY=1 is sent as soon as the queue has space, however late, and once. */
START_TEST(ready_is_not_lost)
{
    struct raw_client client;
    char text[64];

    daemon_proc_start_unheard(&proc);
    raw_open(&client, proc.socket);
    (void)raw_stat(&client);
    change_status(3);
    daemon_proc_hear(&proc, "READY=1\nSTATUS=");
    change_status(1);
    while (recv(proc.notify, text, sizeof text, MSG_DONTWAIT) > 0) {
        ck_assert_msg(strncmp(text, "READY=1", 7) != 0, "twice");
    }
    raw_close(&client);
}
END_TEST

/* A service manager that never reads does not keep the daemon from ending. */
START_TEST(a_deaf_manager_does_not_hear_the_end)
{
    daemon_proc_start_unheard(&proc);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("notify");
    TCase *tc = suite_case(suite, "notify", NULL, teardown);

    tcase_add_test(tc, a_deaf_manager_is_not_waited_for);
    tcase_add_test(tc, ready_is_not_lost);
    tcase_add_test(tc, a_deaf_manager_does_not_hear_the_end);
    return suite_run(suite);
}
