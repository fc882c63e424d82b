/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of descriptors that were sent to clients which do not read. The kernel lets a user have
 * RLIMIT_NOFILE of them in flight; beyond that limit sending fails with ETOOMANYREFS on every
 * socket of the user, including those to engines. Here the daemon has a small limit, and lacks the
 * capabilities that lift it. The descriptors of saves are shared, also without that limit. */
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LIMIT = 1024,     /* limit of descriptors, open or in flight */
    N_GREEDY = 24,    /* sessions that do not read */
    N_REQUESTS = 150, /* replies with a descriptor each, per such session */
};

static struct raw_client greedy[N_GREEDY];
static unsigned n_sent[N_GREEDY]; /* requests that the daemon accepted */

static void setup(void)
{
    struct rlimit limit = {.rlim_cur = LIMIT, .rlim_max = LIMIT};

    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (geteuid() == 0) {
        ck_assert_int_eq(prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE), 0);
        ck_assert_int_eq(prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN), 0);
    }
    job_rig_setup();
}

static void remove_jobs(void)
{
    settle_remove_jobs(&witness);
    job_rig_teardown();
}

static void get_staging(struct raw_client *client)
{
    Cistern__StagingGet get = CISTERN__STAGING_GET__INIT;

    get.bytes = 4096;
    ck_assert_int_eq(raw_call(client, CISTERN__MSG_TYPE__MSG_STAGING, &get.base), CST_OK);
    ck_assert_uint_eq(client->reply.n_fds, 1);
    cst_frame_close_fds(&client->reply);
}

/* Ask for the staging segment repeatedly without reading a reply. Returns the number of accepted
 * requests. */
static unsigned ask_for_much(struct raw_client *client)
{
    struct cst_frame frame = {
        .type = CISTERN__MSG_TYPE__MSG_STAGING, .request = 77, .body_bytes = 2};
    uint8_t bytes[CST_FRAME_HEADER_BYTES + 2];
    unsigned n = 0;

    cst_frame_header(&frame, bytes);
    bytes[CST_FRAME_HEADER_BYTES] = 1 << 3; /* StagingGet.bytes = 1 */
    bytes[CST_FRAME_HEADER_BYTES + 1] = 1;
    for (unsigned misses = 0; n < N_REQUESTS && misses < 20;) {
        if (raw_send(client, bytes, sizeof bytes, NULL, 0, MSG_DONTWAIT)) {
            n++;
        } else {
            (void)raw_stat(&witness); /* the daemon had a turn */
            misses++;
        }
    }
    return n;
}

static void attack(void)
{
    for (unsigned i = 0; i < N_GREEDY; i++) {
        raw_open(&greedy[i], proc.socket);
        get_staging(&greedy[i]);
    }
    for (unsigned i = 0; i < N_GREEDY; i++) {
        n_sent[i] = ask_for_much(&greedy[i]);
        ck_assert_uint_gt(n_sent[i], 32);
    }
}

/* Check that job @name is made, populated and gets leases as usual. */
static void train(const char *name)
{
    struct raw_client client;
    struct raw_job job = {.name = name, .world = 1, .pool_bytes = 1 << 20};
    Cistern__BatchItem item = CISTERN__BATCH_ITEM__INIT, *items = &item;
    Cistern__Batch batch = CISTERN__BATCH__INIT;
    const Cistern__BatchDone *done;

    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    if (!job.committed) {
        ck_assert_int_eq(raw_declare_many(&client, 1, 1000), CST_OK);
        ck_assert_int_eq(raw_status(&client, raw_commit(&client, 1, 1)), CST_OK);
    }
    item.kind = CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT;
    batch.attempt = raw_sync(&client);
    batch.n_items = 1;
    batch.items = &items;
    done = raw_expect(&client, raw_ask(&client, CISTERN__MSG_TYPE__MSG_BATCH, &batch.base),
                      CISTERN__MSG_TYPE__MSG_BATCH_DONE, &cistern__batch_done__descriptor);
    ck_assert_int_eq(done->results[0]->status, CST_OK);
    raw_close(&client);
}

