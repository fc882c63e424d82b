#include "tests/lib/suite.h"

#include <stdlib.h>

int suite_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    int n_failed;

    srunner_run_all(runner, CK_ENV);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
