/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of two users of one daemon: neither can see anything of the other, each is held to the
 * limits in [quota], and a user who is at all limits leaves the other able to work. */
#include "tests/lib/child.h"
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_check.h"
#include "tests/lib/user.h"

#include <check.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static struct daemon_proc proc;
static struct raw_client witness; /* a manager */
static unsigned base_fds;
static char config[64]; /* path of the daemon's configuration file */

static void write_config(const char *text)
{
    FILE *file = fopen(config, "we");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

/* Start a daemon with the configuration @text and the budgets of the options @host and @pool. */
static void start_sized(const char *text, const char *host, const char *pool)
{
    char option[80];
    const char *const options[] = {option, host, pool, NULL};
    int fd;

    (void)snprintf(config, sizeof config, "/tmp/cistern-conf-XXXXXX");
    fd = mkstemp(config);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(close(fd), 0);
    write_config(text);
    (void)snprintf(option, sizeof option, "--config=%s", config);
    daemon_proc_start(&proc, options);
    ck_assert_int_eq(shutdown(proc.notify, SHUT_RD), 0);
    user_admit(&proc);
    raw_open(&witness, proc.manager);
    base_fds = daemon_proc_fds(proc.pid);
}

static void start(const char *text)
{
    start_sized(text, "--host-memory=256M", "--pool-memory=64M");
}

static Cistern__JobListPart *list_jobs(struct raw_client *client)
{
    Cistern__JobListGet get = CISTERN__JOB_LIST_GET__INIT;
    uint64_t id = raw_ask(client, CISTERN__MSG_TYPE__MSG_JOB_LIST, &get.base);

    return raw_expect(client, id, CISTERN__MSG_TYPE__MSG_JOB_LIST_PART,
                      &cistern__job_list_part__descriptor);
}

static int remove_job(struct raw_client *client, const char *name, uid_t uid)
{
    Cistern__JobName message = CISTERN__JOB_NAME__INIT;

    message.name = (char *)(uintptr_t)name;
    message.has_uid = 1;
    message.uid = uid;
    return raw_call(client, CISTERN__MSG_TYPE__MSG_JOB_REMOVE, &message.base);
}

/* Remove all jobs, check that nothing is in use or in the accounts, and stop the daemon. */
static void stop(void)
{
    Cistern__JobListPart *part;

    while ((part = list_jobs(&witness))->n_jobs > 0) {
        for (size_t i = 0; i < part->n_jobs; i++) {
            (void)remove_job(&witness, part->jobs[i]->name, part->jobs[i]->uid);
        }
    }
    settle(&witness, &proc, settle_fds(&witness, base_fds));
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    (void)unlink(config);
}

static void open_in_group(struct raw_client *client, uid_t uid, gid_t gid)
{
    user_as(uid, gid);
    raw_connect(client, proc.socket);
    user_back();
}

/* Connect as @uid and send Hello. Returns the status. */
static int greet(struct raw_client *client, uid_t uid)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;

    open_in_group(client, uid, uid);
    hello.min_version = hello.max_version = 1;
    return raw_call(client, CISTERN__MSG_TYPE__MSG_HELLO, &hello.base);
}

static void open_as(struct raw_client *client, uid_t uid)
{
    ck_assert_msg(greet(client, uid) == CST_OK, "%s", client->err.text);
}

static int open_job(struct raw_client *client, uid_t uid, const char *name)
{
    struct raw_job job = {.name = name, .world = 1};

    open_as(client, uid);
    return raw_job_open(client, &job);
}

/* Commit a job of @n_params with a pool of @pool_bytes (0: as many as it can use). Returns the
 * status. */
