/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of two users of one daemon: neither can see anything of the other, and a user who is at all
 * limits leaves the other able to work. check_user_limits tests the limits one at a time. */
#include "tests/lib/suite.h"
#include "tests/lib/train_check.h"
#include "tests/lib/user.h"
#include "tests/lib/user_rig.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* The first account that @client may see; @n receives the number of accounts. */
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

    user_rig_start("");
    ck_assert_int_eq(user_rig_commit(&alice, USER_ALICE, "hers", 8192, 0), CST_OK);
    user_rig_open(&bob, USER_BOB);
    ck_assert_uint_eq(user_rig_list(&alice)->n_jobs, 1);
    ck_assert_uint_eq(user_rig_list(&bob)->n_jobs, 0);
    ck_assert_uint_eq(user_rig_list(&witness)->n_jobs, 1);
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
    ck_assert_uint_eq(user_rig_list(&witness)->n_jobs, 2);
    raw_close(&alice);
    raw_close(&bob);
    user_rig_stop();
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

    user_rig_start("");
    for (int i = 0; i < 4; i++) {
        uid_t uid = i % 2 == 0 ? USER_ALICE : USER_BOB;

        ck_assert_msg(user_rig_commit(&client, uid, "j", 262144, 0) == CST_OK, "%s",
                      client.err.text);
        ck_assert_uint_eq(fill_pool(&client), UINT64_MAX);
        raw_close(&client);
        ck_assert_int_eq(user_rig_remove(&witness, "j", uid), CST_OK);
    }
    user_rig_stop();
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

    user_rig_start_sized("", "--host-memory=64M", "--pool-memory=16M");
    for (;; n++) {
        char name[16];

        if (user_rig_greet(&clients[n], USER_ALICE) != CST_OK) {
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
    user_rig_stop();
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
    tcase_add_test(tc, one_at_all_limits_leaves_the_other_able);
    return suite_run(suite);
}
