/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/suite.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SPARSE_LOOP 3 /* In sparse runs, suite_add_loop takes each index that is this far on. */

#define MAX_CASES 64

static int running;                  /* the value of suite_pid; 0: no suite is running */
static const char *cases[MAX_CASES]; /* names of all cases of this program, borrowed */
static size_t n_cases;

/* Check reads its default when a case is made, which may be long before suite_run. */
__attribute__((constructor)) static void set_default_limit(void)
{
    (void)setenv("CK_DEFAULT_TIMEOUT", "60", 0);
}

TCase *suite_case(Suite *suite, const char *name, SFun setup, SFun teardown)
{
    TCase *tc = tcase_create(name);

    tcase_add_checked_fixture(tc, setup, teardown);
    suite_add_tcase(suite, tc);
    if (n_cases < MAX_CASES) {
        cases[n_cases++] = name;
    }
    return tc;
}

int suite_pid(void)
{
    return running != 0 ? running : (int)getpid();
}

static void print_end(const char *path)
{
    char text[4096];
    FILE *file = fopen(path, "re");

    if (file == NULL) {
        return;
    }
    if (fseek(file, -(long)sizeof text, SEEK_END) != 0) {
        rewind(file);
    }
    (void)printf("--- end of %s\n", path);
    (void)fwrite(text, 1, fread(text, 1, sizeof text, file), stdout);
    (void)fclose(file);
}

/* A test that fails ends at once, so its daemon's messages are still in a file. */
static void clear_logs(bool print)
{
    char pattern[64];
    glob_t logs = {0};

    (void)snprintf(pattern, sizeof pattern, SUITE_LOG "*.log", running);
    (void)glob(pattern, 0, NULL, &logs);
    for (size_t i = 0; i < logs.gl_pathc; i++) {
        if (print) {
            print_end(logs.gl_pathv[i]);
        }
        (void)unlink(logs.gl_pathv[i]);
    }
    globfree(&logs);
    (void)fflush(stdout);
}

/* False: CK_RUN_CASE names no case, so that Check would run none and report success. */
static bool has_case(Suite *suite)
{
    const char *name = getenv("CK_RUN_CASE");

    if (name == NULL || suite_tcase(suite, name) != 0) {
        return true;
    }
    (void)fprintf(stderr, "CK_RUN_CASE: there is no case '%s'; the cases are:\n", name);
    for (size_t i = 0; i < n_cases; i++) {
        (void)fprintf(stderr, "    %s\n", cases[i]);
    }
    return false;
}

int suite_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    int n_failed;

    if (!has_case(suite)) {
        srunner_free(runner);
        return EXIT_FAILURE;
    }
    running = (int)getpid();
    srunner_run_all(runner, CK_ENV);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    clear_logs(n_failed > 0);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

bool suite_is_sparse(void)
{
    return getenv("CST_TEST_SPARSE") != NULL;
}

/* CST_TEST_FIRST, or a random number, below @n. */
static unsigned choose_first(unsigned n)
{
    const char *words = getenv("CST_TEST_FIRST");

    return (words != NULL ? (unsigned)strtoul(words, NULL, 0) : (unsigned)(time(NULL) ^ getpid())) %
           n;
}

void suite_add_loop(TCase *tc, const TTest *test, int begin, int end)
{
    const char *sparse = getenv("CST_TEST_SPARSE");
    const int stride = sparse == NULL || strcmp(sparse, "points") == 0 ? 1 : SPARSE_LOOP;
    const int n = end - begin;

    for (int i = n > 0 ? (int)choose_first((unsigned)(n < stride ? n : stride)) : 0; i < n;
         i += stride) {
        tcase_add_loop_test(tc, test, begin + i, begin + i + 1);
    }
}

unsigned suite_stride(unsigned sparse)
{
    return getenv("CST_TEST_EVERY") != NULL ? 1 : sparse;
}

unsigned suite_first(unsigned sparse)
{
    unsigned stride = suite_stride(sparse), first = choose_first(stride);

    (void)printf("points from CST_TEST_FIRST=%u, each %u.\n", first, stride);
    (void)fflush(stdout);
    return first;
}

uint64_t suite_seed(void)
{
    const char *given = getenv("CST_TEST_SEED");
    struct timespec now;
    uint64_t seed;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    seed = given != NULL ? strtoull(given, NULL, 0) : (uint64_t)now.tv_nsec + (uint64_t)getpid();
    printf("CST_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}