static int commit_job(struct raw_client *client, uid_t uid, const char *name, int64_t n_params,
                      uint64_t pool_bytes)
{
    struct raw_job job = {.name = name, .world = 1, .pool_bytes = pool_bytes, .chunk_elems = 4096};

    open_as(client, uid);
    ck_assert_msg(raw_job_open(client, &job) == CST_OK, "%s", client->err.text);
    ck_assert_int_eq(raw_declare_many(client, (uint32_t)(n_params / 4096), 4096), CST_OK);
    return raw_status(client,
                      raw_commit(client, (uint32_t)(n_params / 4096), (uint32_t)(n_params / 4096)));
}

/* The account number @i that @client may see. */
static Cistern__QuotaAccount *quota_of(struct raw_client *client, size_t *n)
{
    Cistern__QuotaGet get = CISTERN__QUOTA_GET__INIT;
    uint64_t id = raw_ask(client, CISTERN__MSG_TYPE__MSG_QUOTA, &get.base);
    Cistern__QuotaPart *part =
        raw_expect(client, id, CISTERN__MSG_TYPE__MSG_QUOTA_PART, &cistern__quota_part__descriptor);

    ck_assert_uint_gt(part->n_accounts, 0);
    *n = part->n_accounts;
    return part->accounts[0];
}

/* -- visibility ----------------------------------------------------------------------------- */

/* By no request can bob reach, or learn of, a job of alice's: not by its name, with her uid, as a
 * base job, in lists, or in accounts. His job of that name is another one. A manager sees both. */
START_TEST(nobody_sees_anothers_job)
{
    struct raw_client alice, bob;
    struct raw_job job = {.name = "hers", .world = 1};
    Cistern__JobName name = CISTERN__JOB_NAME__INIT;
    Cistern__JobOpen on_base = CISTERN__JOB_OPEN__INIT;
    Cistern__QuotaAccount *account;
    size_t n;

    start("");
    ck_assert_int_eq(commit_job(&alice, USER_ALICE, "hers", 8192, 0), CST_OK);
    open_as(&bob, USER_BOB);
    ck_assert_uint_eq(list_jobs(&alice)->n_jobs, 1);
    ck_assert_uint_eq(list_jobs(&bob)->n_jobs, 0);
    ck_assert_uint_eq(list_jobs(&witness)->n_jobs, 1);
    name.name = (char *)(uintptr_t) "hers";
    for (int with_uid = 0; with_uid < 2; with_uid++) {
        static const uint16_t types[] = {CISTERN__MSG_TYPE__MSG_JOB_INFO,
                                         CISTERN__MSG_TYPE__MSG_JOB_REMOVE};

        name.has_uid = with_uid;
        name.uid = USER_ALICE;
        for (unsigned i = 0; i < 2; i++) {
            ck_assert_int_eq(raw_call(&bob, types[i], &name.base),
                             with_uid ? CST_EDENIED : CST_ENOTFOUND);
        }
    }
    on_base.name = (char *)(uintptr_t) "his";
    on_base.base_job = (char *)(uintptr_t) "hers";
    on_base.world = 1;
    ck_assert_int_eq(raw_call(&bob, CISTERN__MSG_TYPE__MSG_JOB_OPEN, &on_base.base), CST_ENOTFOUND);
    ck_assert_int_eq(raw_job_open(&bob, &job), CST_OK);
    ck_assert(job.created && !job.initialised);
    account = quota_of(&bob, &n);
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(account->id, USER_BOB);
    (void)quota_of(&witness, &n);
    ck_assert_uint_eq(n, 3);
    ck_assert_uint_eq(list_jobs(&witness)->n_jobs, 2);
    raw_close(&alice);
    raw_close(&bob);
    stop();
}
END_TEST

