/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a Check suite and removes the logs of its tests. A test has one minute instead of Check's
 * four seconds, unless its case or CK_DEFAULT_TIMEOUT sets another limit. As all limits, this one
 * is multiplied by CK_TIMEOUT_MULTIPLIER (tests/lib/patience.h). */
#ifndef CST_TESTS_SUITE_H
#define CST_TESTS_SUITE_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Add a new case to @suite. @name is borrowed until suite_run. @setup and @teardown may be NULL. */
TCase *suite_case(Suite *suite, const char *name, SFun setup, SFun teardown);

/* Beginning of the name of a log that a test may leave behind. %d is suite_pid; the name must end
 * with ".log". */
#define SUITE_LOG "/tmp/cistern-test-%d-"

/* Process id of the process that runs the suite. Tests run in its children. */
int suite_pid(void);

/* True if CST_TEST_SPARSE is in the environment: the build is a slow variant of another one, in
 * which all cases are tested. */
bool suite_is_sparse(void);

/* Add @test to @tc for each index from @begin to below @end, as tcase_add_loop_test does. In sparse
 * runs it is added for every third index only, from a random one on (CST_TEST_FIRST, if that is
 * set): the plain build runs all of them, and a slow build others each time. With the value
 * "points" of CST_TEST_SPARSE all are added: no other build has the code for this processor. */
void suite_add_loop(TCase *tc, const TTest *test, int begin, int end);

/* Which points of a run a test disturbs: every suite_stride-th point, from suite_first on. The
 * stride is 1 if CST_TEST_EVERY is set ("make soak"), and @sparse otherwise. The first point is
 * below the stride. It is CST_TEST_FIRST, or a random one that is printed: each run, and each
 * build, disturbs others. */
unsigned suite_stride(unsigned sparse);
unsigned suite_first(unsigned sparse);

/* Returns CST_TEST_SEED, or a new seed. It is printed. */
uint64_t suite_seed(void);

/* Fail the test with the given words unless @expr is true. For loops of many turns: ck_assert_msg
 * writes to a pipe even if its condition holds. */
#define suite_must(expr, ...)                                                                      \
    do {                                                                                           \
        if (!(expr)) {                                                                             \
            ck_abort_msg(__VA_ARGS__);                                                             \
        }                                                                                          \
    } while (false)

/* Run the tests of @suite and free it. Prints the tests that fail, with the ends of their logs, and
 * removes the logs in any case. If CK_RUN_CASE names no case, nothing is run, and the names of the
 * cases are printed. Returns main's exit status. */
int suite_run(Suite *suite);

#ifdef __cplusplus
}
#endif

#endif