/* Many sessions do not read their replies: other clients' jobs are made and served, no engine dies,
 * and the daemon has descriptors left. Sessions that read before they are disconnected get a reply
 * to each request. */
START_TEST(others_are_served)
{
    unsigned base_restarts = (unsigned)raw_stat(&witness)->engines[0]->restarts;

    train("before");
    attack();
    ck_assert_uint_lt(daemon_proc_fds(proc.pid), LIMIT * 3 / 4);
    train("after");
    ck_assert_uint_eq(raw_stat(&witness)->engines[0]->restarts, base_restarts);
    for (unsigned i = 0; i < N_GREEDY; i++) {
        for (unsigned k = 0; k < n_sent[i] && raw_receive(&greedy[i]); k++) {
            ck_assert_uint_eq(greedy[i].reply.request, 77);
            if (greedy[i].reply.type == CISTERN__MSG_TYPE__MSG_STAGING_PART) {
                ck_assert_uint_eq(greedy[i].reply.n_fds, 1);
                cst_frame_close_fds(&greedy[i].reply);
            } else {
                ck_assert_uint_eq(greedy[i].reply.type, CISTERN__MSG_TYPE__MSG_ERROR);
            }
        }
        raw_close(&greedy[i]);
    }
    ck_assert_int_eq(raw_job_remove(&witness, "before"), CST_OK);
    ck_assert_int_eq(raw_job_remove(&witness, "after"), CST_OK);
}
END_TEST

/* A session with more unread descriptors than allowed is disconnected, although its socket has
 * space for more. */
START_TEST(who_never_reads_is_disconnected)
{
    raw_open(&greedy[0], proc.socket);
    get_staging(&greedy[0]);
    (void)ask_for_much(&greedy[0]);
    while (raw_stat(&witness)->n_sessions > 1) {
        (void)usleep(100000); /* the ten seconds are what is tested */
    }
    ck_assert(daemon_proc_logged(&proc, "does not read its replies"));
    raw_close(&greedy[0]);
}
END_TEST

/* Many sessions, each with fewer unread descriptors than allowed, are disconnected if another one's
 * replies have to wait for these. */
START_TEST(who_keeps_others_waiting_is_disconnected)
{
    attack();
    while (!daemon_proc_logged(&proc, "while ")) {
        (void)usleep(100000); /* the five seconds are what is tested */
    }
    for (unsigned i = 0; i < N_GREEDY; i++) {
        raw_close(&greedy[i]);
    }
}
END_TEST

/* Descriptors in flight to the user of these tests, as the daemon counts them. */
static uint64_t n_in_flight(void)
{
    Cistern__QuotaGet get = CISTERN__QUOTA_GET__INIT;
    const Cistern__QuotaPart *part =
        raw_expect(&witness, raw_ask(&witness, CISTERN__MSG_TYPE__MSG_QUOTA, &get.base),
                   CISTERN__MSG_TYPE__MSG_QUOTA_PART, &cistern__quota_part__descriptor);
    const Cistern__QuotaAccount *account = part->accounts[0];

    for (size_t i = 0; i < account->n_uses; i++) {
        if (strcmp(account->uses[i]->key, "descriptors") == 0) {
            return account->uses[i]->used;
        }
    }
    ck_abort_msg("the quota has no descriptors");
}

/* Descriptors that a client left in its queue when the daemon closed the connection are still in
 * flight and still counted, until the client reads them or closes its end. */
