/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/engine/deaths: when an engine that dies repeatedly is given up. */
#include "daemon/engine/deaths.h"
#include "tests/lib/suite.h"

#include <check.h>

#define SECOND UINT64_C(1000000000)

/* Number of deaths, @seconds apart, after which the engine is given up. 0: never. */
static unsigned count(bool accelerator, unsigned seconds)
{
    struct cstd_deaths deaths = {0};

    for (unsigned i = 1; i <= 100; i++) {
        if (cstd_deaths_add(&deaths, accelerator, (100 + i * (uint64_t)seconds) * SECOND)) {
            return i;
        }
    }
    return 0;
}

/* Six deaths at once are enough for any engine. */
START_TEST(at_once)
{
    ck_assert_uint_eq(count(false, 0), CSTD_DEATHS_MAX + 1);
    ck_assert_uint_eq(count(true, 0), CSTD_DEATHS_MAX + 1);
}
END_TEST

/* The engine of a node is not given up if time passes between its deaths. The engine of an
 * accelerator that does no work between them is given up, whether it takes 3 seconds to die or is
 * killed after a minute. */
START_TEST(slowly)
{
    ck_assert_uint_eq(count(false, 2), CSTD_DEATHS_MAX + 1);
    ck_assert_uint_eq(count(false, 3), 0);
    ck_assert_uint_eq(count(true, 3), CSTD_DEATHS_MAX + 1);
    ck_assert_uint_eq(count(true, 61), CSTD_DEATHS_MAX + 1);
}
END_TEST

/* Work that was done between two deaths resets the count. */
START_TEST(something_done)
{
    struct cstd_deaths deaths = {0};

    for (unsigned i = 0; i < 4 * CSTD_DEATHS_MAX; i++) {
        if (i % CSTD_DEATHS_MAX == 0) {
            deaths = (struct cstd_deaths){0};
        }
        ck_assert(!cstd_deaths_add(&deaths, _i == 1, (100 + i) * SECOND));
    }
    ck_assert(cstd_deaths_add(&deaths, _i == 1, (100 + 4 * CSTD_DEATHS_MAX) * SECOND));
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
