/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/budget/quota and daemon/budget/quota_rules: the limit that applies to a user, the
 * message of a refusal, groups, and limits that change while memory is in use. */
#include "daemon/budget/quota.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ALICE = 70001, BOB = 70002, STAFF = 80001, USERS = 80002 };

static struct cstd_quota_rules rules;
static struct cstd_quota quota;
static struct cstd_quota_account *alice, *bob;
static struct cst_err err;
static unsigned pool; /* the resource of pools in host memory */

static void set(const char *section, const char *key, const char *value)
{
    ck_assert_msg(cstd_quota_rules_set(&rules, section, key, value, &err) == CST_OK, "%s",
                  err.text);
}

static void setup(void)
{
    memset(&rules, 0, sizeof rules);
    err = (struct cst_err){0};
    alice = bob = NULL;
}

static struct cstd_quota_account *account_of(uid_t uid, gid_t gid)
{
    struct cstd_quota_account *account = NULL;

    ck_assert_int_eq(cstd_quota_open(&quota, uid, &gid, 1, &account, &err), CST_OK);
    return account;
}

/* A daemon with 1000 bytes of host memory, 800 bytes for pools, 10 jobs, and a ttl of one day. */
static void start(void)
{
    cstd_quota_init(&quota, &rules, NULL);
    cstd_quota_set_total(&quota, CSTD_QUOTA_HOST, 1000);
    cstd_quota_set_total(&quota, CSTD_QUOTA_JOBS, 10);
    cstd_quota_set_total(&quota, CSTD_QUOTA_TTL, 86400);
    pool = cstd_quota_add_pool(&quota, "pools of the host device", 800);
    alice = account_of(ALICE, USERS);
    bob = account_of(BOB, USERS);
}

static void teardown(void)
{
    cstd_quota_unref(alice);
    cstd_quota_unref(bob);
    ck_assert(LIST_EMPTY(&quota.accounts));
    cstd_quota_close(&quota);
}

static void assert_refused(struct cstd_quota_account *account, unsigned resource, uint64_t amount,
                           const char *words)
{
    uint64_t used = account->used[resource];

    err = (struct cst_err){0};
    ck_assert_int_ne(cstd_quota_take(account, resource, amount, "job 'j'", &err), CST_OK);
    ck_assert_str_eq(err.text, words);
    ck_assert_uint_eq(account->used[resource], used);
}

static void take(struct cstd_quota_account *account, unsigned resource, uint64_t amount)
{
    ck_assert_msg(cstd_quota_take(account, resource, amount, "job 'j'", &err) == CST_OK, "%s",
                  err.text);
}

/* -- choice of the limit -------------------------------------------------------------------- */

/* Without a limit in the configuration a user may hold half of everything, to the byte. The use of
 * other users does not count. */
START_TEST(half_is_the_default)
{
    start();
    take(alice, CSTD_QUOTA_HOST, 500);
    assert_refused(alice, CSTD_QUOTA_HOST, 1,
                   "uid 70001 has 500 B of 500 B of host memory (host in [quota], by default 50%): "
                   "job 'j' wants 1 bytes more");
    take(bob, CSTD_QUOTA_HOST, 500);
    take(alice, pool, 400);
    assert_refused(alice, pool, 10,
                   "uid 70001 has 400 B of 400 B of pools of the host device (pool in [quota], by "
                   "default 50%): job 'j' wants 10 bytes more");
    ck_assert_int_eq(err.status, CST_EBUDGET);
    cstd_quota_give(alice, pool, 400);
    cstd_quota_give(alice, CSTD_QUOTA_HOST, 500);
    ck_assert_uint_eq(cstd_quota_left(alice, CSTD_QUOTA_HOST), 500);
    cstd_quota_give(bob, CSTD_QUOTA_HOST, 500);
}
END_TEST

/* All users together may have no more files than the daemon, whoever they are. */
START_TEST(files_of_all)
{
    struct cstd_quota_account *root;

    set("quota", "files", "80");
    start();
    cstd_quota_set_total(&quota, CSTD_QUOTA_FILES, 100);
    root = account_of(0, 0);
    take(alice, CSTD_QUOTA_FILES, 80);
    assert_refused(alice, CSTD_QUOTA_FILES, 1,
                   "uid 70001 has 80 of 80 open files (files in [quota]): job 'j' wants 1 more");
    assert_refused(bob, CSTD_QUOTA_FILES, 21,
                   "all users have 80 of 100 open files (LimitNOFILE of the daemon): job 'j' wants "
                   "21 more");
    ck_assert_int_eq(err.status, CST_EBUDGET);
    take(bob, CSTD_QUOTA_FILES, 20);
    assert_refused(
        root, CSTD_QUOTA_FILES, 1,
        "all users have 100 of 100 open files (LimitNOFILE of the daemon): job 'j' wants "
        "1 more");
    cstd_quota_give(alice, CSTD_QUOTA_FILES, 80);
    cstd_quota_give(bob, CSTD_QUOTA_FILES, 20);
    cstd_quota_unref(root);
}
END_TEST

