/* How every Check program ends. */
#ifndef CST_TESTS_SUITE_H
#define CST_TESTS_SUITE_H

#include <check.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A new case of @suite whose tests have a minute each; either function may be NULL. */
TCase *suite_case(Suite *suite, const char *name, SFun setup, SFun teardown);

/* How far apart the points are that a test of all points tries: 1, or @sparse where the environment
 * has CST_TEST_SPARSE: trees that are built another way from what has been tried whole. */
unsigned suite_stride(unsigned sparse);

/* Run the tests of @suite, which is freed, and print those that fail; what main returns. */
int suite_run(Suite *suite);

#ifdef __cplusplus
}
#endif

#endif
