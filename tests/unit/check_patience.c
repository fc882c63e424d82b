/* SPDX-License-Identifier: Apache-2.0 */
/* Time limits of tests: one multiplier for all. */
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <poll.h>
#include <stdlib.h>

/* A limit is multiplied with CK_TIMEOUT_MULTIPLIER, which need not be whole; without the variable,
 * with one below 1 and with one that is no number, it is what the source says; and it has an end.
 */
START_TEST(test_scaled)
{
    static const struct {
        const char *words;
        int ms; /* of 20000 */
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

/* A moment is over when it has come, not before: a minute from now is not over, now is, and a
 * moment 20 ms from now is over after some waits of a millisecond. */
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

/* Tests have a limit of their own, not Check's four seconds: Check takes it from there. */
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
