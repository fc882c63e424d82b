/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of searches for plans, which need processors and time: which requests wait for them, and
 * how long. */
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { N_HUGE = 6, HUGE_TENSORS = 65536 };

/* Open job @name and commit a model of @n tensors. Returns the id of the Commit. */
static uint64_t ask_commit(struct raw_client *client, const char *name, uint32_t n)
{
    struct raw_job job = {.name = name, .world = 1};

    raw_open(client, proc.socket);
    ck_assert_int_eq(raw_job_open(client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(client, n, 1), CST_OK);
    return raw_commit(client, n, n);
}

static bool logged(const char *name, const char *words)
{
    char line[96];

    (void)snprintf(line, sizeof line, "job '%s': %s", name, words);
    return daemon_proc_logged(&proc, line);
}

/* Searches of clients that have disconnected are not made: another job is planned and committed
 * without them, and none of theirs gives a plan. */
START_TEST(abandoned)
{
    static const struct timespec tick = {.tv_nsec = 10000000};
    struct raw_client client;
    char name[16];
    uint64_t id;

    for (unsigned i = 0; i < N_HUGE; i++) {
        (void)snprintf(name, sizeof name, "huge%u", i);
        (void)ask_commit(&client, name, HUGE_TENSORS);
        raw_close(&client);
    }
    id = ask_commit(&client, "small", 1);
    ck_assert_msg(raw_status(&client, id) == CST_OK, "%s", client.err.text);
    raw_close(&client);
    ck_assert(logged("small", "planned with"));
    for (unsigned i = 0; i < N_HUGE; i++) {
        (void)snprintf(name, sizeof name, "huge%u", i);
        while (!logged(name, "no worker waits for its plan any more")) {
            ck_assert_msg(!logged(name, "planned with"), "%s was planned for nobody", name);
            (void)nanosleep(&tick, NULL);
        }
        ck_assert(!logged(name, "planned with"));
    }
    settle_remove_jobs(&witness);
}
END_TEST

/* The search for a commit that is cancelled ends at once, and the rank can commit again. */
START_TEST(cancelled)
{
    Cistern__Cancel cancel = CISTERN__CANCEL__INIT;
    struct raw_client client;
    uint64_t id, cancel_id;

    id = ask_commit(&client, "huge", HUGE_TENSORS);
    cancel.request = id;
    cancel_id = raw_ask(&client, CISTERN__MSG_TYPE__MSG_CANCEL, &cancel.base);
    ck_assert_int_eq(raw_status(&client, id), CST_ECANCELLED);
    ck_assert_int_eq(raw_status(&client, cancel_id), CST_OK);
    ck_assert(logged("huge", "no worker waits for its plan any more"));
    id = raw_commit(&client, HUGE_TENSORS, HUGE_TENSORS);
    ck_assert_msg(raw_status(&client, id) == CST_OK, "%s", client.err.text);
    raw_close(&client);
    settle_remove_jobs(&witness);
}
END_TEST

static void setup_short(void)
{
    daemon_proc_start_with(&proc, "[plan]\nsearch_time = 1s\n", NULL);
    raw_open(&witness, proc.socket);
    base_fds = settle_base_fds(&witness, &proc);
}

/* A search that would exceed its time limit ends with the best plan so far; without one the job
 * goes on without a plan. */
START_TEST(bounded)
{
    struct raw_client client;
    uint64_t id = ask_commit(&client, "huge", HUGE_TENSORS);

    ck_assert_msg(raw_status(&client, id) == CST_OK, "%s", client.err.text);
    raw_close(&client);
    ck_assert(daemon_proc_logged(&proc, "the search was stopped"));
    settle_remove_jobs(&witness);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("search");
    TCase *tc = suite_case(suite, "search", job_rig_setup, job_rig_teardown);

    tcase_add_test(tc, abandoned);
    tcase_add_test(tc, cancelled);
    tc = suite_case(suite, "time", setup_short, job_rig_teardown);
    tcase_add_test(tc, bounded);
    return suite_run(suite);
}
