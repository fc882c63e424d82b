/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/set.h against arrays of bool: members on both sides of each word's end. */
#include "proto/set.h"
#include "tests/lib/suite.h"

#include <check.h>

enum { LEAST = 150 }; /* Two words and a part of one. */

static uint64_t random_state;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % n;
}

/* A set and what it should contain. */
struct pair {
    struct cst_set set;
    bool has[CST_SET_MAX];
};

static void fill(struct pair *pair, uint32_t n, uint32_t end)
{
    *pair = (struct pair){.has = {false}};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t member = below(end);

        cst_set_add(&pair->set, member);
        pair->has[member] = true;
    }
    for (uint32_t i = 0; i < n / 2; i++) {
        uint32_t member = below(end);

        cst_set_drop(&pair->set, member);
        pair->has[member] = false;
    }
}

/* Compare everything that is said of one set. */
static void compare(const struct pair *pair)
{
    const struct cst_set *set = &pair->set;
    uint32_t n = 0, first = CST_SET_MAX, last = CST_SET_MAX, seen = 0;

    for (uint32_t m = 0; m < CST_SET_MAX; m++) {
        ck_assert_int_eq(cst_set_has(set, m), pair->has[m]);
        n += pair->has[m];
        first = pair->has[m] && first == CST_SET_MAX ? m : first;
        last = pair->has[m] ? m : last;
    }
    CST_SET_EACH (m, set) {
        ck_assert(pair->has[m]);
        ck_assert_uint_eq(cst_set_nth(set, seen), m);
        ck_assert_uint_eq(cst_set_count_below(set, m), seen);
        seen++;
    }
    ck_assert_uint_eq(cst_set_nth(set, n), CST_SET_MAX);
    ck_assert_uint_eq(cst_set_count_below(set, CST_SET_MAX), n);
    ck_assert_uint_eq(seen, n);
    ck_assert_uint_eq(cst_set_count(set), n);
    ck_assert_uint_eq(cst_set_first(set), first);
    ck_assert_uint_eq(cst_set_last(set), last);
    ck_assert_int_eq(cst_set_none(set), n == 0);
    ck_assert(!cst_set_has(set, CST_SET_MAX) && !cst_set_has(set, UINT32_MAX));
    ck_assert_uint_eq(cst_set_next(set, CST_SET_MAX), CST_SET_MAX);
}

START_TEST(members_are_those_that_were_added)
{
    struct pair pair;

    random_state = (uint64_t)_i + 1;
    fill(&pair, below(200), _i % 2 == 0 ? CST_SET_MAX : LEAST);
    compare(&pair);
}
END_TEST

START_TEST(two_sets_are_joined_and_compared)
{
    struct pair a, b, joined, common, rest;

    random_state = (uint64_t)_i + 1;
    fill(&a, below(300), LEAST + below(200));
    fill(&b, below(300), LEAST + below(200));
    joined.set = cst_set_union(a.set, b.set);
    common.set = cst_set_intersect(a.set, b.set);
    rest.set = cst_set_minus(a.set, b.set);
    for (uint32_t m = 0; m < CST_SET_MAX; m++) {
        joined.has[m] = a.has[m] || b.has[m];
        common.has[m] = a.has[m] && b.has[m];
        rest.has[m] = a.has[m] && !b.has[m];
    }
    compare(&joined);
    compare(&common);
    compare(&rest);
    ck_assert(cst_set_equal(&a.set, &a.set));
    ck_assert_int_eq(cst_set_equal(&a.set, &b.set), memcmp(a.has, b.has, sizeof a.has) == 0);
    ck_assert_int_eq(cst_set_meet(&a.set, &b.set), !cst_set_none(&common.set));
    ck_assert_int_eq(cst_set_within(&a.set, &b.set), cst_set_none(&rest.set));
    ck_assert(cst_set_within(&common.set, &a.set) && cst_set_within(&a.set, &joined.set));
}
END_TEST

