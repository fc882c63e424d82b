/* SPDX-License-Identifier: Apache-2.0 */
/* How every Check program ends, and what it leaves behind: no logs. Every test of it has a minute,
 * not Check's four seconds, unless its case or CK_DEFAULT_TIMEOUT says otherwise; as all limits,
 * that is multiplied with CK_TIMEOUT_MULTIPLIER (tests/lib/patience.h). */
#ifndef CST_TESTS_SUITE_H
#define CST_TESTS_SUITE_H

#include <check.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A new case of @suite; either function may be NULL. */
TCase *suite_case(Suite *suite, const char *name, SFun setup, SFun teardown);

/* What the name of a log that a test may leave behind begins with, of suite_pid; it ends with
 * ".log". */
#define SUITE_LOG "/tmp/cistern-test-%d-"

/* The process that runs the suite, of which that of a test is a child. */
int suite_pid(void);

/* CST_TEST_SPARSE is in the environment: a tree that is built another way, and slower, from one in
 * which all is tried. */
bool suite_is_sparse(void);

/* Of the points of a run at which something can be disturbed, a test tries every suite_stride-th
 * from suite_first on. The environment decides: all with CST_TEST_EVERY ("make soak"), each
 * @sparse-th where that is sparse, else each (@sparse + 1) / 2-th. The first is below the stride,
 * CST_TEST_FIRST or another one in each run, and is printed. */
unsigned suite_stride(unsigned sparse);
unsigned suite_first(unsigned sparse);

/* Run the tests of @suite, which is freed, and print those that fail, with the ends of the logs
 * that they leave behind; what main returns. Such logs are removed in any case. */
int suite_run(Suite *suite);

#ifdef __cplusplus
}
#endif

#endif
