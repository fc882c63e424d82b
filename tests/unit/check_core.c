/* The core by hand, a rule at a time. What happens when everything happens at once is tests/sim's.
 */
#include "tests/unit/core_rig.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

/* A step of two ranks: weights come up, gradients are reduced in rank order, the norm is taken, the
 * commit answers everybody, updates follow in the order of the next forward. */
START_TEST(whole_step)
{
    struct cst_core_stats stats;

    rig_open(&rig, 4, 2, 3, 1);
    rig_start(&rig, 2);
    for (int i = 0; i < 3; i++) {
        rig_whole_step(&rig, 4, 2);
    }
    cst_core_stats(rig.core, &stats);
    ck_assert_uint_eq(stats.step, 3);
    ck_assert_uint_eq(stats.adam_step, 3);
    ck_assert_uint_eq(stats.commands_in_flight, 0);
    ck_assert_double_eq(stats.last_loss, 1.5);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("core");
    TCase *tc = tcase_create("core");

    tcase_add_checked_fixture(tc, NULL, teardown);
    tcase_add_test(tc, whole_step);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    SRunner *runner = srunner_create(suite());
    int failed;

    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