START_TEST(a_member_in_any_word_counts)
{
    for (uint32_t m = 0; m < CST_SET_MAX; m++) {
        struct pair one = {.set = cst_set_of(m), .has = {false}};
        struct cst_set up_to = cst_set_range(0, m + 1), from = cst_set_range(m, CST_SET_MAX);
        struct cst_set common = cst_set_intersect(up_to, from);

        one.has[m] = true;
        compare(&one);
        ck_assert_uint_eq(cst_set_count(&up_to), m + 1);
        ck_assert_uint_eq(cst_set_count(&from), CST_SET_MAX - m);
        ck_assert(cst_set_equal(&common, &one.set) && cst_set_meet(&up_to, &one.set));
        ck_assert(!cst_set_within(&from, &one.set) || m == CST_SET_MAX - 1);
    }
}
END_TEST

START_TEST(ranges_end_at_the_capacity)
{
    struct cst_set empty = cst_set_range(5, 5), all_but_3 = cst_set_range(3, UINT32_MAX);

    ck_assert(cst_set_none(&empty) && cst_set_first(&empty) == CST_SET_MAX);
    ck_assert_uint_eq(cst_set_first(&all_but_3), 3);
    ck_assert_uint_eq(cst_set_count(&all_but_3), CST_SET_MAX - 3);
}
END_TEST

START_TEST(a_member_may_be_dropped_in_a_walk)
{
    struct cst_set set = cst_set_range(60, 200);
    uint32_t next = 60;

    CST_SET_EACH (m, &set) {
        ck_assert_uint_eq(m, next++);
        cst_set_drop(&set, m);
    }
    ck_assert_uint_eq(next, 200);
    ck_assert(cst_set_none(&set));
}
END_TEST

/* Stored sets take one word for each 64 members, and do not touch their neighbours. */
START_TEST(many_sets_are_stored)
{
    enum { N = 40 };
    static const uint32_t ends[] = {1, 64, 65, 300, CST_SET_MAX};
    const uint32_t end = ends[_i];
    struct cst_sets sets;
    struct pair pairs[N];

    random_state = (uint64_t)_i + 1;
    ck_assert_int_eq(cst_sets_open(&sets, N, end), CST_OK);
    ck_assert_uint_eq(sets.n_words, (end + 63) / 64);
    for (uint32_t i = 0; i < N; i++) {
        pairs[i] = (struct pair){.has = {false}};
    }
    for (uint32_t turn = 0; turn < 4000; turn++) {
        uint32_t i = below(N), m = below(end);

        switch (below(20)) {
        case 0:
            fill(&pairs[i], below(100), end);
            cst_sets_put(&sets, i, &pairs[i].set);
            break;
        case 1:
            pairs[i] = (struct pair){.has = {false}};
            cst_sets_clear(&sets, i, 1);
            break;
        case 2:
        case 3:
            pairs[i].has[m] = false;
            cst_sets_drop(&sets, i, m);
            break;
        default:
            pairs[i].has[m] = true;
            cst_sets_add(&sets, i, m);
            break;
        }
        ck_assert_int_eq(cst_sets_has(&sets, i, m), pairs[i].has[m]);
    }
    for (uint32_t i = 0; i < N; i++) {
        pairs[i].set = cst_sets_get(&sets, i);
        compare(&pairs[i]);
    }
    cst_sets_close(&sets);
    cst_sets_close(&sets); /* Nothing is left to free. */
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("set");
    TCase *c = suite_case(s, "set", NULL, NULL);

    tcase_add_loop_test(c, members_are_those_that_were_added, 0, 40);
    tcase_add_loop_test(c, two_sets_are_joined_and_compared, 0, 60);
    tcase_add_test(c, a_member_in_any_word_counts);
    tcase_add_test(c, ranges_end_at_the_capacity);
    tcase_add_test(c, a_member_may_be_dropped_in_a_walk);
    tcase_add_loop_test(c, many_sets_are_stored, 0, 5);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