/* Find the first byte of @client's pool that is not 0, then fill the pool. */
static uint64_t fill_pool(struct raw_client *client)
{
    Cistern__PoolGet get = CISTERN__POOL_GET__INIT;
    uint64_t id = raw_ask(client, CISTERN__MSG_TYPE__MSG_POOL, &get.base), at = UINT64_MAX;
    const Cistern__PoolPart *part =
        raw_expect(client, id, CISTERN__MSG_TYPE__MSG_POOL_PART, &cistern__pool_part__descriptor);

    for (unsigned i = 0; i < client->reply.n_fds; i++) {
        uint8_t *base =
            mmap(NULL, part->bytes[i], PROT_READ | PROT_WRITE, MAP_SHARED, client->reply.fds[i], 0);

        ck_assert_ptr_ne(base, MAP_FAILED);
        for (uint64_t b = 0; b < part->bytes[i] && at == UINT64_MAX; b++) {
            at = base[b] != 0 ? b : at;
        }
        memset(base, 0xa5, part->bytes[i]);
        (void)munmap(base, part->bytes[i]);
    }
    cst_frame_close_fds(&client->reply);
    return at;
}

/* Memory that goes to another user is zeroed: nothing that alice wrote is in the pool or the
 * staging memory that bob gets. */
START_TEST(no_byte_changes_hands)
{
    struct raw_client client;

    start("");
    for (int i = 0; i < 4; i++) {
        uid_t uid = i % 2 == 0 ? USER_ALICE : USER_BOB;

        ck_assert_msg(commit_job(&client, uid, "j", 262144, 0) == CST_OK, "%s", client.err.text);
        ck_assert_uint_eq(fill_pool(&client), UINT64_MAX);
        raw_close(&client);
        ck_assert_int_eq(remove_job(&witness, "j", uid), CST_OK);
    }
    stop();
}
END_TEST

/* -- limits --------------------------------------------------------------------------------- */

/* One user gets half of 64 jobs, and is told the key of the limit. The other one gets his half.
 * Root, who runs the daemon, is not limited unless a section says so. */
START_TEST(half_of_the_jobs)
{
    static struct raw_client clients[40];
    struct raw_client bob, root;
    char name[16];
    unsigned n = 0;

    start("");
    for (; n < 40; n++) {
        (void)snprintf(name, sizeof name, "j%u", n);
        if (open_job(&clients[n], USER_ALICE, name) != CST_OK) {
            break;
        }
    }
    ck_assert_uint_eq(n, 32);
    ck_assert_int_eq(clients[n].err.status, CST_EBUDGET);
    raw_says(&clients[n], "uid 61001 has 32 of 32 jobs (jobs in [quota], by default 50%): job "
                          "'j32' wants 1 more");
    ck_assert_int_eq(open_job(&bob, USER_BOB, "j0"), CST_OK);
    for (unsigned i = 0; i <= n; i++) {
        raw_close(&clients[i]);
    }
    raw_close(&bob);
    for (unsigned i = 0; i < 40; i++) {
        (void)snprintf(name, sizeof name, "r%u", i);
        ck_assert_msg(open_job(&root, 0, name) == CST_OK, "%s", root.err.text);
        raw_close(&root);
    }
    stop();
}
END_TEST

/* Connections of one user beyond the limit are told so, or are closed. They take no place of
 * another user's, even if they never read the message. */
START_TEST(half_of_the_connections)
{
    static struct raw_client clients[200];
    struct raw_client bob;

    start("[job]\nmax_sessions = 20\n");
    for (unsigned i = 0; i < 10; i++) {
        open_as(&clients[i], USER_ALICE);
    }
    ck_assert_int_eq(greet(&clients[10], USER_ALICE), CST_EBUSY);
    raw_says(&clients[10], "uid 61001 has 10 of 10 connections (sessions in [quota], by default "
                           "50%): this process wants 1 more");
    raw_expect_closed(&clients[10]);
    for (unsigned i = 11; i < 200; i++) { /* these connections send nothing */
        open_in_group(&clients[i], USER_ALICE, USER_ALICE);
    }
    for (unsigned i = 0; i < 9; i++) {
        open_as(&bob, USER_BOB);
        raw_close(&bob);
    }
    for (unsigned i = 0; i < 200; i++) {
        raw_close(&clients[i]);
    }
    stop();
}
END_TEST