/* A limit in percent changes with what the daemon has: a user who holds more keeps it. */
START_TEST(a_part_follows_the_whole)
{
    start();
    take(alice, pool, 300);
    cstd_quota_set_total(&quota, pool, 400);
    assert_refused(alice, pool, 1,
                   "uid 70001 has 300 B of 200 B of pools of the host device (pool in [quota], by "
                   "default 50%): job 'j' wants 1 bytes more");
    cstd_quota_set_total(&quota, pool, 700);
    take(alice, pool, 50);
    cstd_quota_give(alice, pool, 350);
}
END_TEST

/* The default does not apply to users who could raise it (root and the daemon's user), nor to the
 * only user who may connect. The limits in [quota] apply to all users. */
START_TEST(the_default_is_for_others)
{
    const uid_t sole = ALICE;
    struct cstd_quota_account *root;

    start();
    root = account_of(0, 0);
    ck_assert_uint_eq(cstd_quota_limit(root, CSTD_QUOTA_HOST), CSTD_QUOTA_NONE);
    cstd_quota_unref(root);
    root = account_of(geteuid(), 0);
    ck_assert_uint_eq(cstd_quota_limit(root, CSTD_QUOTA_HOST), CSTD_QUOTA_NONE);
    cstd_quota_unref(root);
    ck_assert_uint_eq(cstd_quota_limit(alice, CSTD_QUOTA_HOST), 500);
    teardown();

    cstd_quota_init(&quota, &rules, &sole);
    alice = account_of(ALICE, USERS);
    bob = account_of(BOB, USERS);
    ck_assert_uint_eq(cstd_quota_limit(alice, CSTD_QUOTA_HOST), CSTD_QUOTA_NONE);
    ck_assert_uint_eq(cstd_quota_limit(bob, CSTD_QUOTA_HOST), 0);
    set("quota", "host", "7");
    cstd_quota_reload(&quota, &rules);
    ck_assert_uint_eq(cstd_quota_limit(alice, CSTD_QUOTA_HOST), 7);
}
END_TEST

/* A user's own section overrides [quota], key by key. */
START_TEST(a_users_own_section_wins)
{
    set("quota", "jobs", "2");
    set("quota", "host", "10%");
    set("quota uid:70001", "jobs", "30%");
    start();
    ck_assert_uint_eq(cstd_quota_limit(alice, CSTD_QUOTA_JOBS), 3);
    ck_assert_uint_eq(cstd_quota_limit(alice, CSTD_QUOTA_HOST), 100);
    ck_assert_uint_eq(cstd_quota_limit(bob, CSTD_QUOTA_JOBS), 2);
    take(alice, CSTD_QUOTA_JOBS, 3);
    assert_refused(alice, CSTD_QUOTA_JOBS, 1,
                   "uid 70001 has 3 of 3 jobs (jobs in [quota uid:70001]): job 'j' wants 1 more");
    take(bob, CSTD_QUOTA_JOBS, 2);
    assert_refused(bob, CSTD_QUOTA_JOBS, 1,
                   "uid 70002 has 2 of 2 jobs (jobs in [quota]): job 'j' wants 1 more");
    cstd_quota_give(alice, CSTD_QUOTA_JOBS, 3);
    cstd_quota_give(bob, CSTD_QUOTA_JOBS, 2);
}
END_TEST

