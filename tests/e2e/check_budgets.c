/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the rows of tests/BUDGETS.md: alice takes as much as she can of one thing, beside bob,
 * who trains with the bits that he has alone. She is refused with her use, her limit and its key,
 * and the daemon has no more memory and files than its budgets say. */
#include "tests/lib/hoard.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_check.h"
#include "tests/lib/user.h"
#include "tests/lib/user_rig.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MIB = 1 << 20,
    MAX_KEPT = 4096, /* Descriptors that alice keeps. */
};

static struct raw_client alice;
static int kept[MAX_KEPT];
static unsigned n_kept;

/* -- bob -------------------------------------------------------------------------------------- */

/* Bob's job of one rank trains three steps, with the bits that it has alone. */
static void bob_works(void)
{
    const struct train_bad none = {.step = TRAIN_NEVER};
    struct train_report *reports[TRAIN_MAX_WORLD] = {train_report_new()};
    struct train_order order = {.socket = proc.socket,
                                .name = "bob",
                                .world = 1,
                                .n_steps = 3,
                                .bad = none,
                                .die_at = UINT32_MAX,
                                .kill_at = UINT32_MAX,
                                .uid = USER_BOB};

    train_worker_join(train_worker_start(&order, reports[0]), reports[0]);
    train_check(reports, 1, 0, order.n_steps, none);
    train_report_free(reports[0]);
    ck_assert_int_eq(user_rig_remove(&witness, "bob", USER_BOB), CST_OK);
}

/* -- alice ------------------------------------------------------------------------------------ */

static void start(const char *config, const char *host, const char *pool)
{
    n_kept = 0;
    user_rig_start_sized(config, host, pool);
}

static void stop(void)
{
    for (unsigned i = 0; i < n_kept; i++) {
        (void)close(kept[i]);
    }
    raw_close(&alice);
    user_rig_stop();
}

static void open_alices(const char *name, uint32_t world, uint32_t rank)
{
    struct raw_job job = {
        .name = name, .world = world, .rank = rank, .timeout_ms = 600000, .chunk_elems = 4096};

    user_rig_open(&alice, USER_ALICE);
    ck_assert_msg(raw_job_open(&alice, &job) == CST_OK, "%s", alice.err.text);
}

/* Declare until it is refused. Returns the number of tensors. */
static uint32_t declare_all(void)
{
    uint32_t n = 0;

    while (hoard_declare(&alice, n) == CST_OK) {
        n++;
    }
    ck_assert_int_eq(alice.err.status, CST_EBUDGET);
    return n;
}

/* What alice holds of @key. */
static uint64_t used_by_alice(const char *key)
{
    Cistern__QuotaGet get = CISTERN__QUOTA_GET__INIT;
    const Cistern__QuotaPart *part =
        raw_expect(&witness, raw_ask(&witness, CISTERN__MSG_TYPE__MSG_QUOTA, &get.base),
                   CISTERN__MSG_TYPE__MSG_QUOTA_PART, &cistern__quota_part__descriptor);

    for (size_t a = 0; a < part->n_accounts; a++) {
        const Cistern__QuotaAccount *account = part->accounts[a];

        for (size_t u = 0; account->id == USER_ALICE && u < account->n_uses; u++) {
            if (strcmp(account->uses[u]->key, key) == 0) {
                return account->uses[u]->used;
            }
        }
    }
    ck_abort_msg("alice has no account with '%s'", key);
}

/* Keep the first descriptor of the last reply. */
static void keep_reply(void)
{
    ck_assert_uint_ge(alice.reply.n_fds, 1);
    ck_assert_uint_lt(n_kept, MAX_KEPT);
    kept[n_kept++] = alice.reply.fds[0];
    for (unsigned i = 1; i < alice.reply.n_fds; i++) {
        (void)close(alice.reply.fds[i]);
    }
}

/* Bytes of memory of all files that alice keeps; files that are kept twice count once. */
static uint64_t memory_of_kept(void)
{
    static ino_t seen[MAX_KEPT];
    uint64_t bytes = 0;

    for (unsigned i = 0; i < n_kept; i++) {
        struct stat st;
        bool again = false;

        ck_assert_int_eq(fstat(kept[i], &st), 0);
        for (unsigned k = 0; k < i; k++) {
            again = again || seen[k] == st.st_ino;
        }
        seen[i] = st.st_ino;
        bytes += again ? 0 : (uint64_t)st.st_blocks * 512;
    }
    return bytes;
}

