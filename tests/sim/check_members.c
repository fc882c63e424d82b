/* SPDX-License-Identifier: Apache-2.0 */
/* Random faults of the machines of a job (members.h). CST_TEST_MEMBERS is the number of seeds
 * instead of a thousand; CST_TEST_SEED the first one. `CK_RUN_CASE=one` with CST_TEST_SEED
 * prints what happens with that seed. */
#include "tests/lib/suite.h"
#include "tests/sim/members.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

bool __real_cst_epoch_quorum(const struct cst_epoch *epoch, const struct cst_set *answered,
                             const struct cst_set *down);
bool __wrap_cst_epoch_quorum(const struct cst_epoch *epoch, const struct cst_set *answered,
                             const struct cst_set *down);

static enum members_rule broken;

/* The rule of offload/machines/epoch.c, unless it is to be broken. */
bool __wrap_cst_epoch_quorum(const struct cst_epoch *epoch, const struct cst_set *answered,
                             const struct cst_set *down)
{
    struct cst_set with = cst_set_intersect(epoch->members, *answered);

    return __real_cst_epoch_quorum(epoch, answered, down) ||
           (broken == MEMBERS_HALF_QUORUM &&
            2 * cst_set_count(&with) == cst_set_count(&epoch->members));
}

static bool run(uint64_t seed, enum members_rule rule, bool verbose, struct members_totals *totals,
                char *failure)
{
    broken = rule;
    return members_run(seed, rule, verbose, totals, failure);
}

static uint64_t n_seeds(void)
{
    const char *text = getenv("CST_TEST_MEMBERS");

    return text != NULL ? strtoull(text, NULL, 10) : suite_is_sparse() ? 100 : 1000;
}

/* Two parts never go on, no commit is lost, and an epoch holds after the last fault. */
START_TEST(random_faults)
{
    struct members_totals totals = {0};
    uint64_t first = suite_seed(), n = n_seeds();
    char failure[512];

    for (uint64_t i = 0; i < n; i++) {
        suite_must(run(first + i, MEMBERS_SOUND, false, &totals, failure), "%s", failure);
    }
    printf("members: %" PRIu64 " runs, %" PRIu64 " turns, %" PRIu64 " epochs, %" PRIu64
           " steps, %" PRIu64 " deaths, %" PRIu64 " records lost, %" PRIu64 " stops, %" PRIu64
           " cuts, %" PRIu64 " adds, %" PRIu64 " drops; %" PRIu64 " machines were said to be down"
           " that were not, %" PRIu64 " times more than half; an epoch held %.1f s after the last"
           " fault at the latest\n",
           totals.runs, totals.turns, totals.epochs, totals.steps, totals.deaths,
           totals.lost_records, totals.stops, totals.cuts, totals.adds, totals.words, totals.lies,
           totals.vouched, (double)totals.longest_ns / 1e9);
    if (n >= 1000) {
        ck_assert_uint_gt(totals.epochs, n);
        ck_assert_uint_gt(totals.steps, n);
        ck_assert_uint_gt(totals.lost_records, 0);
        ck_assert_uint_gt(totals.lies, 0);
        ck_assert_uint_gt(totals.vouched, 0);
    }
}
END_TEST

/* A broken rule is found: the checks can fail. */
START_TEST(broken_rules)
{
    enum members_rule rule = (enum members_rule)_i;
    struct members_totals totals = {0};
    uint64_t seed = 1;
    char failure[512];

    while (seed < 3000 && run(seed, rule, false, &totals, failure)) {
        seed++;
    }
    ck_assert_msg(seed < 3000, "no check fails in %" PRIu64 " runs with rule %d broken", seed, _i);
    printf("members: rule %d broken: %s\n", _i, failure);
}
END_TEST

START_TEST(one_seed)
{
    struct members_totals totals = {0};
    char failure[512];

    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* A failed test ends without a flush. */
    suite_must(run(suite_seed(), MEMBERS_SOUND, true, &totals, failure), "%s", failure);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("members");
    TCase *c = suite_case(s, "faults", NULL, NULL);
    const char *only = getenv("CK_RUN_CASE");

    tcase_set_timeout(c, 3600);
    tcase_add_test(c, random_faults);
    c = suite_case(s, "broken", NULL, NULL);
    suite_add_loop(c, broken_rules, MEMBERS_HALF_QUORUM, MEMBERS_DEAF_CORE + 1);
    if (only != NULL && strcmp(only, "one") == 0) {
        c = suite_case(s, "one", NULL, NULL);
        tcase_add_test(c, one_seed);
    }
    return s;
}

int main(void)
{
    return suite_run(suite());
}