/* A percentage is never rounded to nothing, and "none" is no limit. */
START_TEST(values)
{
    set("quota", "jobs", "1%");
    set("quota", "host", "none");
    set("quota uid:70002", "host", "0");
    set("quota uid:70002", "pool", "100%");
    set("quota uid:70002", "requests", "12.5%");
    set("quota uid:70002", "searches", "0.3%");
    set("quota uid:70002", "descriptors", "1%");
    start();
    cstd_quota_set_total(&quota, CSTD_QUOTA_REQUESTS, 1000);
    cstd_quota_set_total(&quota, CSTD_QUOTA_SEARCHES, 1000);
    cstd_quota_set_total(&quota, CSTD_QUOTA_DESCRIPTORS, 20);
    ck_assert_uint_eq(cstd_quota_limit(bob, CSTD_QUOTA_REQUESTS), 125);
    ck_assert_uint_eq(cstd_quota_limit(bob, CSTD_QUOTA_SEARCHES), 3);
    /* As many as one reply needs. */
    ck_assert_uint_eq(cstd_quota_limit(bob, CSTD_QUOTA_DESCRIPTORS), 16);
    ck_assert_uint_eq(cstd_quota_limit(alice, CSTD_QUOTA_DESCRIPTORS), 16);
    ck_assert_uint_eq(cstd_quota_limit(alice, CSTD_QUOTA_JOBS), 1);
    ck_assert_uint_eq(cstd_quota_left(alice, CSTD_QUOTA_HOST), CSTD_QUOTA_NONE);
    take(alice, CSTD_QUOTA_HOST, UINT64_C(1) << 60);
    cstd_quota_give(alice, CSTD_QUOTA_HOST, UINT64_C(1) << 60);
    ck_assert_uint_eq(cstd_quota_limit(bob, pool), 800);
    ck_assert_int_ne(cstd_quota_take(bob, CSTD_QUOTA_HOST, 1, "x", &err), CST_OK);
    ck_assert_int_eq(cstd_quota_take(bob, CSTD_QUOTA_HOST, 0, "x", &err), CST_OK);
    ck_assert_int_eq(cstd_quota_take(NULL, CSTD_QUOTA_HOST, UINT64_MAX, "x", &err), CST_OK);
    cstd_quota_give(NULL, CSTD_QUOTA_HOST, UINT64_MAX);
}
END_TEST

/* The longest ttl is not a resource that is charged. Its default is seven days, or the ttl that the
 * daemon gives to jobs that ask for none. */
