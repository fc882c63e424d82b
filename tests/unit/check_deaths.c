/* SPDX-License-Identifier: Apache-2.0 */
/* When an engine that dies again and again is given up. */
#include "daemon/deaths.h"
#include "tests/lib/suite.h"

#include <check.h>

#define SECOND UINT64_C(1000000000)

/* How many deaths @seconds apart it takes to give up, 0: it is not done. */
static unsigned count(bool accelerator, unsigned seconds)
{
    struct cst_deaths deaths = {0};

    for (unsigned i = 1; i <= 100; i++) {
        if (cst_deaths_add(&deaths, accelerator, (100 + i * (uint64_t)seconds) * SECOND)) {
            return i;
        }
    }
    return 0;
}

/* Six at once are enough for either. */
START_TEST(at_once)
{
    ck_assert_uint_eq(count(false, 0), CST_DEATHS_MAX + 1);
    ck_assert_uint_eq(count(true, 0), CST_DEATHS_MAX + 1);
}
END_TEST

/* A node's engine with time in between goes on; an accelerator's that does nothing in between does
 * not, whether it takes 3 seconds to die or a minute until it is killed. */
START_TEST(slowly)
{
    ck_assert_uint_eq(count(false, 2), CST_DEATHS_MAX + 1);
    ck_assert_uint_eq(count(false, 3), 0);
    ck_assert_uint_eq(count(true, 3), CST_DEATHS_MAX + 1);
    ck_assert_uint_eq(count(true, 61), CST_DEATHS_MAX + 1);
}
END_TEST

/* What it has done in between ends the row. */
START_TEST(something_done)
{
    struct cst_deaths deaths = {0};

    for (unsigned i = 0; i < 4 * CST_DEATHS_MAX; i++) {
        if (i % CST_DEATHS_MAX == 0) {
            deaths = (struct cst_deaths){0};
        }
        ck_assert(!cst_deaths_add(&deaths, _i == 1, (100 + i) * SECOND));
    }
    ck_assert(cst_deaths_add(&deaths, _i == 1, (100 + 4 * CST_DEATHS_MAX) * SECOND));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("deaths");
    TCase *tcase = suite_case(suite, "deaths", NULL, NULL);

    tcase_add_test(tcase, at_once);
    tcase_add_test(tcase, slowly);
    tcase_add_loop_test(tcase, something_done, 0, 2);
    return suite_run(suite);
}