/* Host memory and pools are each limited by their own key. A refused request costs nothing, and
 * freed memory can be used again. */
START_TEST(bytes)
{
    struct raw_client client, bob;

    start("[quota]\nhost = 4M\npool = 256K\n[quota uid:61002]\nhost = 16M\npool = none\n");
    ck_assert_int_eq(commit_job(&client, USER_ALICE, "large", 1 << 19, 0), CST_EBUDGET);
    raw_says(&client, "of host memory (host in [quota]): large wants");
    raw_close(&client);
    ck_assert_int_eq(commit_job(&client, USER_ALICE, "wide", 1 << 17, 1 << 19), CST_EBUDGET);
    raw_says(&client, "uid 61001 has 0 B of 256.0 KiB of pools of the host device (pool in "
                      "[quota]): wide wants");
    raw_close(&client);
    for (int i = 0; i < 3; i++) {
        ck_assert_msg(commit_job(&client, USER_ALICE, "fits", 1 << 17, 1 << 18) == CST_OK, "%s",
                      client.err.text);
        raw_close(&client);
        ck_assert_int_eq(remove_job(&witness, "fits", USER_ALICE), CST_OK);
    }
    ck_assert_int_eq(commit_job(&bob, USER_BOB, "large", 1 << 19, 2 << 20), CST_OK);
    raw_close(&bob);
    stop();
}
END_TEST

/* A worker that asks for no size gets a pool within the limit, as on a small device. */
START_TEST(a_pool_within_the_limit)
{
    struct raw_client client;

    start("[quota]\npool = 1M\n");
    ck_assert_msg(commit_job(&client, USER_ALICE, "j", 1 << 20, 0) == CST_OK, "%s",
                  client.err.text);
    ck_assert_uint_le(raw_stat(&witness)->pool_used, 1 << 20);
    raw_close(&client);
    stop();
}
END_TEST

/* Each device has its own limit: memory in use on the host does not count for an accelerator. */
START_TEST(a_pool_on_an_accelerator)
{
    struct raw_job job = {
        .name = "j", .world = 1, .device = "paced:0", .pool_bytes = 1 << 19, .chunk_elems = 4096};
    struct raw_client client, host;

    start("[paced]\ndevices = 1\nmemory = 4M\n[quota]\npool = 256K\n");
    ck_assert_int_eq(commit_job(&host, USER_ALICE, "host", 1 << 16, 1 << 18), CST_OK);
    open_as(&client, USER_ALICE);
    ck_assert_msg(raw_job_open(&client, &job) == CST_OK, "%s", client.err.text);
    ck_assert_int_eq(raw_declare_many(&client, 64, 4096), CST_OK);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 64, 64)), CST_EBUDGET);
    raw_says(&client, "uid 61001 has 0 B of 256.0 KiB of memory of paced:0 (pool in [quota]): j ");
    raw_close(&client);
    job.name = "k";
    job.pool_bytes = 1 << 17;
    open_as(&client, USER_ALICE);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 64, 4096), CST_OK);
    ck_assert_msg(raw_status(&client, raw_commit(&client, 64, 64)) == CST_OK, "%s",
                  client.err.text);
    raw_close(&client);
    raw_close(&host);
    stop();
}
END_TEST