START_TEST(longest_ttl)
{
    start();
    ck_assert_int_eq(cstd_quota_check(alice, CSTD_QUOTA_TTL, 604800, "job 'j'", &err), CST_OK);
    ck_assert_int_eq(cstd_quota_check(alice, CSTD_QUOTA_TTL, 604801, "job 'j'", &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "uid 70001 may have 604800 seconds to live without a worker (ttl in "
                               "[quota], by default): job 'j' wants 604801");
    cstd_quota_set_total(&quota, CSTD_QUOTA_TTL, 864000);
    ck_assert_uint_eq(cstd_quota_limit(alice, CSTD_QUOTA_TTL), 864000);
    set("quota", "ttl", "2h");
    cstd_quota_reload(&quota, &rules);
    ck_assert_uint_eq(cstd_quota_limit(alice, CSTD_QUOTA_TTL), 7200);
}
END_TEST

/* -- groups --------------------------------------------------------------------------------- */

/* Members of a limited group share its limit, and each also has a limit of his own. */
START_TEST(a_group_is_limited_together)
{
    set("quota gid:80002", "host", "600");
    start();
    take(alice, CSTD_QUOTA_HOST, 400);
    ck_assert_uint_eq(cstd_quota_left(bob, CSTD_QUOTA_HOST), 200);
    take(bob, CSTD_QUOTA_HOST, 200);
    assert_refused(bob, CSTD_QUOTA_HOST, 1,
                   "gid 80002 has 600 B of 600 B of host memory (host in [quota gid:80002]): "
                   "job 'j' wants 1 bytes more");
    cstd_quota_give(alice, CSTD_QUOTA_HOST, 400);
    ck_assert_uint_eq(cstd_quota_left(bob, CSTD_QUOTA_HOST), 300);
    cstd_quota_give(bob, CSTD_QUOTA_HOST, 200);
}
END_TEST

/* A user who was seen in a group stays in it with everything that he holds, whatever group he
 * connects with next. */
START_TEST(nobody_leaves_a_group)
{
    const gid_t groups[] = {USERS, STAFF};
    struct cstd_quota_account *again;

    set("quota gid:80001", "jobs", "4");
    start();
    take(alice, CSTD_QUOTA_JOBS, 3);
    ck_assert_uint_eq(quota.group_used[0][CSTD_QUOTA_JOBS], 0);
    ck_assert_int_eq(cstd_quota_open(&quota, ALICE, groups, 2, &again, &err), CST_OK);
    ck_assert_ptr_eq(again, alice);
    cstd_quota_unref(again);
    ck_assert_uint_eq(quota.group_used[0][CSTD_QUOTA_JOBS], 3);
    again = account_of(ALICE, USERS);
    cstd_quota_unref(again);
    take(alice, CSTD_QUOTA_JOBS, 1);
    ck_assert_uint_eq(cstd_quota_left(alice, CSTD_QUOTA_JOBS), 0);
    ck_assert_uint_eq(cstd_quota_left(bob, CSTD_QUOTA_JOBS), 5);
    cstd_quota_give(alice, CSTD_QUOTA_JOBS, 4);
    ck_assert_uint_eq(quota.group_used[0][CSTD_QUOTA_JOBS], 0);
}
END_TEST

/* -- changed limits ------------------------------------------------------------------------- */

/* New limits count what is already held. What exceeds them stays, and nothing can be added. */
START_TEST(reload_counts_what_is_held)
{
    start();
    take(alice, CSTD_QUOTA_HOST, 500);
    set("quota gid:80002", "host", "100");
    set("quota", "host", "300");
    cstd_quota_reload(&quota, &rules);
    ck_assert_uint_eq(cstd_quota_left(alice, CSTD_QUOTA_HOST), 0);
    ck_assert_uint_eq(cstd_quota_left(bob, CSTD_QUOTA_HOST), 0);
    ck_assert_uint_eq(alice->used[CSTD_QUOTA_HOST], 500);
    memset(&rules, 0, sizeof rules);
    set("quota", "host", "none");
    cstd_quota_reload(&quota, &rules);
    ck_assert_uint_eq(cstd_quota_left(bob, CSTD_QUOTA_HOST), CSTD_QUOTA_NONE);
    cstd_quota_give(alice, CSTD_QUOTA_HOST, 500);
}
END_TEST

/* -- the file ------------------------------------------------------------------------------- */

static void assert_not_a_rule(const char *section, const char *key, const char *value,
                              const char *words)
{
    err = (struct cst_err){0};
    ck_assert_int_eq(cstd_quota_rules_set(&rules, section, key, value, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, words) != NULL, "'%s' does not say '%s'", err.text, words);
}

START_TEST(rules_that_are_none)
{
    char section[40];

    start();
    ck_assert(cstd_quota_rules_is_section("quota"));
    ck_assert(cstd_quota_rules_is_section("quota uid:1"));
    ck_assert(!cstd_quota_rules_is_section("quotas"));
    ck_assert(!cstd_quota_rules_is_section("job"));
    assert_not_a_rule("quota", "disk", "10%", "whose number the daemon does not have");
    assert_not_a_rule("quota", "memory", "1", "known: host, pool, disk, jobs, sessions, ");
    assert_not_a_rule("quota", "jobs", "-1", "jobs: '-1' is not a limit for jobs");
    assert_not_a_rule("quota", "jobs", "101%", "0% to 100%");
    assert_not_a_rule("quota", "ttl", "50%", "s, m, h or d");
    assert_not_a_rule("quota", "descriptors", "15", "descriptors: '15' is too small: at least 16");
    assert_not_a_rule("quota", "descriptors", "0", "too small: at least 16");
    assert_not_a_rule("quota uid:x", "jobs", "1",
                      "section [quota uid:x]: 'uid:x' names no user or group");
    assert_not_a_rule("quota user:no-such-user", "jobs", "1", "there is no user 'no-such-user'");
    assert_not_a_rule("quota group:no-such-group", "jobs", "1",
                      "there is no group 'no-such-group'");
    assert_not_a_rule("quota ", "jobs", "1", "names no user or group");
    set("quota", "jobs", "1");
    assert_not_a_rule("quota", "jobs", "1", "set twice in [quota]");
    set("quota user:root", "jobs", "1");
    assert_not_a_rule("quota uid:0", "jobs", "1", "set twice in [quota uid:0]");
    for (unsigned i = 1; i < CSTD_QUOTA_MAX_RULES; i++) {
        (void)snprintf(section, sizeof section, "quota uid:%u", i);
        set(section, "jobs", "1");
    }
    assert_not_a_rule("quota gid:9", "jobs", "1", "more than 64 sections");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("quota");
    TCase *tc = suite_case(suite, "quota", setup, teardown);

    tcase_add_test(tc, half_is_the_default);
    tcase_add_test(tc, files_of_all);
    tcase_add_test(tc, a_part_follows_the_whole);
    tcase_add_test(tc, the_default_is_for_others);
    tcase_add_test(tc, a_users_own_section_wins);
    tcase_add_test(tc, values);
    tcase_add_test(tc, longest_ttl);
    tcase_add_test(tc, a_group_is_limited_together);
    tcase_add_test(tc, nobody_leaves_a_group);
    tcase_add_test(tc, reload_counts_what_is_held);
    tcase_add_test(tc, rules_that_are_none);
    return suite_run(suite);
}
