/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of jobs that need more memory than the system has, although their budgets allow it: engines
 * are killed while they populate such jobs. */
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* LARGEST: bytes of a segment that engines can populate; SMALL, HUGE: elements of each of four
 * tensors */
enum { LARGEST = 1 << 20, SMALL = 1000, HUGE = 1 << 18 };

static void setup_stub(void)
{
    (void)setenv("CISTERN_ENGINE_HOST", "./tests/lib/engine_stub", 1);
    daemon_proc_start(&proc, NULL);
    raw_open(&witness, proc.socket);
    base_fds = settle_base_fds(&witness, &proc);
}

static void setup(void)
{
    char most[24];

    (void)snprintf(most, sizeof most, "%d", LARGEST);
    (void)setenv("STUB_KILLED_AT", most, 1);
    setup_stub();
}

static void setup_twice(void)
{
    (void)setenv("STUB_TWICE", "1", 1);
    setup_stub();
}

/* Send the Commit of job @name with four tensors of @elems. Returns the request id. No plan is
 * searched, so that populating begins at once. */
static uint64_t ask_commit(struct raw_client *client, const char *name, int64_t elems)
{
    struct raw_job job = {.name = name, .world = 1, .chunk_elems = 4 * (uint64_t)elems};

    raw_open(client, proc.socket);
    ck_assert_int_eq(raw_job_open(client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(client, 4, elems), CST_OK);
    return raw_commit(client, 4, 4);
}

static void commit_small(struct raw_client *client, const char *name)
{
    uint64_t id = ask_commit(client, name, SMALL);

    ck_assert_msg(raw_status(client, id) == CST_OK, "%s", client->err.text);
}

/* A job that kills engines is refused with the reason, and its memory is freed. The engine is not
 * given up, however often this happens, and serves other jobs. */
START_TEST(it_fails_alone)
{
    struct raw_client calm, huge, later;
    uint64_t used;

    commit_small(&calm, "calm");
    used = raw_stat(&witness)->host_used;
    for (unsigned i = 1; i <= 4; i++) {
        uint64_t id = ask_commit(&huge, "huge", HUGE);

        ck_assert_int_eq(raw_status(&huge, id), CST_ENOMEM);
        raw_says(&huge, "2 engines died while they populated its memory");
        raw_says(&huge, "control group");
        raw_close(&huge);
        while (raw_stat(&witness)->host_used != used) { /* The job ends with its worker. */
        }
        ck_assert_uint_eq(raw_stat(&witness)->engines[0]->restarts, 2 * i);
    }
    ck_assert_uint_gt(raw_sync(&calm), 0); /* the job's engine serves it */
    commit_small(&later, "later");
    ck_assert_str_eq(raw_stat(&witness)->engines[0]->state, "ready");
    raw_close(&calm);
    raw_close(&later);
    settle_remove_jobs(&witness);
}
END_TEST

/* If several jobs are populated at a time, the one that kills engines is found, and the others are
 * committed. */
START_TEST(it_is_found_out)
{
    struct raw_client clients[4];
    uint64_t ids[4];
    pid_t engine = (pid_t)raw_stat(&witness)->engines[0]->pid;

    while (strcmp(raw_stat(&witness)->engines[0]->state, "ready") != 0) {
    }
    /* All requests have arrived when the engine continues. */
    ck_assert_int_eq(kill(engine, SIGSTOP), 0);
    for (int i = 0; i < 4; i++) {
        char name[sizeof "job-2147483648"];

        (void)snprintf(name, sizeof name, "job%d", i);
        ids[i] = ask_commit(&clients[i], name, i == _i ? HUGE : SMALL);
        ck_assert_int_eq(raw_call(&witness, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    }
    ck_assert_int_eq(kill(engine, SIGCONT), 0);
    for (int i = 0; i < 4; i++) {
        ck_assert_msg(raw_status(&clients[i], ids[i]) == (i == _i ? CST_ENOMEM : CST_OK),
                      "job%d: %s", i, clients[i].err.text);
        raw_close(&clients[i]);
    }
    settle_remove_jobs(&witness);
}
END_TEST

/* An answer of an engine that comes a second time is logged, and changes nothing. */
START_TEST(answers_that_come_twice)
{
    struct raw_client client;

    commit_small(&client, "j");
    ck_assert(daemon_proc_logged(&proc, "answer for a segment that it was not asked for"));
    ck_assert_uint_gt(raw_sync(&client), 0);
    raw_close(&client);
    settle_remove_jobs(&witness);
}
END_TEST

/* -- a control group of the test -------------------------------------------------------------- */

static char group[] = "/sys/fs/cgroup/memory/cistern-test-XXXXXX";

static bool write_group(const char *name, const char *words)
{
    char path[128];
    FILE *file;
    bool good;

    (void)snprintf(path, sizeof path, "%s/%s", group, name);
    file = fopen(path, "we");
    good = file != NULL && fputs(words, file) >= 0;
    return file != NULL && fclose(file) == 0 && good;
}

static void setup_group(void)
{
    char pid[16];

    daemon_proc_start(&proc, NULL);
    raw_open(&witness, proc.socket);
    base_fds = settle_base_fds(&witness, &proc);
    (void)snprintf(pid, sizeof pid, "%d", (int)proc.pid);
    if (mkdtemp(group) == NULL || !write_group("cgroup.procs", pid)) {
        printf("skipped: no control group of version 1 can be made: %s\n", strerror(errno));
        (void)rmdir(group);
        group[0] = '\0';
    }
}

static void teardown_group(void)
{
    job_rig_teardown();
    (void)rmdir(group);
}

/* A limit that is lowered after the daemon's start is seen when memory is granted: the job is
 * refused with the file of the limit, and no engine is killed. With a higher limit the job is
 * committed. */
START_TEST(a_lowered_limit)
{
    struct raw_client client;
    uint64_t id;

    if (group[0] == '\0') {
        return;
    }
    ck_assert(write_group("memory.limit_in_bytes", "8M"));
    id = ask_commit(&client, "j", HUGE);
    ck_assert_int_eq(raw_status(&client, id), CST_ENOMEM);
    raw_says(&client, "control group allows 8.0 MiB");
    raw_says(&client, "memory.limit_in_bytes");
    ck_assert_uint_eq(raw_stat(&witness)->engines[0]->restarts, 0);
    ck_assert(write_group("memory.limit_in_bytes", "256M"));
    id = raw_commit(&client, 4, 4);
    ck_assert_msg(raw_status(&client, id) == CST_OK, "%s", client.err.text);
    raw_close(&client);
    settle_remove_jobs(&witness);
}
END_TEST

/* -- requests while the memory is there and the commit is not complete --------------------------
 */

static char faults[] = "/tmp/cistern-faults-XXXXXX";

static void setup_faults(void)
{
    ck_assert_ptr_nonnull(mkdtemp(faults));
    daemon_proc_keep();
    daemon_proc_fault(faults);
    daemon_proc_start(&proc, NULL);
    raw_open(&witness, proc.socket);
    base_fds = settle_base_fds(&witness, &proc);
}

static void teardown_faults(void)
{
    settle_remove_jobs(&witness);
    job_rig_teardown();
    ck_assert_int_eq(rmdir(faults), 0);
}

/* A client that does not wait for the answer to its Commit gets errors, and the core, which has no
 * worker yet, gets nothing. */
START_TEST(requests_that_come_too_early)
{
    static const uint16_t types[] = {CISTERN__MSG_TYPE__MSG_SYNC, CISTERN__MSG_TYPE__MSG_NEXT,
                                     CISTERN__MSG_TYPE__MSG_LAYOUT, CISTERN__MSG_TYPE__MSG_POOL};
    Cistern__Next next = CISTERN__NEXT__INIT;
    Cistern__LayoutGet layout = CISTERN__LAYOUT_GET__INIT;
    Cistern__PoolGet pool = CISTERN__POOL_GET__INIT;
    const ProtobufCMessage *bodies[] = {NULL, &next.base, &layout.base, &pool.base};
    struct raw_client client;
    char gate[64];
    uint64_t commit;
    int fd;

    (void)snprintf(gate, sizeof gate, "%s/ledger", faults);
    ck_assert_int_eq(mkfifo(gate, 0600), 0);
    commit = ask_commit(&client, "early", SMALL);
    fd = open(gate, O_WRONLY | O_CLOEXEC); /* Waits for the daemon. */
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(unlink(gate), 0);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        ck_assert_int_eq(raw_call(&client, types[i], bodies[i]), CST_EINVAL);
        raw_says(&client, "job 'early' is not committed yet");
    }
    (void)close(fd);
    ck_assert_msg(raw_status(&client, commit) == CST_OK, "%s", client.err.text);
    (void)raw_sync(&client);
    raw_close(&client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("populate");
    TCase *tc = suite_case(suite, "killed", setup, job_rig_teardown);

    tcase_add_test(tc, it_fails_alone);
    tcase_add_loop_test(tc, it_is_found_out, 0, 4);
    tc = suite_case(suite, "answers", setup_twice, job_rig_teardown);
    tcase_add_test(tc, answers_that_come_twice);
    tc = suite_case(suite, "limit", setup_group, teardown_group);
    tcase_add_test(tc, a_lowered_limit);
    tc = suite_case(suite, "early", setup_faults, teardown_faults);
    tcase_add_test(tc, requests_that_come_too_early);
    return suite_run(suite);
}