/* The limit of pending requests is for all connections of a user together. */
START_TEST(requests_that_wait)
{
    struct raw_client clients[4], bob;

    start("[quota]\nrequests = 3\n");
    for (unsigned i = 0; i < 4; i++) {
        char name[8];
        struct raw_job job = {.name = name, .world = 2, .timeout_ms = 60000};

        (void)snprintf(name, sizeof name, "j%u", i);
        open_as(&clients[i], USER_ALICE);
        ck_assert_int_eq(raw_job_open(&clients[i], &job), CST_OK);
        ck_assert_int_eq(raw_declare_many(&clients[i], 1, 10), CST_OK);
        (void)raw_commit(&clients[i], 1, 1); /* waits for rank 1 */
    }
    ck_assert_int_eq(raw_status(&clients[3], 0), CST_ENOCREDIT);
    raw_says(&clients[3],
             "uid 61001 has 3 of 3 requests in flight (requests in [quota]): a request wants 1");
    ck_assert_int_eq(commit_job(&bob, USER_BOB, "his", 4096, 0), CST_OK);
    for (unsigned i = 0; i < 4; i++) {
        raw_close(&clients[i]);
    }
    raw_close(&bob);
    stop();
}
END_TEST

static int open_with_ttl(struct raw_client *client, const char *name, uint32_t ttl_s)
{
    Cistern__JobOpen open = CISTERN__JOB_OPEN__INIT;

    open_as(client, USER_ALICE);
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

    start("[quota]\nttl = 2h\n");
    ck_assert_int_eq(open_with_ttl(&client, "j", UINT32_MAX), CST_EINVAL);
    raw_says(&client, "uid 61001 may have 7200 seconds to live without a worker (ttl in [quota]): "
                      "job 'j' wants 4294967295");
    ck_assert_uint_eq(list_jobs(&witness)->n_jobs, 0);
    raw_close(&client);
    ck_assert_int_eq(open_with_ttl(&client, "j", 7200), CST_OK);
    raw_close(&client);
    stop();
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
    start("[quota gid:61001]\nsessions = 0\n");
    ck_assert_int_eq(setgroups(200, groups), 0);
    ck_assert_int_eq(setegid(USER_BOB), 0);
    ck_assert_int_eq(seteuid(USER_BOB), 0);
    raw_connect(&client, proc.socket);
    user_back();
    hello.min_version = hello.max_version = 1;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_HELLO, &hello.base), CST_EBUSY);
    raw_says(&client, "gid 61001 has 0 of 0 connections (sessions in [quota gid:61001])");
    raw_close(&client);
    stop();
}
END_TEST

/* Members of a group share its limit, and none can leave it by connecting with another group. */
START_TEST(a_group)
{
    struct raw_client alice, bob, member;

    start("[quota gid:61001]\njobs = 1\n");
    open_in_group(&member, USER_BOB, USER_ALICE);
    ck_assert_int_eq(open_job(&bob, USER_BOB, "his"), CST_OK); /* bob uses his own group */
    ck_assert_int_eq(open_job(&alice, USER_ALICE, "hers"), CST_EBUDGET);
    raw_says(&alice, "gid 61001 has 1 of 1 jobs (jobs in [quota gid:61001]): job 'hers' wants 1");
    raw_close(&bob);
    while (list_jobs(&witness)->n_jobs > 0) {
    }
    raw_close(&alice);
    ck_assert_int_eq(open_job(&alice, USER_ALICE, "hers"), CST_OK);
    ck_assert_int_eq(open_job(&bob, USER_BOB, "his"), CST_EBUDGET);
    raw_close(&alice);
    raw_close(&bob);
    raw_close(&member);
    stop();
}
END_TEST

/* On SIGHUP the daemon reads the limits of the file again. What exceeds them stays. A file with an
 * error changes nothing. */