static void alice_is_refused(const char *words)
{
    raw_says(&alice, words);
}

/* -- rows ------------------------------------------------------------------------------------- */

/* Declarations of a job that is never committed are charged as they come, and are the daemon's heap
 * within 5 %. When she leaves, the heap is given back. */
START_TEST(declarations)
{
    uint64_t before, grown, charged;

    start("", "--host-memory=64M", "--pool-memory=16M");
    before = daemon_proc_heap(proc.pid);
    open_alices("long", 1, 0);
    ck_assert_uint_gt(declare_all(), 1500);
    alice_is_refused("of 32.0 MiB of host memory (host in [quota], by default 50%): a declaration "
                     "of job 'long' wants");
    grown = daemon_proc_heap(proc.pid) - before;
    charged = used_by_alice("host");
    ck_assert_uint_gt(charged, 31 * MIB);
    ck_assert_uint_le(charged, 32 * MIB);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    ck_assert_msg(grown <= charged + charged / 20, "the heap grew by %llu, %llu are charged",
                  (unsigned long long)grown, (unsigned long long)charged);
#else
    (void)grown;
#endif
    bob_works();
    raw_close(&alice);
    while (raw_stat(&witness)->host_used > 0) {
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    ck_assert_uint_lt(daemon_proc_heap(proc.pid), before + 4 * MIB);
#endif
    user_rig_open(&alice, USER_ALICE);
    stop();
}
END_TEST

static void commit_long(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_msg(hoard_declare(&alice, i) == CST_OK, "%s", alice.err.text);
    }
    ck_assert_msg(raw_status(&alice, raw_commit(&alice, n, n)) == CST_OK, "%s", alice.err.text);
}

/* The ledger, which is made with the first cst_sync, was charged when the job was committed. A job
 * whose ledger would exceed the limit is refused then. */
START_TEST(ledgers)
{
    uint64_t used;

    daemon_proc_keep();
    start("", "--host-memory=64M", "--pool-memory=16M");
    open_alices("long", 1, 0);
    commit_long(300);
    used = used_by_alice("host");
    (void)raw_sync(&alice);
    ck_assert_uint_eq(used_by_alice("host"), used);
    raw_close(&alice);
    ck_assert_int_eq(user_rig_remove(&witness, "long", USER_ALICE), CST_OK);
    open_alices("large", 1, 0);
    for (uint32_t i = 0; i < 900; i++) {
        ck_assert_msg(hoard_declare(&alice, i) == CST_OK, "%s", alice.err.text);
    }
    ck_assert_int_eq(raw_status(&alice, raw_commit(&alice, 900, 900)), CST_EBUDGET);
    alice_is_refused("of 32.0 MiB of host memory (host in [quota], by default 50%): large wants");
    bob_works();
    stop();
}
END_TEST

/* Begin a save, keep the description, and end the save. Returns the status. */
static int save(const char *job)
{
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    int rc;

    name.name = (char *)(uintptr_t)job;
    rc = raw_call(&alice, CISTERN__MSG_TYPE__MSG_SAVE, &name.base);
    if (rc == CST_OK) {
        keep_reply();
        rc = raw_call(&alice, CISTERN__MSG_TYPE__MSG_SAVE_END, NULL);
    }
    return rc;
}

/* Set the counters of the job, so that the last description is wrong. */
static void restore(uint64_t step)
{
    Cistern__Restore message = CISTERN__RESTORE__INIT;

    message.step = message.adam_step = step;
    ck_assert_msg(raw_call(&alice, CISTERN__MSG_TYPE__MSG_RESTORE, &message.base) == CST_OK, "%s",
                  alice.err.text);
}

/* Descriptions of saves that a process keeps are charged until it lets go. The job's own save is
 * then possible again. */
START_TEST(descriptions)
{
    uint64_t step = 0;

    start("", "--host-memory=64M", "--pool-memory=16M");
    open_alices("long", 1, 0);
    commit_long(300);
    (void)raw_sync(&alice);
    while (save("long") == CST_OK) {
        restore(++step);
    }
    ck_assert_int_eq(alice.err.status, CST_EBUDGET);
    alice_is_refused("of 32.0 MiB of host memory (host in [quota], by default 50%): the last "
                     "description of job 'long', which a process keeps, wants");
    ck_assert_uint_gt(n_kept, 1);
    ck_assert_uint_le(memory_of_kept(), used_by_alice("host"));
    ck_assert_uint_le(used_by_alice("host"), 32 * MIB);
    bob_works();
    while (n_kept > 0) {
        (void)close(kept[--n_kept]);
    }
    ck_assert_int_eq(raw_call(&alice, CISTERN__MSG_TYPE__MSG_SAVE_END, NULL), CST_OK);
    ck_assert_msg(save("long") == CST_OK, "%s", alice.err.text);
    stop();
}
END_TEST

