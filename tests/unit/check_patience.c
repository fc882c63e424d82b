/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the time limits of tests, which have one common multiplier. */
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <poll.h>
#include <stdlib.h>

/* A limit is multiplied by CK_TIMEOUT_MULTIPLIER, which may be a fraction. Without the variable,
 * and with a value below 1 or an invalid one, the limit is the one in the source. The result has a
 * maximum. */
START_TEST(test_scaled)
{
    static const struct {
        const char *words;
        int ms; /* 20000 ms, scaled */
    } cases[] = {{NULL, 20000},  {"1", 20000},      {"4", 80000},       {"2.5", 50000},
                 {"0.5", 20000}, {"-3", 20000},     {"nothing", 20000}, {"", 20000},
                 {"nan", 20000}, {"1e9", 86400000}, {"inf", 86400000}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].words == NULL) {
            (void)unsetenv("CK_TIMEOUT_MULTIPLIER");
        } else {
            (void)setenv("CK_TIMEOUT_MULTIPLIER", cases[i].words, 1);
        }
        ck_assert_msg(patience_ms(20000) == cases[i].ms, "%s: %d", cases[i].words,
                      patience_ms(20000));
    }
}
END_TEST

/* A time is over only when it has come: a minute from now is not over, now is, and 20 ms from now
 * is over after some waits of a millisecond. */
START_TEST(test_until)
{
    uint64_t until = patience_until(20);

    ck_assert(!patience_over(patience_until(60000)));
    ck_assert(patience_over(patience_until(0)));
    while (!patience_over(until)) {
        (void)poll(NULL, 0, 1);
    }
}
END_TEST

/* The default limit of a test is the suite's, not Check's four seconds. */
START_TEST(test_default_limit)
{
    ck_assert_ptr_nonnull(getenv("CK_DEFAULT_TIMEOUT"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("patience");
    TCase *patience = suite_case(suite, "patience", NULL, NULL);

    tcase_add_test(patience, test_scaled);
    tcase_add_test(patience, test_until);
    tcase_add_test(patience, test_default_limit);
    return suite_run(suite);
}