START_TEST(what_the_disconnected_leave_unread_counts)
{
    enum { N = 6, EACH = 32 }; /* together below the daemon's limit, so that all are sent */

    for (unsigned i = 0; i < N; i++) {
        raw_open(&greedy[i], proc.socket);
        get_staging(&greedy[i]);
        (void)ask_for_much(&greedy[i]);
    }
    while (raw_stat(&witness)->n_sessions > 1) {
        (void)usleep(10000); /* they are disconnected after ten seconds without reading */
    }
    /* There is also a descriptor for each staging file that the client keeps; see
     * daemon/budget/remains.
     */
    ck_assert_uint_ge(n_in_flight(), N * EACH);
    for (unsigned i = 0; i < N; i++) {
        raw_close(&greedy[i]);
    }
    while (n_in_flight() > 0) {
        (void)usleep(10000); /* the daemon looks from time to time */
    }
}
END_TEST

/* Begin and end saves of the job "j" @n times without reading an answer, as far as the daemon lets
 * this client. */
static void ask_for_saves(struct raw_client *client, int n)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;
    uint8_t bytes[2 * CST_FRAME_HEADER_BYTES + 8];
    struct cst_frame begin = {.type = CISTERN__MSG_TYPE__MSG_SAVE, .request = 77};
    struct cst_frame end = {.type = CISTERN__MSG_TYPE__MSG_SAVE_END, .request = 78};

    msg.name = (char *)(uintptr_t) "j";
    begin.body_bytes = (uint32_t)cistern__job_name__pack(&msg, bytes + CST_FRAME_HEADER_BYTES);
    cst_frame_header(&begin, bytes);
    cst_frame_header(&end, bytes + CST_FRAME_HEADER_BYTES + begin.body_bytes);
    for (int i = 0; i < n; i++) {
        if (!raw_send(client, bytes, 2 * CST_FRAME_HEADER_BYTES + begin.body_bytes, NULL, 0,
                      MSG_DONTWAIT)) {
            (void)raw_stat(&witness); /* the daemon had a turn */
        }
    }
}

static ino_t inode_of(const struct raw_client *client)
{
    struct stat st;

    ck_assert_uint_eq(client->reply.n_fds, 1);
    ck_assert_int_eq(fstat(client->reply.fds[0], &st), 0);
    return st.st_ino;
}

/* Saves of one step share one description, so that who begins many of them and reads nothing takes
 * no memory. The description of the next step is another one. */
START_TEST(saves_share_a_description)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;
    struct raw_client worker, saver;
    ino_t first = 0;

    msg.name = (char *)(uintptr_t) "j";
    job_rig_commit(&worker, 2);
    (void)raw_sync(&worker);
    raw_open(&greedy[0], proc.socket);
    ask_for_saves(&greedy[0], 200);
    raw_close(&greedy[0]);
    raw_open(&saver, proc.socket);
    for (int i = 0; i < 3; i++) {
        while (raw_call(&saver, CISTERN__MSG_TYPE__MSG_SAVE, &msg.base) == CST_EBUSY) {
            /* The daemon has not seen the end of the other connection yet. */
        }
        ck_assert_uint_eq(saver.reply.type, CISTERN__MSG_TYPE__MSG_SAVE_BEGUN);
        ck_assert(first == 0 || inode_of(&saver) == first);
        first = inode_of(&saver);
        cst_frame_close_fds(&saver.reply);
        ck_assert_int_eq(raw_call(&saver, CISTERN__MSG_TYPE__MSG_SAVE_END, NULL), CST_OK);
    }
    raw_close(&saver);
    raw_close(&worker);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("unread");
    TCase *tc = suite_case(suite, "unread", setup, job_rig_teardown);

    tcase_add_test(tc, others_are_served);
    tcase_add_test(tc, who_never_reads_is_disconnected);
    tcase_add_test(tc, what_the_disconnected_leave_unread_counts);
    tcase_add_test(tc, who_keeps_others_waiting_is_disconnected);
    tc = suite_case(suite, "saves", job_rig_setup, remove_jobs);
    tcase_add_test(tc, saves_share_a_description);
    return suite_run(suite);
}