/* Ask for a communicator of all ranks. Returns the request's id. */
static uint64_t ask_comm(uint64_t attempt)
{
    Cistern__CommOpen open = CISTERN__COMM_OPEN__INIT;

    open.attempt = attempt;
    return raw_ask(&alice, CISTERN__MSG_TYPE__MSG_COMM_OPEN, &open.base);
}

static int open_comm(uint64_t attempt)
{
    return raw_status(&alice, ask_comm(attempt));
}

/* Communicators take files of the daemon, up to the user's limit. Bob connects, trains and opens
 * his own; an engine that dies starts again. */
START_TEST(communicators)
{
    uint64_t attempt;
    unsigned n_files;

    start("[quota uid:61001]\nfiles = 40\n", "--host-memory=1G", "--pool-memory=16M");
    open_alices("comms", 1, 0);
    ck_assert_int_eq(raw_declare_many(&alice, 1, 4096), CST_OK);
    ck_assert_int_eq(raw_status(&alice, raw_commit(&alice, 1, 1)), CST_OK);
    attempt = raw_sync(&alice);
    n_files = daemon_proc_fds(proc.pid);
    while (open_comm(attempt) == CST_OK) {
        (void)close(alice.reply.fds[0]);
    }
    ck_assert_int_eq(alice.err.status, CST_EBUDGET);
    alice_is_refused("of 40 open files (files in [quota uid:61001]): communicator of group 0 of "
                     "job 'comms' wants 2 more");
    ck_assert_uint_le(daemon_proc_fds(proc.pid), n_files + 40);
    ck_assert_int_eq(kill((pid_t)raw_stat(&witness)->engines[0]->pid, SIGKILL), 0);
    bob_works();
    ck_assert_uint_eq(raw_stat(&witness)->engines[0]->restarts, 1);
    stop();
}
END_TEST

/* A rank that asks again and again for communicators that the other rank does not join is charged
 * for each. */
