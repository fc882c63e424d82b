#include "tests/lib/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

TCase *suite_case(Suite *suite, const char *name, SFun setup, SFun teardown)
{
    TCase *tc = tcase_create(name);

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return tc;
}

int suite_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    int n_failed;

    srunner_run_all(runner, CK_ENV);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

bool suite_is_sparse(void)
{
    return getenv("CST_TEST_SPARSE") != NULL;
}

unsigned suite_stride(unsigned sparse)
{
    if (getenv("CST_TEST_EVERY") != NULL) {
        return 1;
    }
    return suite_is_sparse() ? sparse : (sparse + 1) / 2;
}

unsigned suite_first(unsigned sparse)
{
    const char *words = getenv("CST_TEST_FIRST");
    unsigned stride = suite_stride(sparse), first = (unsigned)(time(NULL) ^ getpid()) % stride;

    if (words != NULL) {
        first = (unsigned)strtoul(words, NULL, 0) % stride;
    }
    (void)printf("points from CST_TEST_FIRST=%u, each %u.\n", first, stride);
    (void)fflush(stdout);
    return first;
}