START_TEST(reload)
{
    struct raw_client first, second;

    start("[quota]\njobs = 2\n");
    ck_assert_int_eq(open_job(&first, USER_ALICE, "a"), CST_OK);
    ck_assert_int_eq(open_job(&second, USER_ALICE, "b"), CST_OK);
    write_config("[quota]\njobs = 1\n");
    ck_assert_int_eq(kill(proc.pid, SIGHUP), 0);
    while (!daemon_proc_logged(&proc, "SIGHUP: the limits in [quota] were read again")) {
        raw_stat(&witness);
    }
    ck_assert_uint_eq(list_jobs(&first)->n_jobs, 2);
    raw_close(&second); /* job "b" ends with it */
    while (list_jobs(&first)->n_jobs == 2) {
    }
    ck_assert_int_eq(open_job(&second, USER_ALICE, "c"), CST_EBUDGET);
    raw_says(&second, "uid 61001 has 1 of 1 jobs (jobs in [quota]): job 'c' wants 1 more");
    raw_close(&second);
    write_config("[quota]\njobs = many\n");
    ck_assert_int_eq(kill(proc.pid, SIGHUP), 0);
    while (!daemon_proc_logged(&proc, "the limits of users are unchanged")) {
        raw_stat(&witness);
    }
    ck_assert(daemon_proc_logged(&proc, ":2: jobs: 'many' is not a limit for jobs"));
    ck_assert_int_eq(open_job(&second, USER_ALICE, "c"), CST_EBUDGET);
    raw_close(&second);
    raw_close(&first);
    stop();
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

    start("");
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
    while (list_jobs(&witness)->n_jobs > 0) { /* the ttl of a second is what is tested */
        (void)usleep(20000);
    }
    ck_assert_int_eq(kill(holder, 0), 0);
    ck_assert(daemon_proc_logged(&proc, "job 'held': removed, because it had no worker for 1 s"));
    ck_assert_int_eq(kill(holder, SIGKILL), 0);
    (void)child_wait(holder);
    (void)close(ready[0]);
    (void)close(ready[1]);
    stop();
}
END_TEST

/* -- a user at all limits ------------------------------------------------------------------- */

/* Alice holds all jobs, memory and connections that she may, and keeps asking for more. Bob's
 * worker connects, commits and trains with the bits that it has alone. */
START_TEST(one_at_all_limits_leaves_the_other_able)
{
    static struct raw_client clients[140];
    const struct train_bad none = {.step = TRAIN_NEVER};
    struct train_report *reports[TRAIN_MAX_WORLD] = {train_report_new()};
    struct train_order order = {.socket = proc.socket,
                                .name = "j0",
                                .world = 1,
                                .n_steps = 3,
                                .bad = none,
                                .die_at = UINT32_MAX,
                                .kill_at = UINT32_MAX,
                                .uid = USER_BOB};
    unsigned n_jobs = 0, n = 0;
    pid_t worker;

    start_sized("", "--host-memory=64M", "--pool-memory=16M");
    for (;; n++) {
        char name[16];

        if (greet(&clients[n], USER_ALICE) != CST_OK) {
            break;
        }
        (void)snprintf(name, sizeof name, "j%u", n);
        if (raw_job_open(&clients[n], &(struct raw_job){.name = name, .world = 1}) == CST_OK &&
            raw_declare_many(&clients[n], 256, 4096) == CST_OK) {
            n_jobs++;
            (void)raw_status(&clients[n], raw_commit(&clients[n], 256, 256));
        }
    }
    ck_assert_uint_eq(n, 128);
    ck_assert_uint_eq(n_jobs, 32);
    worker = train_worker_start(&order, reports[0]);
    train_worker_join(worker, reports[0]);
    train_check(reports, 1, 0, order.n_steps, none);
    for (unsigned i = 0; i <= n; i++) {
        raw_close(&clients[i]);
    }
    train_report_free(reports[0]);
    stop();
}
END_TEST

int main(int argc, char **argv)
{
    const char *lacks = user_lacks(argv);
    Suite *suite = suite_create("users");
    TCase *tc = suite_case(suite, "users", NULL, NULL);

    (void)argc;
    if (lacks != NULL) {
        (void)printf("skipped: %s\n", lacks);
        return 77;
    }
    tcase_add_test(tc, nobody_sees_anothers_job);
    tcase_add_test(tc, no_byte_changes_hands);
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
    tcase_add_test(tc, one_at_all_limits_leaves_the_other_able);
    return suite_run(suite);
}