START_TEST(communicators_that_wait)
{
    struct raw_client other;
    struct raw_job job = {
        .name = "wait", .world = 2, .rank = 1, .chunk_elems = 4096, .timeout_ms = 600000};
    uint64_t attempt, id, before;
    unsigned n = 0;

    start("[quota]\nrequests = 100\n[job]\ncredits = 1000\n", "--host-memory=64M",
          "--pool-memory=16M");
    open_alices("wait", 2, 0);
    user_rig_open(&other, USER_ALICE);
    ck_assert_int_eq(raw_job_open(&other, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&alice, 1, 4096), CST_OK);
    ck_assert_int_eq(raw_declare_many(&other, 1, 4096), CST_OK);
    id = raw_commit(&alice, 1, 1);
    ck_assert_int_eq(raw_status(&other, raw_commit(&other, 1, 1)), CST_OK);
    ck_assert_int_eq(raw_status(&alice, id), CST_OK);
    id = raw_ask(&alice, CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    attempt = raw_sync(&other);
    ck_assert_int_eq(raw_status(&alice, id), CST_OK);
    before = used_by_alice("host");
    for (; n < 100; n++) {
        (void)ask_comm(attempt);
    }
    ck_assert_int_eq(open_comm(attempt), CST_ENOCREDIT);
    alice_is_refused("uid 61001 has 100 of 100 requests in flight (requests in [quota])");
    ck_assert_uint_gt(used_by_alice("host"), before + (uint64_t)n * 512);
    bob_works();
    raw_close(&other);
    stop();
}
END_TEST

/* Map the first file of the last reply and write all of it. */
static void *map_reply(size_t *n_bytes)
{
    struct stat st;
    void *base;

    ck_assert_int_eq(fstat(alice.reply.fds[0], &st), 0);
    *n_bytes = (size_t)st.st_size;
    base = mmap(NULL, *n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, alice.reply.fds[0], 0);
    ck_assert(base != MAP_FAILED);
    memset(base, 1, *n_bytes);
    return base;
}

/* Mappings of communicators that were closed stay charged, because they can be written again at any
 * time. What is charged never exceeds what there is. */
START_TEST(kept_mappings)
{
    static void *maps[MAX_KEPT];
    static size_t n_bytes[MAX_KEPT];
    Cistern__CommClose close_message = CISTERN__COMM_CLOSE__INIT;
    const Cistern__StatReply *stat;
    unsigned n = 0;
    uint64_t attempt;

    start("", "--host-memory=64M", "--pool-memory=16M");
    open_alices("comms", 1, 0);
    ck_assert_int_eq(raw_declare_many(&alice, 1, 4096), CST_OK);
    ck_assert_int_eq(raw_status(&alice, raw_commit(&alice, 1, 1)), CST_OK);
    attempt = raw_sync(&alice);
    for (;;) {
        const Cistern__CommOpened *opened;

        if (open_comm(attempt) != CST_OK) {
            break;
        }
        maps[n] = map_reply(&n_bytes[n]);
        (void)close(alice.reply.fds[0]);
        opened = cistern__comm_opened__unpack(NULL, alice.reply.body_bytes, alice.reply.body);
        close_message.id = opened->id;
        cistern__comm_opened__free_unpacked((Cistern__CommOpened *)(uintptr_t)opened, NULL);
        ck_assert_int_eq(raw_call(&alice, CISTERN__MSG_TYPE__MSG_COMM_CLOSE, &close_message.base),
                         CST_OK);
        n++;
    }
    ck_assert_int_eq(alice.err.status, CST_EBUDGET);
    alice_is_refused("of 32.0 MiB of host memory (host in [quota], by default 50%): communicator "
                     "of group 0 of job 'comms' wants");
    for (unsigned i = 0; i < n; i++) {
        memset(maps[i], 2, n_bytes[i]);
    }
    stat = raw_stat(&witness);
    ck_assert_uint_le(used_by_alice("host"), 32 * MIB);
    ck_assert_uint_le(stat->host_used, stat->host_budget);
    bob_works();
    for (unsigned i = 0; i < n; i++) {
        (void)munmap(maps[i], n_bytes[i]);
    }
    /* The daemon finds out when the next request would be refused. */
    ck_assert_msg(open_comm(attempt) == CST_OK, "%s", alice.err.text);
    (void)close(alice.reply.fds[0]);
    stop();
}
END_TEST

/* Each rank of a job counts as a file, because the daemon watches its process. */
START_TEST(ranks)
{
    struct raw_client clients[4];
    struct raw_job job = {.name = "j0", .world = 30};
    char name[] = "j0";
    unsigned n = 0;

    start("[quota uid:61001]\nfiles = 100\n", "--host-memory=64M", "--pool-memory=16M");
    for (; n < 4; n++) {
        name[1] = (char)('0' + n);
        job.name = name;
        user_rig_open(&clients[n], USER_ALICE);
        if (raw_job_open(&clients[n], &job) != CST_OK) {
            break;
        }
    }
    ck_assert_uint_eq(n, 3);
    raw_says(&clients[3],
             "uid 61001 has 90 of 100 open files (files in [quota uid:61001]): job 'j3' wants 30 "
             "more");
    bob_works();
    for (unsigned i = 0; i <= n; i++) {
        raw_close(&clients[i]);
    }
    user_rig_open(&alice, USER_ALICE);
    stop();
}
END_TEST

/* -- what is reserved for a job --------------------------------------------------------------- */

/* Bytes of host memory that a job of @n_params takes, with all that is reserved for it. */
static uint64_t bytes_of_job(int64_t n_params)
{
    uint64_t bytes;

    user_rig_start("");
    ck_assert_int_eq(user_rig_commit(&alice, USER_ALICE, "j", n_params, 0), CST_OK);
    bytes = raw_stat(&witness)->host_used;
    raw_close(&alice);
    user_rig_stop();
    return bytes;
}

/* Ask for staging. Returns the status, and keeps the descriptor. */
static int get_staging(struct raw_client *client)
{
    Cistern__StagingGet get = CISTERN__STAGING_GET__INIT;
    int rc;

    get.bytes = 1 << 20;
    rc = raw_call(client, CISTERN__MSG_TYPE__MSG_STAGING, &get.base);
    if (rc == CST_OK) {
        cst_frame_close_fds(&client->reply);
    }
    return rc;
}

/* No host memory is left, to the byte. Alice's job can still be written and saved, again and again,
 * and a client without a job is refused with the numbers. */
START_TEST(a_full_budget)
{
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    struct raw_client saver, bob;
    char host[64];

    (void)snprintf(host, sizeof host, "--host-memory=%llu",
                   (unsigned long long)bytes_of_job(1 << 16));
    start("[quota]\nhost = none\n", host, "--pool-memory=16M");
    ck_assert_msg(user_rig_commit(&alice, USER_ALICE, "j", 1 << 16, 0) == CST_OK, "%s",
                  alice.err.text);
    (void)raw_sync(&alice);
    ck_assert_uint_eq(raw_stat(&witness)->host_used, raw_stat(&witness)->host_budget);
    ck_assert_msg(get_staging(&alice) == CST_OK, "%s", alice.err.text);
    name.name = (char *)(uintptr_t) "j";
    for (int i = 0; i < 3; i++) {
        user_rig_open(&saver, USER_ALICE);
        ck_assert_msg(raw_call(&saver, CISTERN__MSG_TYPE__MSG_SAVE, &name.base) == CST_OK, "%s",
                      saver.err.text);
        cst_frame_close_fds(&saver.reply);
        ck_assert_msg(get_staging(&saver) == CST_OK, "%s", saver.err.text);
        raw_close(&saver);
        while (raw_stat(&witness)->n_sessions > 2) {
        }
        ck_assert_uint_eq(raw_stat(&witness)->host_used, raw_stat(&witness)->host_budget);
    }
    user_rig_open(&bob, USER_BOB);
    ck_assert_int_eq(get_staging(&bob), CST_EBUDGET);
    raw_says(&bob, "host memory: staging wants 64.0 KiB");
    raw_says(&bob, "short (memory in [host])");
    raw_close(&bob);
    stop();
}
END_TEST

/* Two limits that a job exceeds are named at once, each with its numbers and its key. */
START_TEST(all_shortages)
{
    start("[quota]\nhost = 2M\npool = 64K\n", "--host-memory=4M", "--pool-memory=128K");
    ck_assert_int_eq(user_rig_commit(&alice, USER_ALICE, "big", 1 << 20, 1 << 20), CST_EBUDGET);
    alice_is_refused("(memory in [host]); uid 61001 has");
    alice_is_refused("of 2.0 MiB of host memory (host in [quota])");
    alice_is_refused("pools of the host device: big wants 1.0 MiB");
    alice_is_refused("(pool in [device host])");
    alice_is_refused("of 64.0 KiB of pools of the host device (pool in [quota]): big wants");
    stop();
}
END_TEST

/* -- every row -------------------------------------------------------------------------------- */

/* Alice takes all that she can of one thing. Each refusal names use, limit and key, the memory that
 * the daemon has is what its budgets say within 5 %, and bob trains with the bits that he has
 * alone. When she leaves, nothing is left. */
START_TEST(a_hoard)
{
    const struct hoard *hoard = &hoards[_i];
    uint64_t memory, budgeted;
    unsigned n;

    hoard_start(hoard);
    memory = hoard_memory(proc.pid, 0);
    n = hoard_fill(hoard);
    memory = hoard_memory(proc.pid, getpid()) - memory;
    budgeted = hoard_budgeted();
    (void)printf("%s: %u pieces, %llu KiB of memory, %llu KiB of budgets: %s\n", hoard->name, n,
                 (unsigned long long)memory >> 10, (unsigned long long)budgeted >> 10,
                 hoard_refusal());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (hoard->most_bytes > 0) {
        /* The heap can end in a large page, and code runs for the first time. */
        ck_assert_uint_le(memory, n * hoard->most_bytes + (2u << 20));
    } else {
        ck_assert_uint_le(memory, budgeted + budgeted / 20);
        ck_assert(hoard->cleared || memory >= budgeted - budgeted / 20);
    }
#endif
    hoard_ask_again(hoard, n);
    bob_works();
    hoard_drop();
    user_rig_stop();
}
END_TEST

int main(int argc, char **argv)
{
    const char *lacks = user_lacks(argv);
    Suite *suite = suite_create("budgets");
    TCase *tc = suite_case(suite, "budgets", NULL, NULL);

    (void)argc;
    if (lacks != NULL) {
        (void)printf("skipped: %s\n", lacks);
        return 77;
    }
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, declarations);
    tcase_add_test(tc, ledgers);
    tcase_add_test(tc, descriptions);
    tcase_add_test(tc, communicators);
    tcase_add_test(tc, communicators_that_wait);
    tcase_add_test(tc, kept_mappings);
    tcase_add_test(tc, ranks);
    tcase_add_test(tc, a_full_budget);
    tcase_add_test(tc, all_shortages);
    suite_add_loop(tc, a_hoard, 0, (int)n_hoards);
    return suite_run(suite);
}
